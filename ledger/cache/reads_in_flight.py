"""Reads of storage that are under way, so that whoever wants the same entries waits for them instead.

A wanted range is cut into parts: those that somebody reads already, whose future is shared, and those that nobody
does, which the caller has to read now. It must settle each of its own, whatever happens.

Invariants: the ranges under way of one ledger are disjoint; one that is settled is under way no more. The caller holds
the cache's lock in `claim` and `settle`, so that nothing is read twice between the two.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class PendingRead(Generic[T]):
    """Entries `[first, end)` of a ledger on their way from storage."""

    ledger_id: int
    first: int
    end: int
    future: Future[T] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class ReadPart(Generic[T]):
    """Entries `[first, end)` of a pending read; `own`: the caller has to do it."""

    read: PendingRead[T]
    first: int
    end: int
    own: bool


class PendingReads(Generic[T]):
    """The reads under way of one managed ledger."""

    def __init__(self) -> None:
        self._reads: dict[int, list[PendingRead[T]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._reads.values()))

    def claim(self, ledger_id: int, first: int, end: int) -> list[ReadPart[T]]:
        """The parts of `[first, end)`, in order."""
        under_way = self._reads.setdefault(ledger_id, [])
        overlapping = [read for read in under_way if read.first < end and read.end > first]
        parts, at = [], first
        for read in sorted(overlapping, key=lambda read: read.first):
            if read.first > at:
                parts.append(self._begin(ledger_id, at, read.first))
            start, at = max(read.first, first), min(read.end, end)
            parts.append(ReadPart(read, start, at, own=False))
        if at < end:
            parts.append(self._begin(ledger_id, at, end))
        return parts

    def settle(self, read: PendingRead[T]) -> None:
        """It is not under way any more; its future is its reader's to complete."""
        under_way = self._reads[read.ledger_id]
        under_way.remove(read)
        if not under_way:
            del self._reads[read.ledger_id]

    def _begin(self, ledger_id: int, first: int, end: int) -> ReadPart[T]:
        read = PendingRead[T](ledger_id, first, end)
        self._reads[ledger_id].append(read)
        return ReadPart(read, first, end, own=True)
