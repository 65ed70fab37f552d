"""List of all metrics of a broker: name, meaning, labels and value of each, in one place.

A *family* is one metric with its labels. `tables` joins the families with their values at one moment. Prometheus' text
and `docs/metrics.md` are written from this list.

Rules
- A name follows Pulsar's, with `ledger_` instead of `pulsar_`, if Pulsar has the metric: `ledger_in_bytes_total`.
- Rows are called messages, as in Pulsar.
- Label `ledger` is the canonical name. Up to a limit, ledgers and subscriptions are *listed*: they have metrics of
  their own. The metrics of all other ledgers and subscriptions are summed as `others`.
- A value of None is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from pyspark_ledger.ledger.protocol.metrics import (
    OTHERS,
    BrokerMetrics,
    CacheDecision,
    CursorMetrics,
    LatencyHistogram,
    LedgerMetrics,
    RequestCount,
)

Kind = Literal["counter", "gauge", "histogram", "info"]
Value = float | LatencyHistogram | None
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Family(Generic[T]):
    """Metric: its name, meaning and labels, and a function that reads its value from an object, such as a ledger.

    The name of a counter has no `_total`, which the text adds. `pulsar` is the name of the same metric in Pulsar.
    """

    name: str
    meaning: str
    kind: Kind
    value: Callable[[T], Value]
    labels: tuple[str, ...] = ()
    pulsar: str = ""


class Table(NamedTuple):
    """Families with the same labels, and their rows. A row has the values of the labels and of the families."""

    families: Sequence[Family[Any]]
    rows: list[tuple[tuple[str, ...], list[Value]]]


_Ledger = Family[LedgerMetrics]
_LEDGER = ("ledger",)
LEDGER_FAMILIES: tuple[_Ledger, ...] = (
    Family("ledger_in_messages", "Rows appended", "counter", lambda ledger: ledger.appended.rows, _LEDGER,
           "pulsar_in_messages_total"),
    Family("ledger_in_bytes", "Bytes of entries appended", "counter", lambda ledger: ledger.appended.size_bytes,
           _LEDGER, "pulsar_in_bytes_total"),
    Family("ledger_in_entries", "Entries appended", "counter", lambda ledger: ledger.appended.entries, _LEDGER),
    Family("ledger_in_requests", "Appends acknowledged", "counter", lambda ledger: ledger.appended.appends, _LEDGER),
    Family("ledger_storage_write_latency_seconds",
           "Time from an append to its acknowledgement, for the oldest append of each group of appends that are "
           "written together", "histogram",
           lambda ledger: ledger.append_latency, _LEDGER, "pulsar_storage_write_latency_le_*"),
    Family("ledger_storage_sync_latency_seconds", "Time of a sync of one segment file", "histogram",
           lambda ledger: ledger.sync_latency, _LEDGER),
    Family("ledger_storage_size", "Bytes of entries stored", "gauge", lambda ledger: ledger.size_bytes, _LEDGER,
           "pulsar_storage_size"),
    Family("ledger_storage_offloaded_size", "Bytes of entries in object storage", "gauge",
           lambda ledger: ledger.offloaded_bytes, _LEDGER, "pulsar_storage_offloaded_size"),
    Family("ledger_storage_entries", "Entries stored", "gauge", lambda ledger: ledger.entries, _LEDGER),
    Family("ledger_messages", "Rows appended since the ledger was created", "gauge", lambda ledger: ledger.rows,
           _LEDGER),
    Family("ledger_segments", "Segments", "gauge", lambda ledger: ledger.segments, _LEDGER),
    Family("ledger_offloaded_segments", "Segments in object storage", "gauge",
           lambda ledger: ledger.offloaded_segments, _LEDGER),
    Family("ledger_last_publish_timestamp_seconds", "Time of the newest entry", "gauge",
           lambda ledger: ledger.last_publish_ms / 1000, _LEDGER),
    Family("ledger_cached_bytes", "Cached bytes of the ledger, in memory or in local files", "gauge",
           lambda ledger: ledger.cached_bytes, _LEDGER),
    Family("ledger_trimmed_segments", "Segments that retention deleted", "counter",
           lambda ledger: ledger.trimmed_segments, _LEDGER),
    Family("ledger_trimmed_bytes", "Bytes that retention deleted", "counter", lambda ledger: ledger.trimmed_bytes,
           _LEDGER),
    Family("ledger_published_segments", "Segments that publishers committed to tables", "counter",
           lambda ledger: ledger.published.segments, _LEDGER),
    Family("ledger_published_messages", "Rows of these segments", "counter",
           lambda ledger: ledger.published.rows, _LEDGER),
    Family("ledger_published_bytes", "Bytes of these segments", "counter",
           lambda ledger: ledger.published.size_bytes, _LEDGER),
    Family("ledger_publish_failures", "Failures of publishers", "counter",
           lambda ledger: ledger.published.failures, _LEDGER),
    Family("ledger_unpublished_messages", "Rows that at least one table of the ledger lacks", "gauge",
           lambda ledger: None if ledger.unpublished is None else ledger.unpublished.rows, _LEDGER),
    Family("ledger_unpublished_bytes", "Bytes of entries that at least one table of the ledger lacks", "gauge",
           lambda ledger: None if ledger.unpublished is None else ledger.unpublished.size_bytes, _LEDGER),
    Family("ledger_unpublished_segments", "Sealed segments that at least one table of the ledger lacks", "gauge",
           lambda ledger: None if ledger.unpublished is None else ledger.unpublished.segments, _LEDGER),
    Family("ledger_unpublished_age_seconds", "Time since the oldest of these segments was sealed, 0 without one",
           "gauge", lambda ledger: None if ledger.unpublished is None else ledger.unpublished.age_ms / 1000, _LEDGER),
)  # fmt: skip

_Read = Family[tuple[int, int]]
_READS = ("ledger", "source")
READ_FAMILIES: tuple[_Read, ...] = (
    Family("ledger_out_entries", "Entries served, by source: memory, page cache, local file or object storage",
           "counter", lambda read: read[0], _READS),
    Family("ledger_out_bytes", "Bytes served, by source", "counter", lambda read: read[1], _READS,
           "pulsar_out_bytes_total"),
)  # fmt: skip

_Cursor = Family[tuple[CursorMetrics, int]]
_SUBSCRIPTION = ("ledger", "subscription")
SUBSCRIPTION_FAMILIES: tuple[_Cursor, ...] = (
    Family("ledger_subscription_back_log", "Unacknowledged rows", "gauge", lambda at: at[0].backlog_rows,
           _SUBSCRIPTION, "pulsar_subscription_back_log"),
    Family("ledger_subscription_back_log_entries", "Unacknowledged entries", "gauge",
           lambda at: at[0].backlog_entries, _SUBSCRIPTION),
    Family("ledger_subscription_back_log_bytes", "Unacknowledged bytes", "gauge", lambda at: at[0].backlog_bytes,
           _SUBSCRIPTION),
    Family("ledger_subscription_back_log_age_seconds", "Age of the oldest unacknowledged entry, 0 without one",
           "gauge", lambda at: max(at[1] - at[0].oldest_ms, 0) / 1000 if at[0].oldest_ms else 0, _SUBSCRIPTION,
           "pulsar_storage_backlog_age_seconds"),
    Family("ledger_subscription_lag_messages", "Rows from the first unacknowledged position to the end", "gauge",
           lambda at: at[0].lag_rows, _SUBSCRIPTION),
    Family("ledger_subscription_lag_bytes", "Bytes from the first unacknowledged position to the end", "gauge",
           lambda at: at[0].lag_bytes, _SUBSCRIPTION),
    Family("ledger_subscription_lag_seconds", "Time from the first unacknowledged entry to the newest entry", "gauge",
           lambda at: at[0].lag_ms / 1000, _SUBSCRIPTION),
    Family("ledger_subscription_holes", "Ranges acknowledged beyond the first unacknowledged position", "gauge",
           lambda at: at[0].holes, _SUBSCRIPTION, "pulsar_ml_cursor_nonContiguousDeletedMessagesRange"),
    Family("ledger_subscription_connected", "Number of connected readers, 0 or 1 for one subscription", "gauge",
           lambda at: at[0].leases, _SUBSCRIPTION),
    Family("ledger_subscription_redelivered_messages", "Rows redelivered", "counter",
           lambda at: at[0].redelivered_rows, _SUBSCRIPTION),
    Family("ledger_subscription_dead_letters", "Rows moved to the dead-letter ledger", "counter",
           lambda at: at[0].dead_letter_rows, _SUBSCRIPTION),
)  # fmt: skip

_Broker = Family[BrokerMetrics]
BROKER_FAMILIES: tuple[_Broker, ...] = (
    Family("ledger_start_time_seconds", "Time of the broker's start", "gauge", lambda now: now.started_ms / 1000),
    Family("ledger_ledgers", "Ledgers of the store, each partition counted", "gauge", lambda now: now.ledger_count,
           pulsar="pulsar_topics_count"),
    Family("ledger_open_ledgers", "Ledgers that are open", "gauge", lambda now: now.open_ledgers),
    Family("ledger_unreadable_ledgers", "Ledgers that cannot be opened", "gauge", lambda now: len(now.unreadable)),
    Family("ledger_given_up_ledgers", "Ledgers that accept no append until the broker is restarted", "gauge",
           lambda now: len(now.given_up)),
    Family("ledger_connections", "Connections at the last count", "gauge", lambda now: now.connections,
           pulsar="pulsar_active_connections"),
    Family("ledger_append_queue_bytes", "Bytes that wait for a sync", "gauge", lambda now: now.append_queue_bytes),
    Family("ledger_trim_latency_seconds", "Time in which retention deletes the expired segments of one ledger",
           "histogram", lambda now: now.trim_latency),
    Family("ledger_trim_failures", "Failures of retention", "counter", lambda now: now.trim_failures),
    Family("ledger_offload_waiting", "Ledgers that wait for their offload", "gauge", lambda now: now.offload.waiting),
    Family("ledger_offload_segments", "Segments offloaded", "counter", lambda now: now.offload.segments),
    Family("ledger_offload_bytes", "Bytes offloaded", "counter", lambda now: now.offload.size_bytes),
    Family("ledger_offload_failures", "Segments whose offload failed", "counter", lambda now: now.offload.failures,
           pulsar="pulsar_ledgeroffloader_offload_error"),
    Family("ledger_offload_latency_seconds", "Time of the offload of one segment", "histogram",
           lambda now: now.offload.latency, pulsar="pulsar_ledgeroffloader_*_latency"),
    Family("ledger_publish_latency_seconds", "Time of the publication of one segment to a table", "histogram",
           lambda now: now.publish_latency),
)  # fmt: skip
DIRECT_FAMILIES: tuple[_Broker, ...] = (
    Family("ledger_direct_parts", "Direct parts of committed batches", "counter", lambda now: now.parts.direct),
    Family("ledger_direct_part_bytes", "Bytes of these parts", "counter", lambda now: now.parts.direct_bytes),
    Family("ledger_staged_parts", "Parts of committed batches that tasks sent to the broker", "counter",
           lambda now: now.parts.staged),
    Family("ledger_staged_part_bytes", "Bytes of these parts", "counter", lambda now: now.parts.staged_bytes),
    Family("ledger_copied_parts", "Direct parts that the broker copied within the bucket, because the ledger got "
           "another segment before the commit", "counter", lambda now: now.parts.copied),
    Family("ledger_copied_part_bytes", "Bytes of these parts", "counter", lambda now: now.parts.copied_bytes),
    Family("ledger_swept_parts", "Uploads of tasks that no committed batch needs, and that the broker therefore "
           "deletes", "counter", lambda now: now.parts.swept),
    Family("ledger_direct_read_entries", "Entries that tasks fetched from a bucket by themselves", "counter",
           lambda now: now.cache.direct_entries),
    Family("ledger_direct_read_bytes", "Bytes of these entries", "counter", lambda now: now.cache.direct_bytes),
)  # fmt: skip
CACHE_FAMILIES: tuple[_Broker, ...] = (
    Family("ledger_ml_cache_used_size", "Bytes in the cache's memory", "gauge", lambda now: now.cache.size_bytes,
           pulsar="pulsar_ml_cache_used_size"),
    Family("ledger_ml_cache_limit_size", "Limit of the cache's memory in bytes", "gauge",
           lambda now: now.cache.limit_bytes),
    Family("ledger_ml_cache_local_file_size", "Bytes of local files that are probably in the page cache",
           "gauge", lambda now: now.cache.local_file_bytes),
    Family("ledger_ml_cache_evictions", "Evictions that started because memory was needed", "counter",
           lambda now: now.cache.evictions,
           pulsar="pulsar_ml_cache_evictions"),
    Family("ledger_ml_cache_requeues", "Ranges that eviction kept because a reader still needs them", "counter",
           lambda now: now.cache.requeues),
    Family("ledger_ml_cache_inserted_entries", "Entries inserted into the cache", "counter",
           lambda now: now.cache.inserted, pulsar="pulsar_ml_cache_inserted_entries_total"),
    Family("ledger_ml_cache_evicted_entries", "Entries evicted from the cache", "counter",
           lambda now: now.cache.evicted, pulsar="pulsar_ml_cache_evicted_entries_total"),
    Family("ledger_ml_cache_expected_reads", "Pairs of a cached entry and a reader that still needs the entry", "gauge",
           lambda now: now.cache.expected_reads),
    Family("ledger_ml_cache_non_evictable_size", "Cached bytes that a reader still needs", "gauge",
           lambda now: now.cache.non_evictable_bytes),
    Family("ledger_ml_reads_inflight_bytes", "Bytes being read from storage", "gauge",
           lambda now: now.cache.inflight_read_bytes, pulsar="pulsar_ml_reads_inflight_bytes"),
)  # fmt: skip
DECISION_FAMILIES: tuple[Family[CacheDecision], ...] = (
    Family("ledger_ml_cache_decision_entries", "Entries about which the eviction policy decided, by decision",
           "counter", lambda made: made.entries, ("policy", "decision")),
)  # fmt: skip
ERROR_FAMILIES: tuple[Family[int], ...] = (
    Family("ledger_errors", "Errors of calls, by code", "counter", lambda count: count, ("code",)),
)
REQUEST_FAMILIES: tuple[Family[LatencyHistogram], ...] = (
    Family("ledger_request_latency_seconds", "Time of a call, by action", "histogram", lambda latency: latency,
           ("action",)),
)  # fmt: skip
OBJECT_COUNT_FAMILIES: tuple[Family[int], ...] = (
    Family("ledger_object_requests", "Requests to S3, by operation and result (ok or failed)", "counter",
           lambda count: count, ("operation", "result")),
)  # fmt: skip
OBJECT_FAMILIES: tuple[Family[RequestCount], ...] = (
    Family("ledger_object_request_latency_seconds", "Time of a request to S3 without its body, by operation",
           "histogram", lambda request: request.latency, ("operation",)),
)  # fmt: skip
INFO: _Broker = Family(
    "ledger_broker", "Version, store and epoch of the broker", "info", lambda _: 1, ("version", "store_id", "epoch")
)


def tables(metrics: BrokerMetrics) -> Iterator[Table]:
    """Yield all families with their values."""
    yield Table([INFO], [((metrics.version, metrics.store_id, str(metrics.epoch)), [1])])
    yield _table((*BROKER_FAMILIES, *DIRECT_FAMILIES, *CACHE_FAMILIES), [((), metrics)])
    others = [(OTHERS, metrics.others)] if metrics.has_others else []
    ledgers = [*((ledger.name, ledger) for ledger in metrics.ledgers), *others]
    yield _table(LEDGER_FAMILIES, [((name,), ledger) for name, ledger in ledgers])
    yield _table(READ_FAMILIES, [row for name, ledger in ledgers for row in _reads(name, ledger)])
    cursors = [
        ((name, cursor.name), (cursor, metrics.now_ms))
        for name, ledger in ledgers
        for cursor in (*ledger.cursors, ledger.other_cursors)
        if cursor is not None
    ]
    yield _table(SUBSCRIPTION_FAMILIES, cursors)
    decisions = [((made.policy, made.decision), made) for made in metrics.cache_decisions]
    yield _table(DECISION_FAMILIES, decisions)
    yield _table(REQUEST_FAMILIES, [((action,), latency) for action, latency in metrics.requests.items()])
    yield _table(ERROR_FAMILIES, [((code,), count) for code, count in metrics.errors.items()])
    requests = metrics.object_requests
    results = [
        ((request.name, result), count)
        for request in requests
        for result, count in (("ok", request.count - request.failed), ("failed", request.failed))
    ]
    yield _table(OBJECT_COUNT_FAMILIES, results)
    yield _table(OBJECT_FAMILIES, [((request.name,), request) for request in requests])


def _table(families: Sequence[Family[T]], rows: Sequence[tuple[tuple[str, ...], T]]) -> Table:
    return Table(families, [(labels, [family.value(found) for family in families]) for labels, found in rows])


def _reads(name: str, ledger: LedgerMetrics) -> list[tuple[tuple[str, ...], tuple[int, int]]]:
    """Return the entries and bytes that were served, for each source."""
    reads = ledger.reads
    sources = {
        "memory": (reads.memory_hits, reads.memory_hit_bytes),
        "page cache": (reads.page_cache_hits, reads.page_cache_hit_bytes),
        "local file": (reads.file_misses, reads.file_miss_bytes),
        "object storage": (reads.object_misses, reads.object_miss_bytes),
    }
    return [((name, source), served) for source, served in sources.items()]
