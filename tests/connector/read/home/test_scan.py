"""Goal: a batch read without a broker returns the rows of a read through it. Method: both, over a real S3, no JVM.

The broker of the first tests is a process. That of the races is in this process, so that a test decides when the
collector, retention or a take-over comes between plan and task.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.connector.default_source import DefaultSource
from pyspark_ledger.connector.read.home import scan
from pyspark_ledger.connector.read.planner import TaskPartition
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, LedgerError, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy
from streaming_examples.s3_server import S3Server
from tests.rigs.bucket_clients import be_client, create_store
from tests.rigs.bucket_store import SMALL, BucketRig, append, log, numbered, offload
from tests.rigs.deadline import wait_until
from tests.rigs.entry import chunk, entry

CARRYING = dataclasses.replace(SMALL, objects_max=3)
Options = Mapping[str, str]


@pytest.fixture(autouse=True)
def environment(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The credentials of a user, whose caches are in `tmp_path`."""
    be_client(s3_server, tmp_path / "cache", monkeypatch)


@pytest.fixture
def store(bucket: str) -> Iterator[LedgerStore]:
    create_store(bucket)
    yield connect(bucket)
    stop_broker(bucket_directory(bucket))


@pytest.fixture
def rig(bucket: str, s3_server: S3Server, tmp_path: Path) -> Iterator[BucketRig]:
    rig = BucketRig(tmp_path, bucket, s3_server.options)
    yield rig
    rig.close()


def planned(address: str, options: Options) -> tuple[Any, list[Any]]:
    """The reader and the pickled tasks of a read."""
    source = DefaultSource({"store": address, **options})
    columns = source.schema()
    reader = pickle.loads(pickle.dumps(source)).reader(columns)  # noqa: S301 — our own bytes
    return reader, [pickle.dumps(part) for part in reader.partitions()]


def values(reader: Any, parts: list[bytes]) -> list[dict[str, Any]]:
    batches = (batch for part in parts for batch in reader.read(pickle.loads(part)))  # noqa: S301 — our own bytes
    return [row for batch in batches for row in batch.to_pylist()]


def rows(address: str, options: Options) -> list[dict[str, Any]]:
    return values(*planned(address, options))


def without(address: str, options: Options, before: Callable[[], object] = lambda: None) -> list[dict[str, Any]]:
    """Read without a broker. `before` is called between plan and tasks."""
    reader, parts = planned(address, {"broker": "none", **options})
    before()
    return values(reader, parts)


def fill(store: LedgerStore) -> None:
    """Ledgers with rows, wider rows, messages, typed messages, chunks and partitions, partly uploaded."""
    for name in ("orders", "large"):
        store.client.ask(CreateLedger(name, max_entries_per_ledger=4))
    orders = store.ledger("orders")
    for number in range(10):
        orders.append([{"id": 10 * number + row, "item": f"i{number}"} for row in range(10)])
    wait_until(lambda: any(segment.offloaded for segment in orders.describe().segments), "the broker uploads")
    orders.append([{"id": 100, "item": "late"}])
    pages = store.create_partitioned("pages", 3)
    for number in range(6):
        pages.append([{"id": 1000 + number, "item": "page"}])
    with store.ledger("large").producer("p", chunk_max_bytes=1000, batching_max_publish_delay_ms=0) as producer:
        for size in (3000, 10, 2500, 0, 900):
            producer.send(bytes([size % 256]) * size, key=f"k{size}", properties={"size": str(size)})
    store.client.ask(CreateLedger("empty"))


@pytest.mark.thorough
def test_every_read_returns_what_the_broker_returns(store: LedgerStore, bucket: str) -> None:
    fill(store)
    orders = store.ledger("orders")
    segments = orders.describe().segments
    assert {segment.offloaded for segment in segments} == {True, False}
    middle, late = f"{segments[1].ledger_id}:2", f"{segments[-1].ledger_id}:1"
    stored = rows(bucket, {"path": "orders", "includeMetadata": "true"})
    time = str(int(stored[50]["__publishTime"].timestamp() * 1000))
    small = {"minPartitionBytes": "1", "targetPartitionBytes": "1"}
    for options in (
        {"path": "orders"},
        {"path": "orders", "includeMetadata": "true", **small},
        {"path": "orders", "columns": "item,__position"},
        {"path": "orders", "startingPosition": middle, "endingPosition": late},
        {"path": "orders", "startingTimestamp": time},
        {"path": "orders", "endingTimestamp": time},
        {"path": "orders", "startingPositions": f'{{"orders": "{late}"}}'},
        {"path": "pages", "includeMetadata": "true"},
        {"path": "pages-partition-1"},
        {"path": "large", "includeMetadata": "true"},
        {"path": "large", "includeMetadata": "true", **small},
        {"path": "large", "payloadSchema": "STRING", "rescuedDataColumn": "_bad"},
        {"ledgers": "orders,pages", "includeMetadata": "true", **small},
        {"ledgersPattern": "orders|pages"},
        {"path": "empty"},
    ):
        found = without(bucket, options)
        assert found == rows(bucket, options), options
        assert found or options["path"] == "empty"


