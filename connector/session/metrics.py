"""Metrics of ledgers in Spark's progress, for people and for Prometheus: lag, cache, and the reason of a batch's end.

Rules
- The metrics are the fields of `connector.read.progress`. Sources of other formats are ignored.
- A query without a name is shown by its id.
- The gauges of a query are removed when the query ends. Otherwise a gauge would keep its last value, and look like a
  lag that stays.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from pyspark_ledger.connector.read.progress import parse_source_identity, source_report
from pyspark_ledger.connector.session.listeners import add_listener
from pyspark_ledger.ledger.names import short_name

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent


@dataclass(frozen=True, slots=True)
class LedgerProgress:
    """Figures of one ledger in one batch of one query.

    The lag is the data that the query has not read at the end of the batch. `waited_ms` is the age of the oldest entry
    in the lag.
    `mapped_bytes` were read by memory mapping (mmap) on the broker's host. `sent_bytes` were sent by the broker.
    """

    query: str
    batch: int
    rows: int
    ledger: str
    subscription: str
    lag_entries: int
    lag_rows: int
    lag_bytes: int
    waited_ms: int
    ended_by: str
    mapped_bytes: int
    sent_bytes: int
    cache_hit_rate: float | None
    memory_bytes: int = 0
    page_cache_bytes: int = 0
    local_file_bytes: int = 0
    object_storage_bytes: int = 0
    direct_bytes: int = 0

    def __str__(self) -> str:
        lag = f"{self.lag_rows:,} rows, {self.lag_bytes:,} bytes, {self.waited_ms / 1000:.1f} s behind"
        read = f"{self.mapped_bytes:,} bytes mapped, {self.sent_bytes:,} sent"
        read += f", {self.direct_bytes:,} fetched by tasks" if self.direct_bytes else ""
        hits = "" if self.cache_hit_rate is None else f", {self.cache_hit_rate:.0%} from the cache"
        sources = ", ".join(f"{size:,} by {name}" for name, size in self._sources() if size)
        hits += f": {sources}" if sources else ""
        return (
            f"{self.query} batch {self.batch}: {self.rows:,} rows ({self.ended_by}); "
            f"{short_name(self.ledger)} {lag if self.lag_entries else 'up to date'}; {read}{hits}"
        )

    def _sources(self) -> tuple[tuple[str, int], ...]:
        """Return the served bytes of each kind of storage."""
        return (
            ("memory", self.memory_bytes),
            ("the page cache", self.page_cache_bytes),
            ("local files", self.local_file_bytes),
            ("object storage", self.object_storage_bytes),
        )


def ledgers_of(progress: Mapping[str, Any]) -> list[LedgerProgress]:
    """Return the metrics of the ledgers in a progress: `query.lastProgress`, or the JSON value of a progress.

    Parses the member `json` of `lastProgress`, because its other members differ between releases of Spark.
    """
    text = getattr(progress, "json", None)
    value = json.loads(text) if isinstance(text, str) else progress
    found = []
    for source in value.get("sources", []):
        report = source_report(source)
        origin = parse_source_identity(report)
        if origin is None:
            continue
        reads = report["reads"]
        for name, lag in report["ledgers"].items():
            found.append(
                LedgerProgress(
                    query=str(value.get("name") or value.get("id")),
                    batch=int(value.get("batchId", -1)),
                    rows=int(source.get("numInputRows", 0)),
                    ledger=name,
                    subscription=origin.subscription,
                    lag_entries=int(lag["lagEntries"]),
                    lag_rows=int(lag["lagRows"]),
                    lag_bytes=int(lag["lagBytes"]),
                    waited_ms=int(lag["lagMs"]),
                    ended_by=str(report["batch"]["endedBy"]),
                    mapped_bytes=int(reads["mappedBytes"]),
                    sent_bytes=int(reads["sentBytes"]),
                    cache_hit_rate=reads["cacheHitRate"],
                    memory_bytes=int(reads.get("memoryBytes", 0)),
                    page_cache_bytes=int(reads.get("pageCacheBytes", 0)),
                    local_file_bytes=int(reads.get("localFileBytes", 0)),
                    object_storage_bytes=int(reads.get("objectStorageBytes", 0)),
                    direct_bytes=int(reads.get("directBytes", 0)),
                )
            )
    return found


class ProgressWatch(StreamingQueryListener):
    """Listener of a session's queries: calls `show` for each ledger of each batch, and `ended` with a query's name."""

    def __init__(self, show: Callable[[LedgerProgress], None], ended: Callable[[str], None] = lambda _: None) -> None:
        self._show = show
        self._ended = ended
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Do nothing: there is no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = json.loads(event.progress.json)
        for ledger in ledgers_of(progress):
            self._names[str(progress.get("runId"))] = ledger.query
            self._show(ledger)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing: nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        name = self._names.pop(str(event.runId), None)
        if name is not None:
            self._ended(name)


def print_line(ledger: LedgerProgress) -> None:
    """Print one line on standard error, where a notebook or a driver's log shows it."""
    print(ledger, file=sys.stderr, flush=True)  # noqa: T201  # the output for the user


