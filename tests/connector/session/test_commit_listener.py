"""Goal: what a progress says is committed is acknowledged, and nothing else. Method: progress as Spark words it, over a
real broker; the sessions' listener itself is in test_spark_acknowledging.py.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.read.progress import (
    SourceIdentity,
    cache_between,
    parse_source_identity,
    reads_between,
    source_report,
)
from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
from pyspark_ledger.connector.session.commit_listener import (
    CommitListener,
    CursorMover,
    acknowledge_batch,
    committed,
)
from pyspark_ledger.connector.session.metrics import LedgerProgress, PrometheusGauges, ledgers_of
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.clock import monotonic_ms
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.cache import AskCacheReads, CacheReads
from tests.rigs.stream import append, reader, text

NAME = "public/default/persistent/orders"


def batch(stream: LedgerStreamReader, start: Any) -> dict[str, Any]:
    """The source of a progress, after one batch."""
    end = stream.latestOffset(start, None)
    return {"startOffset": start, "endOffset": end, "latestOffset": stream.reportLatestOffset(), "numInputRows": 10}


def settled(acknowledger: CursorMover) -> bool:
    return acknowledger.settle(monotonic_ms() + 20_000)


def test_the_end_of_a_progress_is_acknowledged(store: Path, orders: Ledger) -> None:
    stream = reader(store, subscription="billing", startingPosition="earliest")
    source = batch(stream, json.loads(json.dumps(stream.initialOffset())))
    stream.stop()
    assert orders.cursor("billing").state().backlog_rows == 10
    acknowledger = CursorMover()
    # As an object and as text: both are found in progress.
    for value in (source, {name: json.dumps(part) for name, part in source.items()}):
        ((origin, ledger, position),) = committed(value)
        assert (ledger, position) == (NAME, orders.end().end)
        acknowledger.put(origin, ledger, position)
        assert settled(acknowledger)
    state = orders.cursor("billing").state()
    assert (state.backlog_rows, state.backlog_entries, state.replay_floor) == (0, 0, orders.end().end)


def test_what_no_batch_has_ended_is_not(store: Path, orders: Ledger) -> None:
    stream = reader(store, subscription="billing", startingPosition="earliest")
    start = json.loads(json.dumps(stream.initialOffset()))
    source = batch(stream, start)
    stream.stop()
    assert committed({**source, "endOffset": start}) == [], "only planned"
    assert committed({**source, "endOffset": None}) == []
    assert committed({**source, "latestOffset": None}) == []
    assert committed({"latestOffset": {"v": 1, "topic": {"0": 3}}, "endOffset": {"topic": {"0": 3}}}) == [], "Kafka's"
    assert committed({"latestOffset": "12", "endOffset": "no json"}) == []
    nameless = reader(store, startingPosition="earliest")
    assert committed(batch(nameless, json.loads(json.dumps(nameless.initialOffset())))) == []
    nameless.stop()


def test_another_store_at_the_path_is_left_alone(store: Path, orders: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    cursor = orders.cursor("billing")
    reader(store, subscription="billing", startingPosition="earliest").initialOffset()
    acknowledger = CursorMover()
    acknowledger.put(SourceIdentity(str(store), "another-store", "billing"), NAME, orders.end().end)
    assert settled(acknowledger)
    assert cursor.state().backlog_rows == 10
    assert "the query reads store another-store" in caplog.text
    # Nor does a wrong one keep the thread from the next.
    acknowledger.put(SourceIdentity(str(store), connect(store).client.store_id, "billing"), NAME, orders.end().end)
    assert settled(acknowledger)
    assert cursor.state().backlog_rows == 0


def test_an_acknowledgement_that_fails_is_no_success(store: Path, orders: Ledger) -> None:
    stream = reader(store, subscription="billing", startingPosition="earliest")
    source = batch(stream, json.loads(json.dumps(stream.initialOffset())))
    stream.stop()
    other = json.loads(json.dumps(source))
    other["latestOffset"]["storeId"] = "another-store"
    until_ms = monotonic_ms() + 60_000
    assert not acknowledge_batch({"id": "q", "batchId": 0, "sources": [other]}, until_ms)
    assert orders.cursor("billing").state().backlog_rows == 10
    assert acknowledge_batch({"id": "q", "batchId": 0, "sources": [source]}, until_ms), "an earlier failure of another"
    assert orders.cursor("billing").state().backlog_rows == 0


def test_a_batch_can_be_repeated_whatever_it_acknowledged_by_itself(store: Path, orders: Ledger) -> None:
    """Batch 0 acknowledges all, the log is trimmed as far as it may be, the process is gone: the same rows again."""
    connect(store).client.ask(CreateLedger("small", max_entries_per_ledger=2))
    ledger = connect(store).ledger("small")
    append(ledger, 0, 9)
    source = LedgerSource(
        {"path": "small", "store": str(store), "subscription": "s", "startingPosition": "earliest"}, "0"
    )
    stream = source.stream_reader(source.schema())
    start = json.loads(json.dumps(stream.initialOffset()))
    end = json.loads(json.dumps(stream.latestOffset(start, None)))
    ledger.cursor("s").acknowledge(ledger.end().end)
    ledger.set_policy(retentionTimeInMinutes=0, retentionSizeInMB=0)
    assert ledger.trim().ledgers == []
    stream.stop()
    again = source.stream_reader(source.schema())
    found = [b.num_rows for part in again.partitions(again.initialOffset(), end) for b in again.read(part)]
    assert sum(found) == 9
    # Committed: now it may go.
    assert json.dumps(again.latestOffset(end, None)) == json.dumps(end)
    assert len(ledger.trim().ledgers) == 4
    again.stop()


def test_the_report_says_lag_reads_and_why(store: Path, orders: Ledger) -> None:
    stream = reader(store, startingPosition="earliest", maxRowsPerTrigger="4")
    start = json.loads(json.dumps(stream.initialOffset()))
    limited = batch(stream, start)
    (seen,) = ledgers_of({"id": "q", "batchId": 0, "sources": [limited]})
    assert (seen.lag_entries, seen.lag_rows, seen.ended_by) == (6, 6, "maxRowsPerTrigger")
    assert seen.lag_bytes > 0
    assert 0 <= seen.waited_ms < 3_600_000
    assert "6 rows" in str(seen)
    stream.stop()
    # Mapped on the same host, unless that is forbidden; the next report says which.
    for mapping, mapped in (("auto", True), ("off", False)):
        stream = reader(store, startingPosition="earliest", mapping=mapping)
        start = json.loads(json.dumps(stream.initialOffset()))
        source = batch(stream, start)
        assert source["latestOffset"]["batch"]["endedBy"] == "all there was"
        for part in stream.partitions(start, source["endOffset"]):
            assert sum(rows.num_rows for rows in stream.read(part)) == 10
        reads = batch(stream, source["endOffset"])["latestOffset"]["reads"]
        assert (reads["mappedBytes"] > 0, reads["sentBytes"] > 0) == (mapped, not mapped)
        stream.stop()


def test_reads_are_counted_between_two_reports() -> None:
    names = ("hits", "misses", "hit_bytes", "miss_bytes", "mapped_entries", "mapped_bytes", "direct_bytes")
    before = CacheReads(
        **dict(zip(names, (1, 1, 50, 20, 5, 50, 0), strict=True)), memory_hit_bytes=50, file_miss_bytes=20
    )
    now = CacheReads(
        **dict(zip(names, (4, 2, 120, 30, 9, 90, 3), strict=True)),
        memory_hit_bytes=110, page_cache_hit_bytes=10, object_miss_bytes=4, file_miss_bytes=26,
    )  # fmt: skip
    found = reads_between(before, now)
    assert {name: found.pop(name) for name in ("cacheHitRate", "mappedBytes", "sentBytes")} == {
        "cacheHitRate": 0.75, "mappedBytes": 40, "sentBytes": 37,
    }  # fmt: skip
    assert found == {
        "directBytes": 3,
        "memoryBytes": 60,
        "pageCacheBytes": 10,
        "objectStorageBytes": 4,
        "localFileBytes": 6,
    }
    assert sum(found.values()) - found["directBytes"] == 40 + 40
    assert reads_between(before, before)["cacheHitRate"] is None
    assert reads_between(now, before)["sentBytes"] == 20, "a new broker counts from nothing"


def test_the_report_says_what_the_cache_did_and_is(store: Path, orders: Ledger) -> None:
    streams = [reader(store, startingPosition="earliest") for _ in range(2)]
    start = json.loads(json.dumps(streams[0].initialOffset()))
    streams[1].latestOffset(json.loads(json.dumps(streams[1].initialOffset())), None)  # it is there, and reads later
    source = batch(streams[0], start)
    before = source["latestOffset"]["cache"]
    assert (before["hits"], before["misses"], before["sizeBytes"]) == (0, 0, 0)
    for part in streams[0].partitions(start, source["endOffset"]):
        assert sum(rows.num_rows for rows in streams[0].read(part)) == 10
    until = monotonic_ms() + 20_000
    while not orders.client.ask(AskCacheReads()).expected_reads:  # which is looked for once a second
        assert monotonic_ms() < until
    cache = batch(streams[0], source["endOffset"])["latestOffset"]["cache"]
    assert (cache["hits"], cache["misses"], cache["inserted"], cache["expectedReads"]) == (0, 10, 10, 10)
    assert cache["missBytes"] == cache["localFileBytes"] == cache["nonEvictableBytes"] > 0 == cache["sizeBytes"]
    assert (cache["limitBytes"], cache["localFileLimitBytes"]) == (64 * 1024 * 1024, 256 * 1024 * 1024)
    assert set(cache) == {
        "evicted", "evictionMs", "evictions", "expectedReads", "hitBytes", "hits", "inflightReadBytes", "inserted",
        "limitBytes", "lingeringBytes", "localFileBytes", "localFileLimitBytes", "missBytes", "misses",
        "nonEvictableBytes", "requeues", "sizeBytes",
    }  # fmt: skip
    for stream in streams:
        stream.stop()


def test_what_the_cache_did_is_counted_between_two_reports() -> None:
    before = CacheReads(hits=5, misses=2, inserted=9, evicted=1, eviction_nanos=10**6, requeues=7, size_bytes=100)
    now = CacheReads(hits=9, misses=3, inserted=9, evicted=4, eviction_nanos=3 * 10**6, requeues=2, size_bytes=70)
    found = cache_between(before, now)
    assert (found["hits"], found["misses"], found["evicted"], found["evictionMs"]) == (4, 1, 3, 2.0)
    assert (found["requeues"], found["sizeBytes"]) == (0, 70)
    assert cache_between(now, CacheReads(misses=1))["misses"] == 1, "a new broker counts from nothing"


def test_an_origin_holds_references_and_comes_back(store: Path, orders: Ledger) -> None:
    from pyspark_ledger.ledger.client.credentials import Credentials

    credentials = Credentials("/ca.pem", "/me.pem", "/me.key", "file:/token")
    origin = SourceIdentity.of("grpc+tls://h:1", "id", "billing", credentials)
    assert origin.to_credentials() == credentials
    report = {"v": 1, "store": "grpc+tls://h:1", "storeId": "id", "subscription": "billing"}
    assert parse_source_identity({**report, "credentials": dict(origin.credentials)}) == origin
    assert parse_source_identity({**report, "credentials": {"token": "a-token-itself"}}) is None
    assert parse_source_identity({**report, "credentials": {"password": "x"}}) is None
    assert parse_source_identity({**report, "v": 2}) is None


def test_gauges_come_and_go_with_their_query() -> None:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    gauges = PrometheusGauges(registry)
    seen = LedgerProgress(
        "q", 3, 10, NAME, "billing", 2, 20, 400, 1500, "all there was", 7000, 0, 0.5, 2000, 1500, 0, 3500, 1200
    )
    assert "7,000 bytes mapped, 0 sent, 1,200 fetched by tasks, 50% from the cache" in str(seen)
    assert str(seen).endswith("50% from the cache: 2,000 by memory, 1,500 by the page cache, 3,500 by object storage")
    gauges.show(seen)
    labels = {"query": "q", "ledger": NAME, "subscription": "billing"}
    assert registry.get_sample_value("ledger_stream_lag_seconds", labels) == 1.5
    assert registry.get_sample_value("ledger_stream_lag_rows", labels) == 20
    assert registry.get_sample_value("ledger_stream_object_storage_bytes", labels) == 3500
    assert registry.get_sample_value("ledger_stream_direct_bytes", labels) == 1200
    gauges.forget("q")
    assert registry.get_sample_value("ledger_stream_lag_rows", labels) is None


def test_events_of_runs_that_are_over_are_waited_for() -> None:
    class Event:
        runId = "run"  # noqa: N815  # Spark's name

    listener = CommitListener(lambda *_: None)
    listener.onQueryStarted(Event())
    assert listener.settle(lambda: {"run"}, monotonic_ms() + 10_000), "still active: nothing to wait for"
    assert not listener.settle(set, monotonic_ms() + 50)
    listener.onQueryTerminated(Event())
    assert listener.settle(set, monotonic_ms() + 10_000)


@pytest.mark.parametrize("is_remote", [False, True])
def test_warnings_of_the_server_are_logged_once_for_a_run(
    store: Path, orders: Ledger, caplog: pytest.LogCaptureFixture, *, is_remote: bool
) -> None:
    stream = reader(store, startingPosition="earliest")
    start = text(stream.initialOffset())
    for count in range(10):
        logging.getLogger("pyspark_ledger.connector").warning("loss %d", max(count, 3))
    end = text(stream.latestOffset(start, None))
    source = {"endOffset": json.dumps(end), "latestOffset": json.dumps(stream.reportLatestOffset())}
    assert source_report(source)["warnings"] == [f"loss {number}" for number in range(5, 10)]
    stream.stop()
    caplog.clear()
    progress = SimpleNamespace(json=json.dumps({"name": "q", "sources": [source]}), runId="run")
    listener = CommitListener(lambda *_: None, logs_warnings=is_remote)
    for _ in range(2):
        listener.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]  # a part of an event
    logged = [f"query q, on the server: loss {number}" for number in range(5, 10)] if is_remote else []
    assert caplog.messages == logged


def test_only_the_newest_position_of_a_cursor_is_asked_for(store: Path, orders: Ledger) -> None:
    orders.cursor("a")
    acknowledger, start = CursorMover(), orders.end().start
    origin = SourceIdentity(str(store), connect(store).client.store_id, "a")
    for entry in (*range(1, 11), 3):  # an event that comes late
        acknowledger.put(origin, NAME, Position(start.ledger_id, entry))
    assert settled(acknowledger)
    assert orders.cursor("a").state().backlog_rows == 0
