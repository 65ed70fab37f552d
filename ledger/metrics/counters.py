"""Counters by name: errors by code, and requests to object storage by operation.

`OBJECT_REQUESTS` counts the requests of this process to object storage. It is global because several modules create
clients of object storage, and create them again when credentials change.
"""

from __future__ import annotations

import threading
from collections import Counter

from pyspark_ledger.ledger.metrics.latencies import Latencies
from pyspark_ledger.ledger.protocol.metrics import RequestCount


class Counters:
    """Counts by name since the start of the process. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counter[str]()

    def add(self, name: str, count: int = 1) -> None:
        """Raise the counter of a name."""
        with self._lock:
            self._counts[name] += count

    def state(self) -> dict[str, int]:
        """Return all counts, sorted by name."""
        with self._lock:
            return dict(sorted(self._counts.items()))


class RequestCounters:
    """Counts of requests and of failed requests, and durations, by operation. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[str, Latencies] = {}
        self._failed = Counters()

    def add(self, name: str, seconds: float, *, failed: bool) -> None:
        """Count one request."""
        with self._lock:
            latencies = self._sent.setdefault(name, Latencies())
        latencies.observe(seconds)
        if failed:
            self._failed.add(name)

    def state(self) -> list[RequestCount]:
        """Return the counts, sorted by operation."""
        failed = self._failed.state()
        with self._lock:
            sent = sorted(self._sent.items())
        states = [(name, latencies.state()) for name, latencies in sent]
        return [RequestCount(name, state.count, failed.get(name, 0), state) for name, state in states]


OBJECT_REQUESTS = RequestCounters()