class PrometheusGauges:
    """Gauges `ledger_stream_…`, labelled by query, ledger and subscription."""

    _LABELS = ("query", "ledger", "subscription")
    GAUGES: Mapping[str, str] = {
        "batch_rows": "Rows of the last batch",
        "lag_entries": "Entries after the end of the last batch",
        "lag_rows": "Rows after the end of the last batch",
        "lag_bytes": "Bytes after the end of the last batch",
        "lag_seconds": "Age of the oldest entry after the end of the last batch",
        "mapped_bytes": "Bytes that readers read by memory mapping (mmap) since the previous trigger",
        "sent_bytes": "Bytes that the broker sent since the previous trigger",
        "direct_bytes": "Bytes that tasks fetched from a bucket by themselves since the previous trigger",
        "memory_bytes": "Bytes served from the cache's memory since the previous trigger",
        "page_cache_bytes": "Bytes served by the page cache since the previous trigger",
        "local_file_bytes": "Bytes read from local files since the previous trigger",
        "object_storage_bytes": "Bytes read from object storage since the previous trigger",
        "cache_hit_ratio": "Share of served entries that were not read from storage",
    }

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Gauge

        self._gauges = {
            name: Gauge(f"ledger_stream_{name}", text, self._LABELS, registry=registry)
            for name, text in self.GAUGES.items()
        }
        self._shown: set[tuple[str, str, str]] = set()

    def show(self, seen: LedgerProgress) -> None:
        labels = (seen.query, seen.ledger, seen.subscription)
        self._shown.add(labels)
        made = {
            "batch_rows": seen.rows,
            "lag_seconds": seen.waited_ms / 1000,
            "cache_hit_ratio": seen.cache_hit_rate or 0.0,
        }
        for name, gauge in self._gauges.items():
            gauge.labels(*labels).set(made[name] if name in made else getattr(seen, name))

    def forget(self, query: str) -> None:
        for labels in [labels for labels in self._shown if labels[0] == query]:
            self._shown.discard(labels)
            for gauge in self._gauges.values():
                gauge.remove(*labels)


def watch(
    spark: SparkSession,
    show: Callable[[LedgerProgress], None] | None = None,
    prometheus: CollectorRegistry | None = None,
) -> ProgressWatch:
    """Listen to a session's queries. Print a line for each ledger of each batch, or call `show`, or set gauges."""
    if prometheus is not None:
        gauges = PrometheusGauges(prometheus)
        listener = ProgressWatch(gauges.show if show is None else _both(gauges.show, show), gauges.forget)
    else:
        listener = ProgressWatch(show or print_line)
    add_listener(spark, listener)
    return listener


def _both(
    first: Callable[[LedgerProgress], None], second: Callable[[LedgerProgress], None]
) -> Callable[[LedgerProgress], None]:
    def show(seen: LedgerProgress) -> None:
        first(seen)
        second(seen)

    return show
