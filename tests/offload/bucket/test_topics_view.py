"""Goal: Python reads the topics of a bucket of Pulsar, without a broker and without Spark.

Method: objects that a real Pulsar offloaded (`tests/fixtures/pulsar`), objects of a broker of this project, and gaps.
"""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import duckdb
import pytest

from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused, Unsupported
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.offload.home_view import open_read_only
from streaming_examples.s3_server import S3Server
from tests.ledger.message.test_fixtures_pulsar import ENCRYPTED, READ_ALIKE, ROOT, TRANSACTIONS, expected
from tests.rigs.broker_thread import served_store as store
from tests.rigs.bucket import message, put_segment

__all__ = ["store"]


def topic_of(folder: str) -> str:
    return f"public/fx/{folder.replace('/partition-', '-partition-')}"


@pytest.mark.parametrize("folder", [*READ_ALIKE, TRANSACTIONS])
def test_a_scan_returns_the_messages_that_pulsar_delivers(folder: str) -> None:
    rows = open_read_only(ROOT / folder).ledger(topic_of(folder)).scan(["value", "__key", "__position"]).table()
    at = [(row["__position"]["ledgerId"], row["__position"]["entryId"]) for row in rows.to_pylist()]
    wanted = expected(folder, {ledger for ledger, _ in at})
    assert at == [(told["id"]["ledger"], told["id"]["entry"]) for told in wanted]
    assert [hashlib.sha256(value or b"").hexdigest() for value in rows["value"].to_pylist()] == [
        told["sha256"] for told in wanted
    ]
    assert rows["__key"].to_pylist() == [told["key"] for told in wanted]


def test_encrypted_messages_are_refused_by_the_name_of_their_key() -> None:
    with pytest.raises(Unsupported, match="is encrypted with key 'fxkey'"):
        open_read_only(ROOT / ENCRYPTED).ledger(topic_of(ENCRYPTED)).scan().table()


def test_rows_and_partitions_are_those_that_were_offloaded(store: LedgerStore, tmp_path: Path) -> None:
    store.offload_to(tmp_path / "bucket")
    orders, pages = store.ledger("orders"), store.create_partitioned("pages", 3)
    for number in range(6):
        orders.append([{"id": number, "item": "tea"}])
        pages.append([{"n": number}])
    for ledger in (orders, *pages.partitions()):
        ledger.offload(seal=True)
    view = open_read_only(tmp_path / "bucket")
    assert view.names() == store.names()
    assert view.ledger("orders").schema() == orders.schema()
    assert view.ledger("orders").read().equals(orders.read())
    assert view.ledger("orders").scan(["item", "id"], start=Position(0, 4)).table()["id"].to_pylist() == [4, 5]
    found = view.ledger("pages").scan()
    assert sorted(found.table()["n"].to_pylist()) == list(range(6))
    assert duckdb.sql("select sum(n) from found").fetchall() == [(15,)]


def test_times_and_positions_bound_a_read(tmp_path: Path) -> None:
    put_segment(tmp_path, 1, [message(number) for number in range(4)])
    put_segment(tmp_path, 2, [message(number) for number in range(4, 8)])
    log = open_read_only(tmp_path).ledger("t")

    def values(**bounds: object) -> list[int]:
        column = log.scan(["value"], **bounds).table()["value"]  # type: ignore[arg-type]
        return [int(value.as_py().removeprefix(b"value-")) for value in column]

    assert (log.end().start, log.end().end) == (Position(1, 0), Position(2, 4))
    assert log.position_at(1_005) == Position(2, 1)
    assert values() == list(range(8))
    assert values(since=1_002, until=1_006) == [2, 3, 4, 5]
    assert values(start=Position(1, 3), end=Position(2, 1)) == [3, 4]
    assert log.read(EARLIEST, Position(1, 2)).num_rows == 2


def test_a_missing_segment_is_an_error_that_names_it(tmp_path: Path) -> None:
    for ledger_id in (1, 2, 3):
        put_segment(tmp_path, ledger_id, [message(0)])
    next(tmp_path.glob("*-ledger-2")).unlink()
    log = open_read_only(tmp_path).ledger("t")
    with pytest.raises(DataLoss, match="2:0"):
        log.scan().table()
    assert log.scan(start=Position(3, 0)).table().num_rows == 1


def test_what_is_no_read_of_rows_is_refused(tmp_path: Path) -> None:
    put_segment(tmp_path, 1, [message(0)])
    view = open_read_only(tmp_path)
    for wrong in (lambda: view.ledger("t").append(b"x"), lambda: view.ledger("t").cursor("c"), view.ledger("t").trim):
        with pytest.raises(Refused, match="has offloaded topics and no store, '"):
            wrong()
    with pytest.raises(Refused, match=r"a loop over .*which do not grow. Read the rows"):
        next(view.ledger("t").follow())
    with pytest.raises(NotFound, match=r"no object is of topic .*Did you mean"):
        view.ledger("tt").scan().table()
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(view.ledger("t").scan())
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match=r"metadata\.sqlite is missing"):
        open_read_only(tmp_path / "empty")


@pytest.mark.thorough
def test_a_bucket_without_a_store_is_read_as_topics(
    store: LedgerStore, bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NotFound, match="there is no ledger store at"):
        open_read_only(bucket)
    orders = store.ledger("orders")
    orders.append([{"id": 1}])
    store.offload_to(bucket, check=False)
    orders.offload(seal=True)
    assert open_read_only(bucket).ledger("orders").scan(["id"]).table().to_pylist() == [{"id": 1}]
