"""Messages about the metrics of a broker: a part of `ledger.protocol.actions`.

Counters rise from the broker's start. Gauges are the values of the moment. Times of histograms are in seconds.
"""

from __future__ import annotations

import msgspec

from pyspark_ledger.ledger.protocol.cache import CacheReads, ReadSources
from pyspark_ledger.ledger.settings.setting import NotNegative

LISTED_LEDGERS = 1_000
"""The default number of ledgers that have metrics of their own."""


class AskMetrics(msgspec.Struct, frozen=True):
    """Request for the metrics of a broker. `ledgers`: the maximum number of ledgers that are listed one by one."""

    ledgers: NotNegative = LISTED_LEDGERS


class LatencyHistogram(msgspec.Struct, frozen=True):
    """Histogram of durations. `counts[i]` are the durations up to `bounds[i]`; the last count has no bound.

    A count excludes the durations of the bounds before it. `total` is the sum of all durations.
    """

    bounds: list[float]
    counts: list[int]
    total: float

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts)

    def quantile(self, part: float) -> float:
        """Return the bound below which `part` (0 to 1) of the durations lie, `inf` beyond the last; 0 without any."""
        wanted, seen = part * self.count, 0
        for bound, count in zip([*self.bounds, float("inf")], self.counts, strict=True):
            seen += count
            if seen and seen >= wanted:
                return bound
        return 0.0


class AppendCounts(msgspec.Struct, frozen=True):
    """Counters of the appends that a log acknowledged, in requests, entries, rows and bytes of entries as sent."""

    appends: int = 0
    entries: int = 0
    rows: int = 0
    size_bytes: int = 0


class CursorMetrics(msgspec.Struct, frozen=True):
    """Backlog of a cursor in entries, rows and bytes, estimated without reading a file.

    `oldest_ms` is the broker's time of the oldest unread entry, 0 without a backlog. `holes` are the ranges that are
    acknowledged beyond the first unacknowledged position. `leased`: a reader is connected.
    """

    name: str
    backlog_entries: int
    backlog_rows: int
    backlog_bytes: int
    oldest_ms: int
    holes: int
    leased: bool
    redelivered_rows: int = 0
    dead_letter_rows: int = 0


class LedgerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of a ledger, or of one partition. `rows` counts all rows ever, `size_bytes` what is stored.

    `unpublished_rows` are the rows that at least one of its tables lacks; None if it has no table. `trimmed_bytes` are
    those that retention deleted.
    """

    name: str
    segments: int = 0
    offloaded_segments: int = 0
    offloaded_bytes: int = 0
    entries: int = 0
    rows: int = 0
    size_bytes: int = 0
    last_publish_ms: int = 0
    appended: AppendCounts = AppendCounts()
    reads: ReadSources = ReadSources()
    cached_bytes: int = 0
    trimmed_segments: int = 0
    trimmed_bytes: int = 0
    unpublished_rows: int | None = None
    cursors: list[CursorMetrics] = []


class OffloadMetrics(msgspec.Struct, frozen=True):
    """Offloads of the store: ledgers that wait or run, and counters of segments, bytes and failed segments."""

    waiting: int = 0
    running: str = ""
    running_bytes: int = 0
    running_bytes_total: int = 0
    segments: int = 0
    size_bytes: int = 0
    failures: int = 0


class RequestCount(msgspec.Struct, frozen=True):
    """Number of requests of one kind, and how many of them failed."""

    name: str
    count: int
    failed: int


class BrokerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of a broker and its store at `now_ms`.

    `ledgers` lists at most as many as were requested; a listed ledger stays listed until it is deleted. `others` sums
    those that are open and not listed. `unreadable` names the ledgers that cannot be opened, with the error.
    `recent_errors` are the newest errors of broker.log in the last hour, oldest first.
    """

    now_ms: int
    started_ms: int
    version: str
    store_id: str
    store_path: str
    epoch: int
    ledger_count: int
    open_ledgers: int
    ledgers: list[LedgerMetrics]
    others: LedgerMetrics
    unreadable: dict[str, str]
    append_latency: LatencyHistogram
    sync_latency: LatencyHistogram
    requests: dict[str, LatencyHistogram]
    errors: dict[str, int]
    recent_errors: list[str]
    given_up: dict[str, str]
    cache: CacheReads
    offload: OffloadMetrics
    object_requests: list[RequestCount] = []
    connections: int = 0
    append_queue_bytes: int = 0
