"""Set of entries of one log, as ranges `[first, end)` of each segment (file).

Invariant: the ranges of a segment are sorted, disjoint, never adjacent and never empty.

The broker uses these sets for the entries that it has delivered to a reader. Such a set has few ranges. So sorted lists
are enough, although an insertion moves all later ranges of the list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from pyspark_ledger.ledger.position import Position, PositionRange


class EntryRanges:
    """Set of entries with insertion and removal of ranges."""

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
        """Add the entries `[first, end)` of a segment. Some may already be in the set."""
        starts, ends = self._ledgers.setdefault(ledger_id, ([], []))
        low, high = bisect_left(ends, first), bisect_right(starts, end)
        if low < high:
            first, end = min(first, starts[low]), max(end, ends[high - 1])
        starts[low:high], ends[low:high] = [first], [end]

    def discard(self, ledger_id: int, first: int, end: int) -> None:
        """Remove the entries `[first, end)` of a segment. Some may not be in the set."""
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
        """Return whether all entries `[first, end)` are in the set."""
        ranges = self._ledgers.get(ledger_id)
        if ranges is None:
            return first >= end
        at = bisect_right(ranges[0], first) - 1
        return first >= end or (at >= 0 and ranges[1][at] >= end)

    def end_of(self, position: Position) -> Position:
        """Return the end of the range that contains `position`, or `position` itself if no range contains it."""
        starts, ends = self._ledgers.get(position.ledger_id, ([], []))
        at = bisect_right(starts, position.entry_id) - 1
        return position if at < 0 or ends[at] < position.entry_id else Position(position.ledger_id, ends[at])

    def touches(self, ledger_id: int, first: int, end: int) -> bool:
        """Return whether any entry of `[first, end)` is in the set."""
        ranges = self._ledgers.get(ledger_id)
        return ranges is not None and first < end and bisect_right(ranges[1], first) < bisect_left(ranges[0], end)
