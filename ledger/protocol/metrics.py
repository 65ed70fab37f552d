"""Messages about the metrics of a broker: a part of `ledger.protocol.actions`.

Counters rise from the broker's start. Gauges are the values of the moment. Times of histograms are in seconds.
"""

from __future__ import annotations

from typing import Annotated, Self

import msgspec

from pyspark_ledger.ledger.protocol.cache import CacheReads, ReadSources
from pyspark_ledger.ledger.protocol.names import Name
from pyspark_ledger.ledger.settings.setting import NotNegative

LISTED_LEDGERS = 1_000
"""The default number of ledgers that have metrics of their own."""
LISTED_CURSORS = 100
"""The default number of cursors of one ledger that have metrics of their own."""
OTHERS = "others"
"""Name of the sum of all ledgers, or of all cursors of a ledger, that are not listed."""


class AskMetrics(msgspec.Struct, frozen=True):
    """Request for the metrics of a broker, and the maximum number of ledgers and of cursors that are listed singly."""

    ledgers: NotNegative = LISTED_LEDGERS
    cursors: NotNegative = LISTED_CURSORS


class ReportPublished(msgspec.Struct, frozen=True):
    """Report of a publisher: a segment that it has committed to a table, or a pass that failed.

    `rows` is -1 if the rows were not counted. `milliseconds` is the time from the start of the segment's publication to
    its commit. With `failed`, the other values are ignored.
    """

    name: Name
    rows: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)] = 0
    size_bytes: NotNegative = 0
    milliseconds: NotNegative = 0
    failed: bool = False


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

    def since(self, earlier: Self) -> Self:
        """Return the durations between an earlier moment and this one. Counts that fell since are 0."""
        counts = [max(now - before, 0) for before, now in zip(earlier.counts, self.counts, strict=True)]
        return msgspec.structs.replace(self, counts=counts, total=max(self.total - earlier.total, 0.0))

    def plus(self, other: Self) -> Self:
        """Return the durations of both."""
        counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        return msgspec.structs.replace(self, counts=counts, total=self.total + other.total)

    def quantile(self, part: float) -> float:
        """Return the bound below which `part` (0 to 1) of the durations lie, `inf` beyond the last; 0 without any."""
        wanted, seen = part * self.count, 0
        for bound, count in zip([*self.bounds, float("inf")], self.counts, strict=True):
            seen += count
            if seen and seen >= wanted:
                return bound
        return 0.0


NO_DURATIONS = LatencyHistogram([], [0], 0.0)
"""Histogram of a broker that does not measure these durations."""


class AppendCounts(msgspec.Struct, frozen=True):
    """Counters of the appends that a log acknowledged, in requests, entries, rows and bytes of entries as sent."""

    appends: int = 0
    entries: int = 0
    rows: int = 0
    size_bytes: int = 0


class PublishCounts(msgspec.Struct, frozen=True):
    """Counters of publications to tables, as publishers reported them: segments, rows, bytes and failed passes."""

    segments: int = 0
    rows: int = 0
    size_bytes: int = 0
    failures: int = 0


class Unpublished(msgspec.Struct, frozen=True):
    """Distance of the slowest table from its log. `rows` and `size_bytes` include the open segment.

    `segments` are sealed. `age_ms` is the time since the oldest of them was sealed, 0 without one.
    """

    rows: int = 0
    size_bytes: int = 0
    segments: int = 0
    age_ms: int = 0


class CursorMetrics(msgspec.Struct, frozen=True):
    """Backlog of a cursor in entries, rows and bytes, estimated without reading a file.

    `oldest_ms` is the broker's time of the oldest unread entry, 0 without a backlog. `holes` are the ranges that are
    acknowledged beyond the first unacknowledged position. `leased`: a reader is connected.

    A lag covers everything from the first unacknowledged position to the end, also what is acknowledged there.
    `lag_ms` is the time between the entries at both ends. In a sum of cursors, times are the maximum.
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
    lag_rows: int = 0
    lag_bytes: int = 0
    lag_ms: int = 0
    leases: int = 0


class LedgerMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of a ledger, or of one partition. `rows` counts all rows ever, `size_bytes` what is stored.

    `unpublished` is None if the ledger has no table. `trimmed_bytes` are those that retention deleted. A latency is
    None if nothing was appended since the ledger was opened. `other_cursors` sums the cursors that are not listed.
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
    unpublished: Unpublished | None = None
    published: PublishCounts = PublishCounts()
    append_latency: LatencyHistogram | None = None
    sync_latency: LatencyHistogram | None = None
    cursors: list[CursorMetrics] = []
    other_cursors: CursorMetrics | None = None


class OffloadMetrics(msgspec.Struct, frozen=True):
    """Offloads of the store: ledgers that wait or run, and counters of segments, bytes and failed segments."""

    waiting: int = 0
    running: str = ""
    running_bytes: int = 0
    running_bytes_total: int = 0
    segments: int = 0
    size_bytes: int = 0
    failures: int = 0
    latency: LatencyHistogram = NO_DURATIONS


class RequestCount(msgspec.Struct, frozen=True):
    """Number of requests of one kind, how many of them failed, and the durations of all."""

    name: str
    count: int
    failed: int
    latency: LatencyHistogram = NO_DURATIONS


class CacheDecision(msgspec.Struct, frozen=True):
    """Number of entries about which an eviction policy made a decision: see `ledger.cache.ledger_cache`."""

    policy: str
    decision: str
    entries: int


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
    trim_latency: LatencyHistogram = NO_DURATIONS
    trim_failures: int = 0
    publish_latency: LatencyHistogram = NO_DURATIONS
    cache_decisions: list[CacheDecision] = []

    @property
    def has_others(self) -> bool:
        """Whether `others` sums anything: ledgers that are not listed, or appends of deleted ledgers."""
        latency = self.others.append_latency
        return self.ledger_count > len(self.ledgers) or (latency is not None and latency.count > 0)
