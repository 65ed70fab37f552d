"""How long nobody has wanted anything of a broker: calls in flight, when the last one ended, and who holds a lease.

A query whose trigger comes once an hour calls nobody in between; its lease says that it will be back.
"""

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
        self._held: dict[str, int] = {}

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
        """Milliseconds since the last call ended; 0 while one is running or a lease is held."""
        with self._lock:
            now = self._clock()
            self._held = {key: until for key, until in self._held.items() if until > now}
            return 0 if self._running or self._held else now - self._last_ms

    def hold(self, key: str, milliseconds: int) -> None:
        """Somebody holds a lease for so long from now; 0: no more."""
        with self._lock:
            self._held[key] = self._clock() + milliseconds
