"""Metrics of a broker: the counters of its parts, read together.

Rules
- A ledger that was listed once stays listed until it is deleted. Reason: a series that comes and goes looks like a
  restart. New ledgers are listed in this order: open ones first, then by name, while there is room.
- A collection opens ledgers for at most `_OPENING_SECONDS`. Reason: backlogs of ledgers that nobody has used since the
  start count too, and a collection must be short. The next collection opens more.
- A ledger that cannot be opened is named with its error, and tried again after `_RETRY_SECONDS`.
- A collection reads no segment file of an open ledger: backlogs are estimated from the segments' counts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import islice
from time import monotonic

from pyspark_ledger.ledger.broker.error_log import ErrorLog
from pyspark_ledger.ledger.broker.limits import BrokerLimits
from pyspark_ledger.ledger.broker.reads.cached_reads import CachedReads
from pyspark_ledger.ledger.cache.ledger_cache import LedgerCache
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import LedgerError, NotFound
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.metrics.calls import CallMetrics
from pyspark_ledger.ledger.metrics.counters import OBJECT_REQUESTS
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.cache import ReadSources
from pyspark_ledger.ledger.protocol.cursors import CursorState, NameCursor
from pyspark_ledger.ledger.protocol.ledgers import is_published, published_everywhere
from pyspark_ledger.ledger.protocol.metrics import (
    AppendCounts,
    AskMetrics,
    BrokerMetrics,
    CursorMetrics,
    LedgerMetrics,
)
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.version import __version__

_OPENING_SECONDS = 0.3
_RETRY_SECONDS = 60.0
_HOUR_MS = 3_600_000


class MetricsCollector:
    """Collector of one broker's metrics. Any thread may call; one collection runs at a time."""

    def __init__(
        self,
        store: Store,
        cache: CachedReads,
        calls: CallMetrics,
        errors: ErrorLog,
        limits: BrokerLimits,
        clock: Clock,
    ) -> None:
        self._store = store
        self._cache = cache
        self._calls = calls
        self._errors = errors
        self._limits = limits
        self._clock = clock
        self._started_ms = clock()
        self._lock = threading.Lock()
        self._listed: dict[str, None] = {}
        self._unreadable: dict[str, tuple[str, float]] = {}

    def collect(self, request: AskMetrics) -> BrokerMetrics:
        """Return the metrics of this moment."""
        with self._lock:
            return self._collect(request.ledgers)

    def _collect(self, most: int) -> BrokerMetrics:
        store, names = self._store, self._store.log_names()
        listed = self._listed_ledgers(names, most)
        caches = {ledger.cache.name: ledger for ledger in self._cache.cache.ledgers()}
        metrics = [_ledger_metrics(store, ledger, caches.get(ledger.name)) for ledger in listed]
        shown = {ledger.name for ledger in listed}
        others = [ledger for ledger in store.opened() if ledger.name not in shown]
        now_ms = self._clock()
        return BrokerMetrics(
            now_ms=now_ms,
            started_ms=self._started_ms,
            version=__version__,
            store_id=store.store_id,
            store_path=str(store.path),
            epoch=store.epoch,
            ledger_count=len(names),
            open_ledgers=len(store.opened()),
            ledgers=[ledger for ledger in metrics if ledger is not None],
            others=_sum(_log_metrics(ledger, caches.get(ledger.name)) for ledger in others),
            unreadable={name: error for name, (error, _) in self._unreadable.items()},
            append_latency=store.append_latencies.state(),
            sync_latency=store.sync_latencies.state(),
            requests=self._calls.durations(),
            errors=self._calls.errors.state(),
            recent_errors=self._errors.since(now_ms - _HOUR_MS),
            given_up={name: str(error) for name, error in store.given_up().items()},
            cache=self._cache.sums.now(),
            offload=store.offloads.metrics(),
            object_requests=OBJECT_REQUESTS.state(),
            connections=self._limits.connections.count,
            append_queue_bytes=self._limits.in_flight.size,
        )

    def _listed_ledgers(self, names: list[str], most: int) -> list[ManagedLedger]:
        existing = set(names)
        for gone in [name for name in (*self._listed, *self._unreadable) if name not in existing]:
            self._listed.pop(gone, None)
            self._unreadable.pop(gone, None)
        for name in (*(ledger.name for ledger in self._store.opened()), *names):
            if len(self._listed) >= most:
                break
            if name in existing:
                self._listed.setdefault(name)
        until = monotonic() + _OPENING_SECONDS
        opened = (self._opened(name, until) for name in islice(self._listed, most))
        return [ledger for ledger in opened if ledger is not None]

    def _opened(self, name: str, until: float) -> ManagedLedger | None:
        """Return a ledger. Return None if it cannot be opened, or if it is not open and the time is over."""
        ledger = self._store.opened_ledger(name)
        failed_at = self._unreadable.get(name, ("", 0.0))[1]
        if ledger is not None or monotonic() > until or (failed_at and monotonic() < failed_at + _RETRY_SECONDS):
            return ledger
        try:
            ledger = self._store.ledger(name)
        except NotFound:
            return None  # deleted meanwhile
        except (LedgerError, OSError) as error:
            self._unreadable[name] = str(error), monotonic()
            return None
        self._unreadable.pop(name, None)
        return ledger


