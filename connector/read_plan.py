"""What one batch reads, as values: how many parts a range is cut into, and how far a limit lets it go.

Rules: plans are pure functions of the range and the immutable log, so that a batch planned again is the same batch.
A partition costs tens of milliseconds whatever it holds: few when little is read, by size when much is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ledger.position import Position, PositionRange
from ledger.protocol import SplitPart

# Parts asked for at once while a limit is narrowed down; each round divides what is left by as much.
_NARROWING = 32
# A range in between is cut into this many parts.
_PARTS_OF_A_MIDDLING_RANGE = 4

Split = Callable[[PositionRange, int, int], list[SplitPart]]
"""`split(range, target_bytes, max_parts)`: the range cut at entries, as the broker does it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most one batch may hold. None: no limit."""

    rows: int | None = None
    size_bytes: int | None = None

    def __bool__(self) -> bool:
        return self.rows is not None or self.size_bytes is not None

    def __str__(self) -> str:
        given = {"maxRowsPerTrigger": self.rows, "maxBytesPerTrigger": self.size_bytes}
        return " or ".join(name for name, limit in given.items() if limit is not None)

    def allow(self, rows: int, size_bytes: int) -> bool:
        """Whether so much is within the limits."""
        return (self.rows is None or rows <= self.rows) and (self.size_bytes is None or size_bytes <= self.size_bytes)


def part_bytes(total_bytes: int, least: int, target: int) -> int:
    """About how many bytes one partition reads of a range of `total_bytes`."""
    if total_bytes <= least:
        return max(total_bytes, 1)
    return max(least, min(target, -(-total_bytes // _PARTS_OF_A_MIDDLING_RANGE)))


def plan_partitions(split: Split, range_: PositionRange, least: int, target: int) -> list[SplitPart]:
    """The partitions of a range: one when it is small, else of about `target` bytes."""
    if not range_:
        return []
    whole = split(range_, 2**62, 1)
    total = sum(part.size_bytes for part in whole)
    if not sum(part.entries for part in whole) or total <= least:
        return [part for part in whole if part.entries]
    parts = split(range_, part_bytes(total, least, target), 4096)
    return [part for part in parts if part.entries]


def admitted_end(split: Split, range_: PositionRange, limits: Limits) -> Position:
    """How far a batch may read from the start of the range: all that the limits allow, at least one entry."""
    start, end, stop, rows, size, pieces = range_.start, range_.start, range_.end, 0, 0, _NARROWING
    while True:
        parts = [part for part in split(PositionRange(end, stop), 1, pieces) if part.entries]
        for part in parts:
            if not limits.allow(rows + part.rows, size + part.size_bytes):
                break
            rows, size, end = rows + part.rows, size + part.size_bytes, part.range.end
        else:
            return end if parts else stop
        if part.entries == 1:
            return part.range.end if end == start else end
        # A large entry after many small ones may come back uncut: then ask for finer pieces.
        pieces = pieces * _NARROWING if len(parts) == 1 else _NARROWING
        stop = part.range.end
