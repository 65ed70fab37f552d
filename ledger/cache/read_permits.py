"""How many bytes may be on their way from storage at once, and who waits for how long.

Rules: first come, first served, so a large read is not passed by small ones for ever; what is larger than all there is
is let through alone. Who has waited past the timeout, or finds too many waiting, is refused as Unavailable. A limit of
0 is none.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_ledger.ledger.errors import Unavailable


class ReadPermits:
    """Permits for bytes in flight."""

    def __init__(self, limit: int = 0, timeout_ms: int = 0, waiting_max: int = 0) -> None:
        self.limit = limit
        self.timeout_ms = timeout_ms
        self.waiting_max = waiting_max
        self._used = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def used(self) -> int:
        """Bytes that are on their way."""
        return self._used

    @property
    def waiting(self) -> int:
        """Reads that wait."""
        return len(self._waiting)

    @contextmanager
    def one(self, size: int) -> Iterator[None]:
        """A read of `size` bytes is on its way within."""
        self.take(size)
        try:
            yield
        finally:
            self.give_back(size)

    def take(self, size: int) -> None:
        """Wait for `size` bytes; Unavailable when that takes too long."""
        ticket = object()
        with self._changed:
            if not self._waiting and self._has_room(size):
                self._used += size
                return
            if len(self._waiting) >= self.waiting_max:
                raise Unavailable(
                    f"{len(self._waiting)} reads wait for storage, "
                    f"'managedLedgerMaxReadsInFlightPermitsAcquireQueueSize' allows {self.waiting_max}"
                )
            self._waiting.append(ticket)
            try:
                if not self._changed.wait_for(
                    lambda: self._waiting[0] is ticket and self._has_room(size), self.timeout_ms / 1000
                ):
                    raise Unavailable(
                        f"a read of {size} bytes waited {self.timeout_ms} ms while {self._used} of {self.limit} were "
                        "in flight",
                        hint="Raise managedLedgerMaxReadsInFlightSizeInMB",
                    )
                self._used += size
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()

    def give_back(self, size: int) -> None:
        """What was taken is no longer in flight."""
        with self._changed:
            self._used -= size
            self._changed.notify_all()

    def change(self, limit: int, timeout_ms: int, waiting_max: int) -> None:
        """Go by these limits from now on."""
        with self._changed:
            self.limit, self.timeout_ms, self.waiting_max = limit, timeout_ms, waiting_max
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return self.limit <= 0 or self._used == 0 or self._used + size <= self.limit
