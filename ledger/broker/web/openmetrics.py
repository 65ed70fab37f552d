"""Metrics of a broker as text for Prometheus. `docs/metrics.md` is printed from this module.

    # HELP ledger_in_messages Rows appended
    # TYPE ledger_in_messages counter
    ledger_in_messages_total{ledger="public/default/persistent/orders"} 7

Rules
- A name follows Pulsar's, with `ledger_` instead of `pulsar_`, if Pulsar has the metric: `ledger_in_bytes_total`.
- Rows are called messages, as in Pulsar.
- Label `ledger` is the canonical name. Ledgers that are not listed are summed as `others`.
- A family is present even without a sample.
- The text is OpenMetrics 1.0 or Prometheus' format 0.0.4. They differ in the head of a counter and in the last line.
- The text is written here, because the library's writer takes four times the processor time of the rest of a scrape.

Sources: https://prometheus.io/docs/specs/om/open_metrics_spec/, https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from pyspark_ledger.ledger.protocol.metrics import BrokerMetrics, CursorMetrics, LatencyHistogram, LedgerMetrics

OTHERS = "others"
_LEDGER = ("ledger",)
_SUBSCRIPTION = ("ledger", "subscription")
_READS = ("ledger", "source")


class Family(NamedTuple):
    """Name, meaning and labels of a metric. A counter's name has no `_total`, which the text adds."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    counter: bool = False
    pulsar: str = ""


LEDGER_FAMILIES = (
    Family("ledger_in_messages", "Rows appended", _LEDGER, True, "pulsar_in_messages_total"),
    Family("ledger_in_bytes", "Bytes of entries appended", _LEDGER, True, "pulsar_in_bytes_total"),
    Family("ledger_in_entries", "Entries appended", _LEDGER, True),
    Family("ledger_in_requests", "Appends acknowledged", _LEDGER, True),
    Family("ledger_storage_size", "Bytes of entries stored", _LEDGER, pulsar="pulsar_storage_size"),
    Family(
        "ledger_storage_offloaded_size", "Bytes of entries in object storage", _LEDGER,
        pulsar="pulsar_storage_offloaded_size",
    ),
    Family("ledger_storage_entries", "Entries stored", _LEDGER),
    Family("ledger_messages", "Rows appended since the ledger was created", _LEDGER),
    Family("ledger_segments", "Segments", _LEDGER),
    Family("ledger_offloaded_segments", "Segments in object storage", _LEDGER),
    Family("ledger_last_publish_timestamp_seconds", "Time of the newest entry", _LEDGER),
    Family("ledger_cached_bytes", "Bytes of the ledger that the cache holds or accounts for", _LEDGER),
    Family("ledger_trimmed_segments", "Segments that retention deleted", _LEDGER, True),
    Family("ledger_trimmed_bytes", "Bytes that retention deleted", _LEDGER, True),
    Family("ledger_unpublished_messages", "Rows that at least one table of the ledger lacks", _LEDGER),
)  # fmt: skip
READ_FAMILIES = (
    Family("ledger_out_entries", "Entries served, by source", _READS, True),
    Family("ledger_out_bytes", "Bytes served, by source", _READS, True, "pulsar_out_bytes_total"),
)
SUBSCRIPTION_FAMILIES = (
    Family(
        "ledger_subscription_back_log", "Unacknowledged rows", _SUBSCRIPTION, pulsar="pulsar_subscription_back_log"
    ),
    Family("ledger_subscription_back_log_entries", "Unacknowledged entries", _SUBSCRIPTION),
    Family("ledger_subscription_back_log_bytes", "Unacknowledged bytes", _SUBSCRIPTION),
    Family(
        "ledger_subscription_back_log_age_seconds", "Age of the oldest unacknowledged entry, 0 without one",
        _SUBSCRIPTION, pulsar="pulsar_storage_backlog_age_seconds",
    ),
    Family(
        "ledger_subscription_holes", "Ranges acknowledged beyond the first unacknowledged position", _SUBSCRIPTION,
        pulsar="pulsar_ml_cursor_nonContiguousDeletedMessagesRange",
    ),
    Family("ledger_subscription_connected", "1 if a reader is connected, else 0", _SUBSCRIPTION),
    Family("ledger_subscription_redelivered_messages", "Rows redelivered", _SUBSCRIPTION, True),
    Family("ledger_subscription_dead_letters", "Rows moved to the dead-letter ledger", _SUBSCRIPTION, True),
)  # fmt: skip
LATENCY_FAMILIES = (
    Family(
        "ledger_storage_write_latency_seconds", "Time from an append to its acknowledgement, one append of each group",
        pulsar="pulsar_storage_write_latency_le_*",
    ),
    Family("ledger_storage_sync_latency_seconds", "Time of a sync of one segment file"),
    Family("ledger_request_latency_seconds", "Time of a call, by action", ("action",)),
)  # fmt: skip
BROKER_FAMILIES = (
    Family("ledger_start_time_seconds", "Time of the broker's start"),
    Family("ledger_ledgers", "Ledgers of the store, each partition counted", pulsar="pulsar_topics_count"),
    Family("ledger_open_ledgers", "Ledgers that are open"),
    Family("ledger_unreadable_ledgers", "Ledgers that cannot be opened"),
    Family("ledger_given_up_ledgers", "Ledgers that accept no append until the broker is restarted"),
    Family("ledger_connections", "Connections at the last count", pulsar="pulsar_active_connections"),
    Family("ledger_append_queue_bytes", "Bytes that wait for a sync"),
    Family("ledger_ml_cache_used_size", "Bytes in the cache's memory", pulsar="pulsar_ml_cache_used_size"),
    Family("ledger_ml_cache_limit_size", "Limit of the cache's memory in bytes"),
    Family("ledger_ml_cache_local_file_size", "Bytes of local files that the cache accounts for"),
    Family("ledger_ml_cache_evictions", "Passes of eviction by size", (), True, "pulsar_ml_cache_evictions"),
    Family("ledger_ml_cache_requeues", "Entries that eviction kept for expected reads", (), True),
    Family(
        "ledger_ml_cache_inserted_entries", "Entries inserted into the cache", (), True,
        "pulsar_ml_cache_inserted_entries_total",
    ),
    Family(
        "ledger_ml_cache_evicted_entries", "Entries evicted from the cache", (), True,
        "pulsar_ml_cache_evicted_entries_total",
    ),
    Family("ledger_ml_cache_expected_reads", "Cached entries times the readers that still need them"),
    Family("ledger_ml_cache_non_evictable_size", "Cached bytes that a reader still needs"),
    Family("ledger_ml_reads_inflight_bytes", "Bytes being read from storage", pulsar="pulsar_ml_reads_inflight_bytes"),
    Family("ledger_offload_waiting", "Ledgers that wait for their offload"),
    Family("ledger_offload_segments", "Segments offloaded", (), True),
    Family("ledger_offload_bytes", "Bytes offloaded", (), True),
    Family(
        "ledger_offload_failures", "Segments whose offload failed", (), True, "pulsar_ledgeroffloader_offload_error"
    ),
)  # fmt: skip
_INFO = Family("ledger_broker", "Version, store and epoch of the broker")
COUNT_FAMILIES = (
    Family("ledger_errors", "Errors of calls, by code", ("code",), True),
    Family(
        "ledger_object_requests", "Requests to S3, by operation and result (ok or failed)", ("operation", "result"),
        True,
    ),
)  # fmt: skip


