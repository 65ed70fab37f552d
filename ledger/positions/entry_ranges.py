"""A set of entries of one managed ledger, as disjoint half-open ranges per ledger.

Invariants: in each ledger the ranges are sorted, disjoint and never touch; none is empty. A set of what was served is
as long as a batch has gaps, so lists and bisection are enough.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from pyspark_ledger.ledger.position import Position, PositionRange


class EntryRanges:
    """Entries, added and taken away by ranges."""

    __slots__ = ("_ledgers",)

    def __init__(self) -> None:
        self._ledgers: dict[int, tuple[list[int], list[int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    def __iter__(self) -> Iterator[PositionRange]:
        for ledger_id, (starts, ends) in sorted(self._ledgers.items()):
            for start, end in zip(starts, ends, strict=True):
                yield PositionRange(Position(ledger_id, start), Position(ledger_id, end))

    def add(self, ledger_id: int, first: int, end: int) -> None:
        """Add entries `[first, end)` of a ledger; what is there already changes nothing."""
        starts, ends = self._ledgers.setdefault(ledger_id, ([], []))
        low, high = bisect_left(ends, first), bisect_right(starts, end)
        if low < high:
            first, end = min(first, starts[low]), max(end, ends[high - 1])
        starts[low:high], ends[low:high] = [first], [end]

    def discard(self, ledger_id: int, first: int, end: int) -> None:
        """Take entries `[first, end)` of a ledger away, wherever they are."""
        starts, ends = self._ledgers.get(ledger_id, ([], []))
        low, high = bisect_right(ends, first), bisect_left(starts, end)
        if low >= high:
            return
        left, right = (starts[low], first), (end, ends[high - 1])
        kept = [(start, stop) for start, stop in (left, right) if start < stop]
        starts[low:high], ends[low:high] = [start for start, _ in kept], [stop for _, stop in kept]
        if not starts:
            del self._ledgers[ledger_id]

    def discard_before(self, position: Position) -> None:
        for ledger_id in [ledger_id for ledger_id in self._ledgers if ledger_id < position.ledger_id]:
            del self._ledgers[ledger_id]
        self.discard(position.ledger_id, -1, position.entry_id)

    def covers(self, ledger_id: int, first: int, end: int) -> bool:
        """Whether all of `[first, end)` is in the set."""
        held = self._ledgers.get(ledger_id)
        if held is None:
            return first >= end
        at = bisect_right(held[0], first) - 1
        return first >= end or (at >= 0 and held[1][at] >= end)

    def end_of(self, position: Position) -> Position:
        """The end of the range that a position is in; the position itself when it is in none."""
        starts, ends = self._ledgers.get(position.ledger_id, ([], []))
        at = bisect_right(starts, position.entry_id) - 1
        return position if at < 0 or ends[at] < position.entry_id else Position(position.ledger_id, ends[at])

    def touches(self, ledger_id: int, first: int, end: int) -> bool:
        """Whether any of `[first, end)` is in the set."""
        held = self._ledgers.get(ledger_id)
        return held is not None and first < end and bisect_right(held[1], first) < bisect_left(held[0], end)