def test_a_task_that_cannot_reach_the_bucket_names_its_host(store: LedgerStore, bucket: str) -> None:
    store.ledger("orders").append([{"id": 1}])
    reader, (part,) = planned(bucket, {"broker": "none", "path": "orders"})
    found: TaskPartition = pickle.loads(part)  # noqa: S301 — our own bytes
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        s3 = dataclasses.replace(
            found.value.s3, endpoint=f"http://127.0.0.1:{closed.getsockname()[1]}", attempts=1, advice=""
        )
        task = dataclasses.replace(found, value=dataclasses.replace(found.value, s3=s3))
        with pytest.raises(Unavailable) as caught:
            list(reader.read(task))
    assert caught.value.message.startswith(f"a task on {os.uname().nodename} cannot read {bucket}: ")
    assert "read through the broker" in caught.value.hint
    assert "\n" not in str(caught.value)


def test_a_read_ends_with_its_plan_and_needs_no_disk(store: LedgerStore, bucket: str) -> None:
    orders = store.ledger("orders")
    orders.append([{"id": 1}])
    assert without(bucket, {"path": "orders"}, lambda: orders.append([{"id": 2}])) == [{"id": 1}]
    orders.append([{"id": 3}])
    directory = bucket_directory(bucket)
    stop_broker(directory)
    shutil.rmtree(directory.parent)
    assert [row["id"] for row in without(bucket, {"path": "orders"})] == [1, 2, 3]
    assert not directory.parent.exists(), "neither a cache nor a broker"


