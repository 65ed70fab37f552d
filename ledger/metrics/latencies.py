"""Histogram of durations with fixed bounds.

    bounds   0.5 ms   1 ms   2.5 ms  …  10 s   (none)
    counts        3      7        1  …     0        0     number of durations up to this bound, above the bound before

Invariants
- A duration is in exactly one count.
- The counts and the sum that `state` returns cover the same durations.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from pyspark_ledger.ledger.protocol.metrics import LatencyHistogram

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds in seconds: from the sync of a fast device to the sync of a stalled device."""
LONG_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 1800.0)
"""Bounds in seconds for work on whole segments."""


class Latencies:
    """Histogram of the durations since it was created. Any thread may call any method."""

    def __init__(self, bounds: Sequence[float] = BOUNDS) -> None:
        self._lock = threading.Lock()
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Add a duration to the histogram, `times` times."""
        at = bisect_left(self._bounds, seconds)
        with self._lock:
            self._counts[at] += times
            self._total += seconds * times

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the duration of the block, also if it raises."""
        started_s = perf_counter()
        try:
            yield
        finally:
            self.observe(perf_counter() - started_s)

    def state(self) -> LatencyHistogram:
        """Return the present histogram."""
        with self._lock:
            return LatencyHistogram(list(self._bounds), list(self._counts), self._total)