Row = tuple[str, Sequence[float | None]]
"""Text of the labels, and one value for each family."""
Kind = Literal["counter", "gauge", "histogram", "info"]


def exposition(metrics: BrokerMetrics, *, openmetrics: bool) -> bytes:
    """Return the text of a broker's metrics."""
    lines = [line for family in _families(metrics, openmetrics=openmetrics) for line in family]
    return "\n".join([*lines, *(["# EOF"] if openmetrics else []), ""]).encode()


def _families(metrics: BrokerMetrics, *, openmetrics: bool) -> Iterator[list[str]]:
    """Yield the lines of each family."""

    def table(kinds: Iterable[Family], rows: Iterable[Row]) -> Iterator[list[str]]:
        listed = list(rows)
        for at, kind in enumerate(kinds):
            name = f"{kind.name}_total" if kind.counter else kind.name
            values = [(labels, values[at]) for labels, values in listed]
            lines = [f"{name}{labels} {value}" for labels, value in values if value is not None]
            yield _head(kind, "counter" if kind.counter else "gauge", openmetrics=openmetrics) + lines

    broker = {"version": metrics.version, "store_id": metrics.store_id, "epoch": str(metrics.epoch)}
    info = f"ledger_broker_info{_labels(tuple(broker), tuple(broker.values()))} 1"
    yield [*_head(_INFO, "info", openmetrics=openmetrics), info]
    yield from table(BROKER_FAMILIES, [("", _broker_values(metrics))])
    others = [(OTHERS, metrics.others)] if metrics.ledger_count > len(metrics.ledgers) else []
    ledgers = [*((ledger.name, ledger) for ledger in metrics.ledgers), *others]
    yield from table(LEDGER_FAMILIES, [(_labels(_LEDGER, (name,)), _ledger_values(ledger)) for name, ledger in ledgers])
    yield from table(READ_FAMILIES, [row for name, ledger in ledgers for row in _read_rows(name, ledger)])
    subscriptions = [
        (_labels(_SUBSCRIPTION, (ledger.name, cursor.name)), _cursor_values(cursor, metrics.now_ms))
        for ledger in metrics.ledgers
        for cursor in ledger.cursors
    ]
    yield from table(SUBSCRIPTION_FAMILIES, subscriptions)
    latencies: list[dict[tuple[str, ...], LatencyHistogram]] = [
        {(): metrics.append_latency},
        {(): metrics.sync_latency},
        {(action,): latency for action, latency in metrics.requests.items()},
    ]
    for kind, rows in zip(LATENCY_FAMILIES, latencies, strict=True):
        yield _head(kind, "histogram", openmetrics=openmetrics) + _histogram(kind, rows)
    errors, objects = COUNT_FAMILIES
    yield from table([errors], [(_labels(errors.labels, (code,)), [count]) for code, count in metrics.errors.items()])
    results = [
        (_labels(objects.labels, (request.name, result)), [count])
        for request in metrics.object_requests
        for result, count in (("ok", request.count - request.failed), ("failed", request.failed))
    ]
    yield from table([objects], results)


