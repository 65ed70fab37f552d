"""Metrics of a broker, collected from the counters of all its parts.

A *listed* ledger has metrics of its own. A setting limits the number of listed ledgers. The metrics of all other
ledgers are summed.

Rules
- Up to the limit, new ledgers are listed: first open ledgers, then all other ledgers by name.
- A listed ledger stays listed until it is deleted. Reason: to a monitor, a counter that disappears and returns looks
  like a restart.
- A collection also opens listed ledgers that nobody has used since the start, because they may have a backlog. It does
  this for at most `_OPENING_SECONDS`, so that a collection is short. The next collection opens more ledgers.
- If a ledger cannot be opened, the metrics contain its error. The broker tries again after `_RETRY_SECONDS`.
- A collection reads no file of an open ledger. It estimates backlogs from the counts of its segments (files).
"""

from __future__ import annotations

import threading
from itertools import islice
from time import monotonic

from pyspark_ledger.ledger.broker.error_log import ErrorLog
from pyspark_ledger.ledger.broker.limits import BrokerLimits
from pyspark_ledger.ledger.broker.reads.cached_reads import CachedReads
from pyspark_ledger.ledger.broker.telemetry.ledger_metrics import ledger_metrics, other_ledgers
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import LedgerError, NotFound
from pyspark_ledger.ledger.location import location_text
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.metrics.calls import CallMetrics
from pyspark_ledger.ledger.metrics.counters import OBJECT_REQUESTS
from pyspark_ledger.ledger.metrics.latencies import LONG_BOUNDS, Latencies
from pyspark_ledger.ledger.protocol.metrics import AskMetrics, BrokerMetrics, CacheDecision, ReportPublished
from pyspark_ledger.ledger.protocol.request import Empty
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.version import __version__

_OPENING_SECONDS = 0.3
_RETRY_SECONDS = 60.0
_HOUR_MS = 3_600_000


class MetricsCollector:
    """Collector of one broker's metrics. Any thread may call any method. One collection runs at a time."""

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
        self._publish_latencies = Latencies(LONG_BOUNDS)
        # The cursors with metrics of their own, for each listed ledger.
        self._listed: dict[str, dict[str, None]] = {}
        self._unreadable: dict[str, tuple[str, float]] = {}

    def collect(self, request: AskMetrics) -> BrokerMetrics:
        """Return the present metrics."""
        with self._lock:
            return self._collect(request)

    def _collect(self, request: AskMetrics) -> BrokerMetrics:
        store, names = self._store, self._store.log_names()
        listed = self._listed_ledgers(names, request.ledgers)
        caches = {ledger.cache.name: ledger for ledger in self._cache.cache.ledgers()}
        now_ms = self._clock()
        metrics = [
            ledger_metrics(store, ledger, caches.get(ledger.name), self._listed[ledger.name], request.cursors, now_ms)
            for ledger in listed
        ]
        shown = {ledger.name for ledger in listed}
        others = [(ledger, caches.get(ledger.name)) for ledger in store.opened() if ledger.name not in shown]
        return BrokerMetrics(
            now_ms=now_ms,
            started_ms=self._started_ms,
            version=__version__,
            store_id=store.store_id,
            store_path=location_text(store.path),
            epoch=store.epoch,
            ledger_count=len(names),
            open_ledgers=len(store.opened()),
            ledgers=metrics,
            others=other_ledgers(store, others, metrics, now_ms),
            unreadable={name: error for name, (error, _) in self._unreadable.items()},
            append_latency=store.append_latencies.state(),
            sync_latency=store.sync_latencies.state(),
            requests=self._calls.durations(),
            errors=self._calls.errors.state(),
            recent_errors=self._errors.since(now_ms - _HOUR_MS),
            given_up={name: str(error) for name, error in store.given_up().items()},
            cache=self._cache.sums.now(),
            offload=store.offloads.metrics(),
            parts=store.direct.counter.state(),
            object_requests=OBJECT_REQUESTS.state(),
            connections=self._limits.connections.count,
            append_queue_bytes=self._limits.in_flight.size,
            trim_latency=store.trim_latencies.state(),
            trim_failures=store.upkeep.failures,
            publish_latency=self._publish_latencies.state(),
            cache_decisions=[
                CacheDecision(policy, decision, entries)
                for (policy, decision), entries in sorted(self._cache.cache.decisions().items())
            ],
        )

    def report_published(self, report: ReportPublished) -> Empty:
        """Count a publication that a publisher reports."""
        self._store.ledger(report.name).published.add(report)
        if not report.failed:
            self._publish_latencies.observe(report.milliseconds / 1000)
        return Empty()

    def _listed_ledgers(self, names: list[str], most: int) -> list[ManagedLedger]:
        existing = set(names)
        for gone in [name for name in (*self._listed, *self._unreadable) if name not in existing]:
            self._listed.pop(gone, None)
            self._unreadable.pop(gone, None)
        for name in (*(ledger.name for ledger in self._store.opened()), *names):
            if len(self._listed) >= most:
                break
            if name in existing:
                self._listed.setdefault(name, {})
        until = monotonic() + _OPENING_SECONDS
        opened = (self._opened(name, until) for name in islice(self._listed, most))
        return [ledger for ledger in opened if ledger is not None]

    def _opened(self, name: str, until: float) -> ManagedLedger | None:
        """Return a ledger. Return None if it cannot be opened, or if it is not open and the time `until` has passed."""
        ledger = self._store.opened_ledger(name)
        failed_at = self._unreadable.get(name, ("", 0.0))[1]
        if ledger is not None or monotonic() > until or (failed_at and monotonic() < failed_at + _RETRY_SECONDS):
            return ledger
        try:
            ledger = self._store.ledger(name)
        except NotFound:
            return None  # the ledger was deleted in the meantime
        except (LedgerError, OSError) as error:
            self._unreadable[name] = str(error), monotonic()
            return None
        self._unreadable.pop(name, None)
        return ledger
