"""Reads of storage in flight, which all readers of the same entries share.

`claim` splits a requested range into parts. If another reader is reading a part already, the caller waits for the
future of that read. All other parts are the caller's *own* parts: it must read them, and call `settle` for each of
them, also after a failure.

Invariants
- The reads in flight of one ledger do not overlap. A read is in flight from `claim` to `settle`.
- The caller holds the cache's lock in `claim` and `settle`. So no entry is read twice at the same time.

Rules of permits, which limit the bytes of all reads in flight
- Permits are given in the order of requests. So small reads cannot delay a large read for ever.
- A read larger than the limit gets a permit while no other read is in flight.
- A read raises Unavailable after the time-out, or if too many reads wait. With a limit of 0, reads are not limited.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pyspark_ledger.ledger.errors import Unavailable

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class PendingRead(Generic[T]):
    """Read in flight of entries `[first, end)` of a segment (a file of the ledger)."""

    ledger_id: int
    first: int
    end: int
    future: Future[T] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class ReadPart(Generic[T]):
    """Entries `[first, end)` of a pending read. `own` means that the caller must perform the read."""

    read: PendingRead[T]
    first: int
    end: int
    own: bool


class PendingReads(Generic[T]):
    """Reads in flight of one managed ledger."""

    def __init__(self) -> None:
        self._reads: dict[int, list[PendingRead[T]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._reads.values()))

    def claim(self, ledger_id: int, first: int, end: int) -> list[ReadPart[T]]:
        """Return the parts of `[first, end)`, in order."""
        in_flight = self._reads.setdefault(ledger_id, [])
        overlapping = [read for read in in_flight if read.first < end and read.end > first]
        parts, at = [], first
        for read in sorted(overlapping, key=lambda read: read.first):
            if read.first > at:
                parts.append(self._begin(ledger_id, at, read.first))
            start, at = max(read.first, first), min(read.end, end)
            parts.append(ReadPart(read, start, at, own=False))
        if at < end:
            parts.append(self._begin(ledger_id, at, end))
        return parts

    def overlaps(self, ledger_id: int, first: int, end: int) -> bool:
        """Return whether an entry of `[first, end)` is being read."""
        return any(read.first < end and read.end > first for read in self._reads.get(ledger_id, ()))

    def settle(self, read: PendingRead[T]) -> None:
        """Remove a read from the reads in flight. The caller then completes its future."""
        in_flight = self._reads[read.ledger_id]
        in_flight.remove(read)
        if not in_flight:
            del self._reads[read.ledger_id]

    def _begin(self, ledger_id: int, first: int, end: int) -> ReadPart[T]:
        read = PendingRead[T](ledger_id, first, end)
        self._reads[ledger_id].append(read)
        return ReadPart(read, first, end, own=True)


class ReadPermits:
    """Permits for bytes in flight."""

    def __init__(self, limit: int = 0, timeout_ms: int = 60_000, waiting_max: int = 50_000) -> None:
        self.limit = limit
        self._timeout_ms = timeout_ms
        self._waiting_max = waiting_max
        self._used = 0
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def used(self) -> int:
        return self._used

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Hold a permit for a read of `size` bytes within the context."""
        self.acquire(size)
        try:
            yield
        finally:
            self.release(size)

    def acquire(self, size: int) -> None:
        """Wait for a permit for `size` bytes. Raises Unavailable after the time-out, or if too many reads wait."""
        ticket = object()
        with self._changed:
            if not self._waiting and self._has_room(size):
                self._used += size
                return
            if len(self._waiting) >= self._waiting_max:
                raise Unavailable(
                    f"{len(self._waiting)} reads wait for storage, at most {self._waiting_max} may",
                    hint="Raise managedLedgerMaxReadsInFlightSizeInMB",
                )
            self._waiting.append(ticket)
            try:
                if not self._changed.wait_for(
                    lambda: self._waiting[0] is ticket and self._has_room(size), self._timeout_ms / 1000
                ):
                    raise Unavailable(
                        f"a read of {size} bytes waited {self._timeout_ms} ms, while {self._used} of at most "
                        f"{self.limit} bytes were in flight",
                        hint="Raise managedLedgerMaxReadsInFlightSizeInMB",
                    )
                self._used += size
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()

    def release(self, size: int) -> None:
        with self._changed:
            self._used -= size
            self._changed.notify_all()

    def change(self, limit: int) -> None:
        with self._changed:
            self.limit = limit
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        return self.limit <= 0 or self._used == 0 or self._used + size <= self.limit
