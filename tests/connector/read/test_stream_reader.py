"""Goal: a stream loses and repeats no row over failures of Spark.

Method: Spark's calls in Spark's order over a real embedded broker, with offsets as JSON text as in a checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.errors import DataLoss, LedgerError, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.cache import AskCache
from pyspark_ledger.ledger.protocol.cursors import DescribeCursor
from tests.rigs.broker import halt
from tests.rigs.stream import append, reader, rows, text

ALL = ReadAllAvailable()
ROOT = Path(__file__).resolve().parents[3]


def stopped(stream: LedgerStreamReader) -> None:
    """End the stream as a killed process: its heartbeat stops, and its lease is not released."""
    if stream._running is not None and stream._running.subscriptions._heartbeat is not None:
        stream._running.subscriptions._heartbeat.stop()


def test_batches_join_without_gap_or_overlap(store: Path, orders: Ledger) -> None:
    stream = reader(store, startingPosition="earliest")
    start = text(stream.initialOffset())
    assert text(stream.initialOffset()) == start
    first = text(stream.latestOffset(start, ALL))
    assert rows(stream, start, first) == list(range(10))
    assert json.dumps(stream.latestOffset(first, ALL)) == json.dumps(first)
    append(orders, 10, 15)
    second = text(stream.latestOffset(first, ALL))
    assert rows(stream, first, second) == list(range(10, 15))
    assert rows(stream, first, second) == list(range(10, 15))
    assert stream.partitions(first, first) == []
    stream.stop()


def test_latest_loses_nothing_when_the_first_batch_fails(store: Path, orders: Ledger) -> None:
    stream = reader(store)
    start = text(stream.initialOffset())
    append(orders, 10, 13)
    end = text(stream.latestOffset(start, ALL))
    stopped(stream)
    append(orders, 13, 20)
    again = reader(store)
    recomputed = text(again.initialOffset())
    assert recomputed != start
    assert rows(again, recomputed, end) == [10, 11, 12]
    following = text(again.latestOffset(end, ALL))
    assert rows(again, end, following) == list(range(13, 20))
    stopped(again)


def test_a_first_batch_without_rows_may_fail_too(store: Path, orders: Ledger) -> None:
    stream = reader(store)
    start = text(stream.initialOffset())
    assert text(stream.latestOffset(start, ALL)) == start
    stopped(stream)
    append(orders, 10, 12)
    again = reader(store)
    assert rows(again, text(again.initialOffset()), start) == []
    assert rows(again, start, text(again.latestOffset(start, ALL))) == [10, 11]
    stopped(again)


def test_a_subscription_keeps_its_place_without_a_checkpoint(store: Path, orders: Ledger) -> None:
    stream = reader(store, subscription="billing", startingPosition="earliest")
    start = text(stream.initialOffset())
    # Not `orders.cursor()`, which would create the cursor.
    known = orders.client.ask(DescribeCursor(orders.name, "billing"))
    assert known.next_position == orders.end().start
    end = text(stream.latestOffset(start, ALL))
    assert orders.cursor("billing").state().backlog_rows == 10
    assert rows(stream, start, end) == list(range(10))
    append(orders, 10, 12)
    # The next trigger's start is in Spark's commit log, so it is acknowledged now and not before.
    after = text(stream.latestOffset(end, ALL))
    state = orders.cursor("billing").state()
    assert (state.backlog_rows, state.replay_floor) == (2, state.next_position)
    stream.commit(after)
    assert orders.cursor("billing").state().backlog_rows == 0
    stream.stop()
    append(orders, 12, 14)
    again = reader(store, subscription="billing", startingPosition="earliest")
    start = text(again.initialOffset())
    assert rows(again, start, text(again.latestOffset(start, ALL))) == [12, 13]
    # A checkpoint before the cursor is valid while its entries exist.
    assert rows(again, end, after) == [10, 11]
    again.stop()


@pytest.mark.thorough
def test_a_second_live_query_is_refused_and_a_dead_one_is_not_waited_for(store: Path, orders: Ledger) -> None:
    stream = reader(store, subscription="billing")
    stream.initialOffset()
    stream._running.subscriptions._heartbeat._seconds = 0.2
    second = reader(store, subscription="billing")
    with pytest.raises(
        Refused, match=r"subscription 'billing' .* is read by .* until 2[-0-9]+T[:.0-9]+Z, this query is"
    ):
        second.initialOffset()
    stream.stop()
    second.initialOffset()
    second.stop()
    # A killed process releases nothing. The broker detects its end.
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pyspark_ledger.connector.data_source import LedgerSource
source = LedgerSource({{"path": "orders", "store": {str(store)!r}, "subscription": "billing"}}, "0.1.0")
source.stream_reader(source.schema()).initialOffset()
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert orders.cursor("billing").state().lease_holder
    third = reader(store, subscription="billing")
    third.initialOffset()
    third.stop()


def test_limits_and_available_now(store: Path, orders: Ledger) -> None:
    stream = reader(store, startingPosition="earliest", maxRowsPerTrigger="4")
    assert stream.getDefaultReadLimit() == ReadMaxRows(4)
    stream.prepareForTriggerAvailableNow()
    append(orders, 10, 20)
    at, seen = text(stream.initialOffset()), []
    while (end := text(stream.latestOffset(at, ReadMaxRows(4)))) != at:
        seen.append(rows(stream, at, end))
        at = end
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    report = stream.reportLatestOffset()["ledgers"]["public/default/persistent/orders"]
    assert (report["lagRows"], report["lagEntries"]) == (10, 10)
    # Trigger.Once reads everything and ignores the limits.
    once = reader(store, startingPosition="earliest", maxRowsPerTrigger="4")
    start = text(once.initialOffset())
    assert rows(once, start, text(once.latestOffset(start, ALL))) == list(range(20))
    once.stop()
    stream.stop()


def test_the_largest_limit_is_none(store: Path, orders: Ledger) -> None:
    most = str(2**63 - 1)
    stream = reader(store, startingPosition="earliest", maxRowsPerTrigger=most, maxBytesPerTrigger="1048576g")
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, stream.getDefaultReadLimit()))
    assert rows(stream, start, end) == list(range(10))
    assert stream.reportLatestOffset()["batch"]["endedBy"] == "all there was"
    stream.stop()


@pytest.mark.parametrize("limit", [{"maxRowsPerTrigger": "2"}, {"maxBytesPerTrigger": "1"}])
def test_an_entry_above_the_limit_is_a_batch_of_its_own(store: Path, orders: Ledger, limit: dict[str, str]) -> None:
    orders.append(pa.table({"n": pa.array(range(10, 15), pa.int64())}))
    append(orders, 15, 16)
    at = orders.end().start
    stream = reader(store, startingPosition=f"{at.ledger_id}:9", **limit)
    here, seen, why = text(stream.initialOffset()), [], []
    while (end := text(stream.latestOffset(here, stream.getDefaultReadLimit()))) != here:
        seen.append(rows(stream, here, end))
        why.append(stream.reportLatestOffset()["batch"]["endedBy"])
        here = end
    assert seen == [[9], list(range(10, 15)), [15]]
    assert why[1].startswith("one entry above ")
    stream.stop()


@pytest.mark.parametrize("pacing", ["true", "false"])
def test_what_is_planned_is_read_ahead_before_a_task_asks(
    store: Path, orders: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pacing: str
) -> None:
    monkeypatch.setattr("pyspark_ledger.connector.read.ledger.prefetch_client.WORTH_BYTES", 1)
    connect(store).offload_to(tmp_path / "objects")
    orders.set_policy(managedLedgerOffloadDeletionLagInMillis=0)
    orders.offload(seal=True)
    orders.trim()
    stream = reader(store, startingPosition="earliest", pacing=pacing)
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    client, until = connect(store).client, time.monotonic() + 60
    while client.ask(AskCache()).entries < 10:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert client.ask(AskCache()).misses == 0
    assert rows(stream, start, end) == list(range(10))
    counted = client.ask(AskCache())
    assert (counted.misses, counted.hits, counted.mapped_entries) == (10, 0, 10)
    stream.stop()


def test_an_object_that_is_missing_is_told_by_the_task(store: Path, orders: Ledger, tmp_path: Path) -> None:
    objects = tmp_path / "objects"
    connect(store).offload_to(objects)
    orders.set_policy(managedLedgerOffloadDeletionLagInMillis=0)
    orders.offload(seal=True)
    orders.trim()
    append(orders, 10, 12)
    stream = reader(store, startingPosition="earliest")
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    (gone,) = [path for path in objects.rglob("*-ledger-*") if path.name[-1].isdigit()]
    gone.unlink()
    with pytest.raises(DataLoss, match=rf"'orders' has lost \[0:0, .*their file is missing \(.*{gone.name}"):
        rows(stream, start, end)
    stream.stop()
    lossy = reader(store, failOnDataLoss="false")
    assert rows(lossy, start, end) == [10, 11]
    stopped(lossy)


@pytest.mark.broker_process
@pytest.mark.thorough
def test_a_broker_that_hangs_ends_the_query_in_time(
    store: Path, orders: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = reader(store, startingPosition="earliest")
    start = text(stream.initialOffset())
    connection = stream._running.read.connection
    broker = json.loads((store / "broker.json").read_text())["pid"]
    with monkeypatch.context() as short:
        # The defaults are two minutes for the call, half a minute to find another broker, and half a minute for
        # both.
        short.setitem(Client.ask.__kwdefaults__, "attempt_seconds", 0.3)
        short.setattr(connection.client, "revive", None)
        short.setattr(connection, "_deadline_ms", 300)
        halt(broker)
        try:
            with pytest.raises(Unavailable):
                stream.latestOffset(start, ALL)
        finally:
            os.kill(broker, signal.SIGCONT)
    assert rows(stream, start, text(stream.latestOffset(start, ALL))) == list(range(10))
    stream.stop()


def test_a_ledger_made_again_is_not_the_one_that_was_read(store: Path, orders: Ledger) -> None:
    stream = reader(store, startingPosition="earliest")
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    connect(store).delete("orders")
    append(orders, 0, 1)
    with pytest.raises(DataLoss, match=r"lost .*deleted and created again .*incarnation is now"):
        stream.latestOffset(end, ALL)
    again = reader(store)
    with pytest.raises(DataLoss, match=end["ledgers"]["public/default/persistent/orders"]["id"]):
        again.partitions(start, end)
    stopped(stream)
    stopped(again)


def test_a_range_that_runs_backwards_raises(store: Path, orders: Ledger) -> None:
    stream = reader(store, startingPosition="earliest")
    start = text(stream.initialOffset())
    end = text(stream.latestOffset(start, ALL))
    later = text(stream.latestOffset(end, ALL))
    append(orders, 10, 11)
    later = text(stream.latestOffset(end, ALL))
    with pytest.raises(LedgerError, match=r"begins at .* and ends before it"):
        stream.partitions(later, {**end, "from": {}})
    stopped(stream)


def test_messages_have_a_value_and_kinds_do_not_mix(store: Path) -> None:
    raw = connect(store).ledger("orders")
    raw.append(b"one")
    tombstone = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1_000, null_value=True, partition_key="k"
    )
    tombstone.properties.add(key="a", value="b")
    with raw.client.producer(raw.name) as producer:
        producer.append(*encode_entry(tombstone))
    stream = reader(store, startingPosition="earliest", includeMetadata="true")
    start = text(stream.initialOffset())
    (part,) = stream.partitions(start, text(stream.latestOffset(start, ALL)))
    (batch,) = stream.read(part)
    found = batch.to_pylist()
    assert [row["value"] for row in found] == [b"one", None]
    assert [row["__key"] for row in found] == [None, "k"]
    assert found[1]["__messageProperties"] == [("a", "b")]
    assert [row["__position"]["batchIndex"] for row in found] == [-1, -1]
    assert found[0]["__messageId"] == b"\x08" + bytes([found[0]["__position"]["ledgerId"]]) + b"\x10\x00"
    stream.stop()
    with pytest.raises(Refused, match=r"has messages \(2 entries\)"):
        raw.append([{"n": 1}])


def test_a_missing_ledger_is_named_or_waited_for(store: Path, orders: Ledger) -> None:
    with pytest.raises(NotFound, match="Did you mean 'orders'"):
        LedgerSource({"path": "order", "store": str(store)}, "0").schema()
    with pytest.raises(NotFound):
        LedgerSource(
            {"path": "new", "store": str(store), "waitForLedger": "true", "waitTimeoutMs": "300"}, "0"
        ).schema()


def test_a_ledger_that_is_waited_for_comes(store: Path, orders: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read waits for a ledger that exists without columns, until it has rows."""
    steps = [
        lambda: orders.client.ask(CreateLedger("new")),
        lambda: append(connect(store).ledger("new"), 0, 3),
    ]
    monkeypatch.setattr("pyspark_ledger.connector.read.ledger.scan.pause", lambda _ms: steps.pop(0)())
    stream = reader(store, path="new", waitForLedger="true", startingPosition="earliest")
    assert steps == []
    start = text(stream.initialOffset())
    assert rows(stream, start, text(stream.latestOffset(start, ALL))) == [0, 1, 2]
    stream.stop()


def test_queries_without_a_subscription_share_what_they_read(store: Path, orders: Ledger) -> None:
    streams = [reader(store, startingPosition="earliest") for _ in range(2)]
    batches = []
    for stream in streams:
        start = text(stream.initialOffset())
        batches.append((start, text(stream.latestOffset(start, ALL))))
    for stream, (start, end) in zip(streams, batches, strict=True):
        assert rows(stream, start, end) == list(range(10))
    counted = orders.client.ask(AskCache())
    assert (counted.misses, counted.hits) == (10, 10)
    assert len(counted.ledgers[0].readers) == 2
    streams[0].stop()
    assert len(orders.client.ask(AskCache()).ledgers[0].readers) == 1
    stopped(streams[1])