def test_the_end_is_that_of_the_plan_and_not_of_the_columns(
    store: LedgerStore, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = store.ledger("orders")
    orders.append([{"id": 1}])
    source = DefaultSource({"store": bucket, "path": "orders", "broker": "none"})
    columns = source.schema()
    opened: list[str] = []
    open_view = scan.open_home_view
    monkeypatch.setattr(scan, "open_home_view", lambda *given: opened.append(given[0]) or open_view(*given))

    def read() -> list[dict[str, Any]]:
        reader = pickle.loads(pickle.dumps(source)).reader(columns)  # noqa: S301 — our own bytes
        return values(reader, [pickle.dumps(part) for part in reader.partitions()])

    assert read() == [{"id": 1}]
    assert not opened, "nothing was appended since the columns were found"
    orders.append([{"id": 2}])
    assert read() == [{"id": 1}, {"id": 2}]
    assert opened == [bucket]


def test_a_plan_has_places_and_no_secret(store: LedgerStore, bucket: str, s3_server: S3Server) -> None:
    store.ledger("orders").append([{"id": 1, "item": "a row that no plan has"}])
    _, (part,) = planned(bucket, {"broker": "none", "path": "orders"})
    assert b"a row that no plan has" not in part
    assert s3_server.environment["AWS_SECRET_ACCESS_KEY"].encode() not in part
    task = pickle.loads(part)  # noqa: S301 — our own bytes
    assert isinstance(task, TaskPartition)
    assert "wal/" in repr(task)


def test_what_a_read_without_a_broker_refuses(bucket: str, tmp_path: Path) -> None:
    for options, words in (
        ({"waitForLedger": "true"}, "'waitForLedger' has no meaning with 'broker' = 'none'"),
        ({"history": "/table"}, "'history' has no meaning with 'broker' = 'none'"),
        ({"offload": "/objects"}, "'offload' has no meaning with 'broker' = 'none'"),
        ({"store": str(tmp_path)}, "the store .* is not in a bucket"),
        ({"store": "grpc://localhost:1"}, "the store grpc://localhost:1 is not in a bucket"),
    ):
        with pytest.raises(Refused, match=words):
            planned(bucket, {"path": "orders", "broker": "none", **options})
    source = DefaultSource({"store": bucket, "broker": "none", "path": "orders"})
    with pytest.raises(Refused, match="option 'subscription' is 's' with 'broker' = 'none'"):
        DefaultSource({"store": bucket, "broker": "none", "path": "orders", "subscription": "s"}).reader(None)  # type: ignore[arg-type]  # as above
    with pytest.raises(Refused, match=r"option 'broker' has no meaning for a batch write\. Only the store's broker"):
        source.writer(None, overwrite=False)  # type: ignore[arg-type]  # refused before it is read
    with pytest.raises(NotFound, match="there is no ledger store at s3://"):
        planned(bucket, {"path": "orders", "broker": "none"})


def column(found: list[dict[str, Any]]) -> list[bytes]:
    return [row["value"] for row in found]


def upload_and_collect(broker: BucketStore) -> None:
    broker.store.ledger("log").roll_over()
    offload(broker)
    broker.collector.collect()


@pytest.mark.thorough
@pytest.mark.parametrize("part_bytes", ["1", "64m"])
def test_a_task_whose_objects_were_collected_reads_the_uploaded_segment(
    rig: BucketRig, bucket: str, part_bytes: str
) -> None:
    broker = rig.host()
    append(broker, numbered(20), entries=8)
    options = {"path": "log", "minPartitionBytes": part_bytes, "targetPartitionBytes": part_bytes}
    before = rig.keys("wal/")

    def race() -> None:
        upload_and_collect(broker)
        assert not {*before}.issubset(rig.keys("wal/"))

    assert column(without(bucket, options, race)) == numbered(20)


def test_a_task_whose_objects_were_collected_reads_the_carried_bytes(rig: BucketRig, bucket: str) -> None:
    broker = rig.host(limits=CARRYING)
    append(broker, numbered(6))
    append(broker, numbered(3), "busy", entries=3)

    def race() -> None:
        offload(broker, "busy")
        append(broker, numbered(9), "busy", entries=3)
        offload(broker, "busy")
        first = rig.keys("wal/")[0]
        broker.collector.collect()
        assert first not in rig.keys("wal/")
        append(rig.host("b"), [b"later"])

    assert column(without(bucket, {"path": "log"}, race)) == numbered(6), "after a take-over, too"


def test_chunks_before_the_range_of_a_task_are_found(rig: BucketRig, bucket: str) -> None:
    broker = rig.host()
    ledger = log(broker, entries=3)
    body = [b"a" * 500, b"b" * 500, b"c" * 500, b"d" * 500]
    for number, part in enumerate(body):
        ledger.append([chunk(part, number, 4, "large", 2000)]).result(30)
        ledger.append([entry(b"%d" % number)]).result(30)
    offload(broker)
    options = {"path": "log", "minPartitionBytes": "1", "targetPartitionBytes": "1"}
    assert column(without(bucket, options)) == [b"0", b"1", b"2", b"".join(body), b"3"]


def test_trimmed_entries_are_data_loss_or_left_out(rig: BucketRig, bucket: str) -> None:
    def trim(broker: BucketStore) -> None:
        policy = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        broker.store.policies.change(ChangePolicy("log", False, policy))
        broker.store.ledger("log").trim()
        broker.store.offloads.round()
        for key in list(rig.keys("segments/")):
            rig.bucket.delete([key])

    broker = rig.host()
    append(broker, numbered(9), entries=3)
    offload(broker)
    append(broker, numbered(2, 9), entries=3)
    with pytest.raises(DataLoss, match="retention"):
        without(bucket, {"path": "log"}, lambda: trim(broker))
    append(broker, numbered(6, 11), entries=3)
    offload(broker)
    append(broker, numbered(2, 17), entries=3)
    lenient = {"path": "log", "failOnDataLoss": "false"}
    left = column(without(bucket, lenient, lambda: trim(broker)))
    assert left == column(without(bucket, {"path": "log"})), "the task left out what was trimmed after its plan"
    assert left[-1] == b"18"
    assert len(left) < 8


@pytest.mark.thorough
def test_a_lost_object_is_an_error_with_its_name(rig: BucketRig, bucket: str) -> None:
    broker = rig.host()
    append(broker, numbered(30))
    key = rig.keys("wal/")[20]
    with pytest.raises(Corrupt, match=f"{key} .*is missing"):
        without(bucket, {"path": "log"}, lambda: rig.bucket.delete([key]))


@pytest.mark.thorough
def test_a_ledger_or_store_that_was_created_again_is_not_mixed(rig: BucketRig, bucket: str) -> None:
    broker = rig.host()
    append(broker, numbered(5))

    def replace() -> None:
        broker.store.delete_ledger("log")
        append(broker, numbered(5, 5))
        append(broker, numbered(6), "busy", entries=2)
        offload(broker, "busy")
        broker.collector.collect()

    with pytest.raises(LedgerError, match=r"created again|was deleted"):
        without(bucket, {"path": "log"}, replace)
