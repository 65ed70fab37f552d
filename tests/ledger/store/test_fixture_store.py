"""Goal: every version opens the stores of earlier versions, and gives the same answers. Method: copies of
`tests/fixtures/store`, one closed and one killed. They are read by a broker, without one, from the bucket and from
the table. The answers are compared with the maker's notes, and then the store is used further.

Opening a copy changes it, so the test compares answers, never files.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ledger.connector.write.commit import run_of
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.metadata.owner import SKIPPED_IDS
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageIdData
from pyspark_ledger.ledger.protocol.actions import DeleteLedger
from pyspark_ledger.ledger.protocol.commits import CommitRun, LedgerParts
from pyspark_ledger.ledger.protocol.cursors import MarkDelete
from tests.rigs import fixture_store as fixture

EXPECTED = fixture.expected()
ORDERS = "public/default/persistent/orders"
QUERY = "query of orders"  # whose batch 2 is staged
KINDS = {"metadata.sqlite", "metadata.epoch", "broker.json", "settings.json", "lock", ".ledger", ".index", ".part"}


def require_same(found: Any, expected: Any, where: str) -> None:
    """Compare part by part, so that a difference is named and not printed among thousands of lines."""
    if isinstance(expected, dict) and isinstance(found, dict):
        assert sorted(found) == sorted(expected), where
        for name, value in expected.items():
            require_same(found[name], value, f"{where} · {name}")
    else:
        assert found == expected, where


def without_gap(found: Any) -> Any:
    """Return a description with the segment ids that a broker would have given if the store had not moved.

    The first broker of a moved store leaves a gap of `SKIPPED_IDS`, and then finishes the run of a killed store.
    """
    if isinstance(found, dict):
        told = {without_gap(name): without_gap(value) for name, value in found.items()}
        if told != found and "__messageId" in found:
            message = MessageIdData.FromString(base64.b64decode(found["__messageId"]))
            message.ledgerId -= SKIPPED_IDS
            told["__messageId"] = base64.b64encode(message.SerializeToString()).decode()
        return told
    if isinstance(found, list):
        return [without_gap(value) for value in found]
    if isinstance(found, str) and found.isdecimal():
        return str(without_gap(int(found)))
    return found - SKIPPED_IDS if isinstance(found, int) and 0 <= found - SKIPPED_IDS < 1000 else found


def goes_on(api: LedgerStore, folder: Path) -> None:
    """Commit the staged parts, check the sequence ids, move cursors, and append rows behind the old ones."""
    (staged,) = msgspec.json.decode((folder / "staged.json").read_bytes(), type=list[LedgerParts])
    before = api.ledger("orders").describe().rows
    run = run_of(QUERY, 2)
    request = CommitRun(staged.ledger, QUERY, 2, run.most, run.least, staged.parts)
    assert api.client.ask(request).rows == 1
    assert api.client.ask(request).repeated
    api.ledger("orders").append([{"id": 100, "item": "new", "price": 1.0, "country": None}])
    assert api.ledger("orders").describe().rows == before + 2
    assert api.ledger("orders").read()["id"].to_pylist()[-2:] == [27, 100]
    with api.ledger("once").producer("first", batching_max_publish_delay_ms=0) as producer:
        assert producer.send(b"again", sequence_id=3).result().is_duplicate
        assert not producer.send(b"more", sequence_id=1000).result().is_duplicate
    end = api.ledger("acknowledged").describe().end
    for cursor in ("chunks", "deltas", "whole", "small"):
        assert api.client.ask(MarkDelete("acknowledged", cursor, end)).position == end
        moved = api.ledger("acknowledged").cursor(cursor).state()
        assert (moved.backlog_rows, moved.partial_entries) == (0, 0)
    api.client.ask(DeleteLedger("messages"))


def served_first(name: str, tmp_path: Path) -> Path:
    """Compare a store that a broker has taken over, and return its folder.

    The broker finishes a batch of two ledgers with two threads, so either ledger may get the first segment id. Then
    the next copy of the store is compared.
    """
    ids = set(EXPECTED[name]["live"]["logs"]["public/default/persistent/route-a"]["bytes"])
    for attempt in range(20):
        folder = fixture.unpacked(tmp_path / str(attempt))
        with fixture.served(folder, name, "--take-over", "moved", "--config", str(folder / "broker.toml")) as (
            api,
            broker,
        ):
            numbers = [segment.ledger_id for segment in api.ledger("route-a").describe().segments]
            assert (max(numbers) > SKIPPED_IDS) == (name == "killed")
            found = {str(without_gap(number)) for number in numbers}
            if ids <= found:
                require_same(
                    without_gap(fixture.described_live(api, folder)), EXPECTED[name]["live"], f"{name}, by a broker"
                )
            fixture.leave(api, broker)
        if ids <= found:
            return folder
    raise AssertionError(f"no broker gave the ids {ids}, the last gave {found}")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["closed", "killed"])
def test_a_store_of_an_earlier_version_is_what_it_was(name: str, tmp_path: Path) -> None:
    folder = fixture.unpacked(tmp_path / "read-only")
    kinds = {path.suffix if path.stem.isdecimal() or path.suffix == ".part" else path.name
             for path in (folder / name).rglob("*") if path.is_file()}  # fmt: skip
    assert kinds >= KINDS | ({"metadata.sqlite-wal"} if name == "killed" else set())
    require_same(fixture.described_read_only(folder / name), EXPECTED[name]["read-only"], f"{name}, read-only")
    folder = served_first(name, tmp_path)
    with fixture.served(folder, name, "--config", str(folder / "broker.toml")) as (api, broker):
        assert len(list((folder / name / "ledgers").glob("*.torn"))) == (name == "killed")
        require_same(
            without_gap(fixture.described_logs(api)), EXPECTED[name]["live"]["logs"], f"{name}, by the next broker"
        )
        goes_on(api, folder)
        fixture.leave(api, broker)
    assert fixture.described_read_only(folder / name)["rows"][ORDERS][-1]["id"] == 100


def test_bucket_and_table_of_an_earlier_version_are_what_they_were(tmp_path: Path) -> None:
    folder = fixture.unpacked(tmp_path)
    require_same(fixture.described_bucket(folder), EXPECTED["bucket"], "bucket")
    require_same(fixture.described_table(folder), EXPECTED["table"], "table")


def test_a_difference_is_seen() -> None:
    """The comparison is not one that cannot fail."""
    other = json.loads(json.dumps(EXPECTED))
    other["killed"]["live"]["logs"][ORDERS]["cursors"]["audit"]["acknowledged"][0][2] += 1
    with pytest.raises(AssertionError, match="audit · acknowledged"):
        require_same(other, EXPECTED, "it")