def _head(kind: Family, type_: Kind, *, openmetrics: bool) -> list[str]:
    name, shown = kind.name, type_
    if not openmetrics and type_ == "counter":
        name = f"{name}_total"
    if not openmetrics and type_ == "info":
        name, shown = f"{name}_info", "gauge"
    return [f"# HELP {name} {kind.meaning}", f"# TYPE {name} {shown}"]


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    """Return the text of labels. Backslashes, quotes and line feeds of values are escaped."""
    if not names:
        return ""
    escaped = (value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for value in values)
    return "{" + ",".join(f'{name}="{value}"' for name, value in zip(names, escaped, strict=True)) + "}"


def _histogram(kind: Family, rows: dict[tuple[str, ...], LatencyHistogram]) -> list[str]:
    lines = []
    for values, latency in rows.items():
        bounds = [*map(repr, latency.bounds), "+Inf"]
        for bound, count in zip(bounds, accumulate(latency.counts), strict=True):
            lines.append(f"{kind.name}_bucket{_labels((*kind.labels, 'le'), (*values, bound))} {count}")
        labels = _labels(kind.labels, values)
        lines += [f"{kind.name}_count{labels} {latency.count}", f"{kind.name}_sum{labels} {latency.total}"]
    return lines


def _broker_values(metrics: BrokerMetrics) -> list[float | None]:
    """Return the values of `BROKER_FAMILIES`."""
    cache, offload = metrics.cache, metrics.offload
    return [
        metrics.started_ms / 1000, metrics.ledger_count, metrics.open_ledgers, len(metrics.unreadable),
        len(metrics.given_up), metrics.connections, metrics.append_queue_bytes,
        cache.size_bytes, cache.limit_bytes, cache.local_file_bytes, cache.evictions, cache.requeues,
        cache.inserted, cache.evicted, cache.expected_reads, cache.non_evictable_bytes, cache.inflight_read_bytes,
        offload.waiting, offload.segments, offload.size_bytes, offload.failures,
    ]  # fmt: skip


def _ledger_values(ledger: LedgerMetrics) -> list[float | None]:
    """Return the values of `LEDGER_FAMILIES`."""
    appended = ledger.appended
    return [
        appended.rows, appended.size_bytes, appended.entries, appended.appends,
        ledger.size_bytes, ledger.offloaded_bytes, ledger.entries, ledger.rows,
        ledger.segments, ledger.offloaded_segments, ledger.last_publish_ms / 1000, ledger.cached_bytes,
        ledger.trimmed_segments, ledger.trimmed_bytes, ledger.unpublished_rows,
    ]  # fmt: skip


def _read_rows(name: str, ledger: LedgerMetrics) -> list[Row]:
    """Return the values of `READ_FAMILIES` for each source."""
    reads = ledger.reads
    sources = {
        "memory": [reads.memory_hits, reads.memory_hit_bytes],
        "page cache": [reads.page_cache_hits, reads.page_cache_hit_bytes],
        "local file": [reads.file_misses, reads.file_miss_bytes],
        "object storage": [reads.object_misses, reads.object_miss_bytes],
    }
    return [(_labels(_READS, (name, source)), values) for source, values in sources.items()]


def _cursor_values(cursor: CursorMetrics, now_ms: int) -> list[float | None]:
    """Return the values of `SUBSCRIPTION_FAMILIES`."""
    age = max(now_ms - cursor.oldest_ms, 0) / 1000 if cursor.oldest_ms else 0
    return [
        cursor.backlog_rows, cursor.backlog_entries, cursor.backlog_bytes, age, cursor.holes, int(cursor.leased),
        cursor.redelivered_rows, cursor.dead_letter_rows,
    ]  # fmt: skip
