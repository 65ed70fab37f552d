"""Messages about the metrics of a broker. `ledger.protocol.actions` has the rules of all messages.

Counters count from the broker's start. Gauges have the present value. Durations in histograms are in seconds.
"""

from __future__ import annotations

from typing import Annotated, Self

import msgspec

from pyspark_ledger.ledger.protocol.cache import CacheReads, ReadSources
from pyspark_ledger.ledger.protocol.request import Empty, LedgerRequest, Request
from pyspark_ledger.ledger.settings.setting import NotNegative

LISTED_LEDGERS = 1_000
"""Default number of ledgers that are listed with their own metrics."""
LISTED_CURSORS = 100
"""Default number of cursors of one ledger that are listed with their own metrics."""
OTHERS = "others"
"""Name of the sum of all ledgers, or of all cursors of a ledger, that are not listed."""


class ReportPublished(LedgerRequest[Empty], frozen=True, action="publish.report", changes=False):
    """Report of a publisher about one segment that it has committed to a Delta table, or about a failed attempt.

    `rows` is -1 if the publisher did not count the rows. `milliseconds` is the time from the start of the segment's
    publication to its commit. With `failed`, the broker ignores the other values.
    """

    rows: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)] = 0
    size_bytes: NotNegative = 0
    milliseconds: NotNegative = 0
    failed: bool = False


class LatencyHistogram(msgspec.Struct, frozen=True):
    """Histogram of durations. `total` is the sum of all durations.

    `counts[i]` is the number of durations above `bounds[i - 1]` and up to `bounds[i]`. The last count has no upper
    bound.
    """

    bounds: list[float]
    counts: list[int]
    total: float

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self.counts)

    def since(self, earlier: Self) -> Self:
        """Return the durations since an earlier state of the histogram. A count that is lower now becomes 0."""
        counts = [max(now - before, 0) for before, now in zip(earlier.counts, self.counts, strict=True)]
        return msgspec.structs.replace(self, counts=counts, total=max(self.total - earlier.total, 0.0))

    def plus(self, other: Self) -> Self:
        """Return the sum of both histograms."""
        counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        return msgspec.structs.replace(self, counts=counts, total=self.total + other.total)

    def quantile(self, part: float) -> float:
        """Return the smallest bound that `part` (0 to 1) of the durations do not exceed.

        Returns `inf` if the last bound is too small, and 0 without durations.
        """
        required, total = part * self.count, 0
        for bound, count in zip([*self.bounds, float("inf")], self.counts, strict=True):
            total += count
            if total and total >= required:
                return bound
        return 0.0


NO_DURATIONS = LatencyHistogram([], [0], 0.0)
"""Histogram without bounds, for durations that are not measured."""


class AppendCounts(msgspec.Struct, frozen=True):
    """Counters of the appends that a log has acknowledged. `size_bytes` are the bytes of the entries as sent."""

    appends: int = 0
    entries: int = 0
    rows: int = 0
    size_bytes: int = 0


class PublishCounts(msgspec.Struct, frozen=True):
    """Counters of the segments, rows and bytes that publishers committed to tables, and of their failed attempts."""

    segments: int = 0
    rows: int = 0
    size_bytes: int = 0
    failures: int = 0


class Unpublished(msgspec.Struct, frozen=True):
    """Data that the slowest table lacks. `rows` and `size_bytes` include the open segment.

    `segments` is the number of sealed segments that the table lacks. `age_ms` is the time since the oldest of these
    segments was sealed; 0 if there is none.
    """

    rows: int = 0
    size_bytes: int = 0
    segments: int = 0
    age_ms: int = 0


class CursorMetrics(msgspec.Struct, frozen=True):
    """Backlog of a cursor in entries, rows and bytes. The broker estimates it without reading a file.

    - `oldest_ms` is the time at which the broker stored the oldest unread entry; 0 without a backlog.
    - `holes` is the number of ranges that are acknowledged after the first unacknowledged position.
    - `leased`: a query has the lease of the cursor's subscription, which is the right to use it.
    - A lag counts everything from the first unacknowledged position to the end of the log, also acknowledged entries.
      `lag_ms` is the time between the first and the last of these entries.

    In a sum of several cursors, each time is the maximum of their times.
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
    """Metrics of a ledger, or of one partition.

    - `rows` counts all rows that were ever appended. `size_bytes` is the size of the stored entries.
    - `unpublished` and `unpublished_rows` are None if the ledger is not published to a Delta table.
    - `trimmed_segments` and `trimmed_bytes` count what retention deleted.
    - A latency is None if nothing was appended since the ledger was opened.
    - `other_cursors` has the sums of the cursors that are not listed.
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
    """Offloads of the store to object storage.

    `waiting` is the number of ledgers that wait for their offload. `running` is the ledger that is offloaded now.
    `segments`, `size_bytes` and `failures` count the offloaded segments, their bytes and the failed segments.
    """

    waiting: int = 0
    running: str = ""
    running_bytes: int = 0
    running_bytes_total: int = 0
    segments: int = 0
    size_bytes: int = 0
    failures: int = 0
    latency: LatencyHistogram = NO_DURATIONS


class PartCounts(msgspec.Struct, frozen=True):
    """Counters of parts. A part is the output of one task of a sink for one ledger.

    The counters increase when the batch of a part is committed. A task itself puts a *direct* part into the store's
    bucket. The task gives a *staged* part to the broker. `copied` are direct parts that the broker copied within the
    bucket. `swept` are uploads of tasks whose objects must be deleted, because no committed batch needs them.
    """

    direct: int = 0
    direct_bytes: int = 0
    staged: int = 0
    staged_bytes: int = 0
    copied: int = 0
    copied_bytes: int = 0
    swept: int = 0


class RequestCount(msgspec.Struct, frozen=True):
    """Number of all requests and of failed requests of one operation, and the durations of all requests."""

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

    `ledgers` lists at most the requested number of ledgers. A listed ledger stays listed until it is deleted. `others`
    has the sums of the open ledgers that are not listed. `unreadable` maps each ledger that cannot be opened to the
    error. `given_up` maps each ledger that refuses appends until the broker's restart to the error. `recent_errors` are
    the newest errors of broker.log in the last hour, oldest first.
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
    parts: PartCounts = PartCounts()
    object_requests: list[RequestCount] = []
    connections: int = 0
    append_queue_bytes: int = 0
    trim_latency: LatencyHistogram = NO_DURATIONS
    trim_failures: int = 0
    publish_latency: LatencyHistogram = NO_DURATIONS
    cache_decisions: list[CacheDecision] = []

    @property
    def has_others(self) -> bool:
        """Whether `others` has values: of ledgers that are not listed, or of appends to deleted ledgers."""
        latency = self.others.append_latency
        return self.ledger_count > len(self.ledgers) or (latency is not None and latency.count > 0)


class AskMetrics(Request[BrokerMetrics], frozen=True, action="metrics", ledgers=(), changes=False):
    """Request for the metrics of a broker. The reply lists at most `ledgers` ledgers, and `cursors` cursors of each."""

    ledgers: NotNegative = LISTED_LEDGERS
    cursors: NotNegative = LISTED_CURSORS
