"""How long nobody has wanted anything of a broker: calls in flight, and when the last one ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ledger.clock import Clock


class Activity:
    """Counts calls; the clock must be monotonic."""

    def __init__(self, monotonic_ms: Clock) -> None:
        self._clock = monotonic_ms
        self._lock = threading.Lock()
        self._running = 0
        self._last_ms = monotonic_ms()

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call or stream that is being served."""
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                self._last_ms = self._clock()

    def idle_ms(self) -> int:
        """Milliseconds since the last call ended; 0 while one is running."""
        with self._lock:
            return 0 if self._running else self._clock() - self._last_ms