def _ledger_metrics(store: Store, ledger: ManagedLedger, cached: LedgerCache | None) -> LedgerMetrics | None:
    """Return the metrics of a ledger with its cursors, None if it was deleted meanwhile."""
    snapshot = ledger.snapshot
    cursors = []
    for name in store.cursors.names(ledger.name):
        try:
            state = store.cursors.describe(NameCursor(ledger.name, name, precise=False))
        except NotFound:
            continue
        cursors.append(_cursor_metrics(store, state, snapshot))
    return _log_metrics(ledger, cached, cursors)


def _cursor_metrics(store: Store, state: CursorState, snapshot: LogSnapshot) -> CursorMetrics:
    left = PositionRange(max(state.next_position, snapshot.start), snapshot.end)
    redelivered, dead = store.deliveries.counts(state.ledger, state.cursor)
    return CursorMetrics(
        state.cursor,
        state.backlog_entries,
        state.backlog_rows,
        state.backlog_bytes,
        snapshot.first_timestamp_ms(left) if left and state.backlog_rows else 0,
        state.acknowledged_ranges,
        store.cursors.is_leased(state.ledger, state.cursor),
        redelivered,
        dead,
    )


def _log_metrics(
    ledger: ManagedLedger, cached: LedgerCache | None, cursors: Iterable[CursorMetrics] = ()
) -> LedgerMetrics:
    snapshot = ledger.snapshot
    segments = snapshot.segments
    offloaded = [segment for segment in segments if segment.offloaded is not None]
    trimmed_segments, trimmed_bytes = ledger.trimmed
    return LedgerMetrics(
        name=ledger.name,
        segments=len(segments),
        offloaded_segments=len(offloaded),
        offloaded_bytes=sum(segment.size_bytes for segment in offloaded),
        entries=segments.entries(0, len(segments)),
        rows=snapshot.rows,
        size_bytes=segments.size_bytes(0, len(segments)),
        last_publish_ms=snapshot.last_timestamp_ms(),
        appended=ledger.appended,
        reads=ReadSources() if cached is None else _reads(cached),
        cached_bytes=0 if cached is None else cached.cache.size,
        trimmed_segments=trimmed_segments,
        trimmed_bytes=trimmed_bytes,
        unpublished_rows=_unpublished_rows(ledger, snapshot),
        cursors=list(cursors),
    )


def _reads(cached: LedgerCache) -> ReadSources:
    return ReadSources(**{name: getattr(cached.counts, name) for name in ReadSources.__struct_fields__})


def _unpublished_rows(ledger: ManagedLedger, snapshot: LogSnapshot) -> int | None:
    """Return the rows that follow the newest segment that is in all tables; None for a log without a table."""
    properties = ledger.properties
    if not is_published(properties):
        return None
    return snapshot.rows - snapshot.rows_before(Position(published_everywhere(properties) + 1, 0))


def _sum(parts: Iterable[LedgerMetrics]) -> LedgerMetrics:
    """Return the sums of ledgers that are not listed, without cursors."""
    listed = list(parts)

    def total(name: str) -> int:
        return sum(getattr(part, name) for part in listed)

    counts = (sum(getattr(part.appended, name) for part in listed) for name in AppendCounts.__struct_fields__)
    reads = {name: sum(getattr(part.reads, name) for part in listed) for name in ReadSources.__struct_fields__}
    return LedgerMetrics(
        name="",
        segments=total("segments"),
        offloaded_segments=total("offloaded_segments"),
        offloaded_bytes=total("offloaded_bytes"),
        entries=total("entries"),
        rows=total("rows"),
        size_bytes=total("size_bytes"),
        cached_bytes=total("cached_bytes"),
        trimmed_segments=total("trimmed_segments"),
        trimmed_bytes=total("trimmed_bytes"),
        last_publish_ms=max((part.last_publish_ms for part in listed), default=0),
        appended=AppendCounts(*counts),
        reads=ReadSources(**reads),
    )
