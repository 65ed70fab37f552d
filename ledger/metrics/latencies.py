"""Histogram of durations with fixed bounds.

    bounds   0.5 ms   1 ms   2.5 ms  …  10 s   (none)
    counts        3      7        1  …     0        0     durations up to the bound, above the bound before

Invariants
- A duration is in exactly one count.
- `state` is a consistent moment: its counts and its sum are of the same durations.
"""

from __future__ import annotations

import threading
from bisect import bisect_left

from pyspark_ledger.ledger.protocol.metrics import LatencyHistogram

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds in seconds, those of a synced device up to a stalled one."""


class Latencies:
    """Durations since the start of the broker. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a duration, `times` times."""
        at = bisect_left(BOUNDS, seconds)
        with self._lock:
            self._counts[at] += times
            self._total += seconds * times

    def state(self) -> LatencyHistogram:
        """Return the histogram of this moment."""
        with self._lock:
            return LatencyHistogram(list(BOUNDS), list(self._counts), self._total)
