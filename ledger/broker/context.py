"""Objects that all servers of one broker share."""

from __future__ import annotations

import threading
from pathlib import Path

from pyspark_ledger.ledger.broker.end_waits import EndWaits
from pyspark_ledger.ledger.broker.error_log import ErrorLog
from pyspark_ledger.ledger.broker.limits import Activity, BrokerLimits
from pyspark_ledger.ledger.broker.live_settings import LiveSettings
from pyspark_ledger.ledger.broker.metrics import MetricsCollector
from pyspark_ledger.ledger.broker.reads.cached_reads import CachedReads
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.metrics.calls import CallMetrics
from pyspark_ledger.ledger.store.store import Store


class BrokerContext:
    """Objects that all servers of one broker share: the store, what bounds its calls, and what counts them.

    A client of this host finds `token`, a secret, in the file `token_path`.
    """

    def __init__(
        self,
        store: Store,
        cache: CachedReads,
        settings: LiveSettings,
        *,
        token: str,
        token_path: Path,
        clock: Clock,
        monotonic_ms: Clock,
    ) -> None:
        self.store, self.cache, self.settings = store, cache, settings
        self.token, self.token_path = token, token_path
        self.activity = Activity(monotonic_ms)
        self.admission = BrokerLimits(settings, monotonic_ms)
        self.errors = ErrorLog()
        self.calls = CallMetrics()
        self.metrics = MetricsCollector(store, cache, self.calls, self.errors, self.admission, clock)
        self.stopping = threading.Event()
        """Set when the broker is about to end: by a call, or by a signal."""
        self.waits = EndWaits(store, self.stopping, monotonic_ms)
        cache.on_moved = self.waits.changed
