"""Active readers of one managed ledger, and their expected reads.

A *reader* is an active cursor: a subscription with a live query, or a query without a subscription. Its expected reads
are a set, not a counter: everything from its position on, without served entries, and with entries that it reads again.
The expected reads of a range are the readers that still need any of it.

Rules, and the behaviour of Spark behind them
- `served` takes entries out of the set. So a retried or speculative task, or a second job over the same batch, is
  served the same entries again and changes nothing.
- `commit` moves the position, which removes the rest of the batch too. It never moves back.
- `reset` moves it anywhere and forgets served entries: all of them are expected again. `again` does so for some.
- A reader without a report until `until_ms` is removed with its expected reads.

Active cursors are counted in order: how many are at or before a position. A move is only recorded, in O(1). The list is
sorted when it is read, because cursors move far more often than it is read.

Invariants
- A name is listed once, and equal positions all count.
- A removed or moved cursor is never counted at its old position.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.entry_ranges import EntryRanges

_Placed = tuple[int, int, str]


class ActiveCursors:
    """Cursors in order, sorted on demand: O(1) for a move; a query first re-inserts the cursors that moved since the
    last.

    A few are removed and inserted again, each for the cost of a memory move. If half of all or more have moved, the
    list is sorted again, which is fast because the others are in order.
    """

    def __init__(self) -> None:
        self._placed: dict[str, _Placed] = {}
        self._moved: dict[str, _Placed | None] = {}  # old position in `_order` of each moved cursor; None: absent
        self._order: list[_Placed] = []

    def __len__(self) -> int:
        return len(self._placed)

    def place(self, name: str, position: Position) -> None:
        self._moved.setdefault(name, self._placed.get(name))
        self._placed[name] = (position.ledger_id, position.entry_id, name)

    def remove(self, name: str) -> None:
        before = self._placed.pop(name, None)
        if before is not None:
            self._moved.setdefault(name, before)
        if len(self._moved) > 2 * len(self._order) + 16:  # without queries, keep no more than there are cursors
            self._reconcile()

    def at_or_before(self, position: Position) -> int:
        """Count the cursors at or before a position."""
        self._reconcile()
        return bisect_left(self._order, (position.ledger_id, position.entry_id + 1))

    def slowest(self) -> Position | None:
        """Return the position of the slowest cursor."""
        self._reconcile()
        return Position(*self._order[0][:2]) if self._order else None

    def places(self) -> list[Position]:
        """Return their positions, in order, each once."""
        self._reconcile()
        return [Position(*place) for place in dict.fromkeys(placed[:2] for placed in self._order)]

    def _reconcile(self) -> None:
        if not self._moved:
            return
        if 2 * len(self._moved) >= len(self._order):
            stayed = [placed for placed in self._order if placed[2] not in self._moved]
            self._order = sorted(stayed + [self._placed[name] for name in self._moved if name in self._placed])
        else:
            for name, before in self._moved.items():
                if before is not None:
                    del self._order[bisect_left(self._order, before)]
                if name in self._placed:
                    insort(self._order, self._placed[name])
        self._moved.clear()


@dataclass(slots=True)
class Reader:
    """Reader. `at` is the end of its gapless served part: its next read."""

    name: str
    position: Position
    at: Position
    until_ms: int
    served: EntryRanges = field(default_factory=EntryRanges)
    again: EntryRanges = field(default_factory=EntryRanges)


def entry_number(position: Position) -> int:
    """Count the entries before a position, in a log of one segment."""
    return position.entry_id


class LedgerReaders:
    """Readers of one ledger, and the expected reads of its ranges.

    `number` counts the entries of the log before a position, `end` is the log's end.
    """

    def __init__(
        self,
        number: Callable[[Position], int] = entry_number,
        end: Callable[[], Position] | None = None,
    ) -> None:
        self.number = number
        self._end = end
        self._readers: dict[str, Reader] = {}
        self._positions = ActiveCursors()
        self._next = ActiveCursors()
        self._serving: dict[str, Reader] = {}  # those with anything in `served` or `again`
        self._left_ms: int | None = None

    def __len__(self) -> int:
        return len(self._readers)

    def __contains__(self, name: object) -> bool:
        return name in self._readers

    @property
    def next_places(self) -> ActiveCursors:
        return self._next

    @property
    def left_ms(self) -> int | None:
        """Time at which the last reader left; None while there is one, and if there never was."""
        return None if self._readers else self._left_ms

    def names(self) -> list[str]:
        """Return the names of all readers, sorted."""
        return sorted(self._readers)

    def place(self, name: str, *, acknowledged: bool = False) -> Position:
        """Return a reader's next read, or its acknowledged position."""
        reader = self._readers[name]
        return reader.position if acknowledged else reader.at

    def backlogs(self) -> dict[str, int]:
        """Return the entries between each reader's next read and the end of the log."""
        if self._end is None:
            return dict.fromkeys(self._readers, 0)
        end = self.number(self._end())
        return {reader.name: max(end - self.number(reader.at), 0) for reader in self._readers.values()}

    def follow(self, name: str, position: Position, until_ms: int) -> None:
        """Register a reader at `position` until `until_ms`; a known reader has committed that position."""
        reader = self._readers.get(name)
        if reader is None:
            reader = self._readers[name] = Reader(name, position, position, until_ms)
            self._place(reader)
        reader.until_ms = max(reader.until_ms, until_ms)
        self.commit(name, position)

    def keep(self, name: str, until_ms: int) -> None:
        reader = self._readers.get(name)
        if reader is not None:
            reader.until_ms = max(reader.until_ms, until_ms)

    def commit(self, name: str, position: Position) -> None:
        """Record that a reader needs nothing before `position` any more."""
        reader = self._readers.get(name)
        if reader is None or position <= reader.position:
            return
        reader.position = position
        reader.served.discard_before(position)
        reader.again.discard_before(position)
        reader.at = max(reader.at, position)
        self._place(reader)

    def served(self, name: str, ledger_id: int, first: int, end: int) -> None:
        """Record that entries `[first, end)` of a segment were served completely."""
        reader = self._readers.get(name)
        if reader is None:
            return
        reader.again.discard(ledger_id, first, end)
        if Position(ledger_id, end) > reader.position:
            reader.served.add(ledger_id, first, end)
            if reader.at.ledger_id < ledger_id and first == 0:
                reader.at = Position(
                    ledger_id, 0
                )  # only the index of the segment before knows whether it is read to its end
            reader.at = reader.served.end_of(reader.at)
        self._place(reader)

    def again(self, name: str, range_: PositionRange) -> None:
        """Record that entries of a range of one segment will be read again: unacknowledged, or queued for replay."""
        reader, start, end = self._readers.get(name), range_.start, range_.end
        if reader is None:
            return
        reader.served.discard(start.ledger_id, start.entry_id, end.entry_id)
        reader.served.discard_before(reader.position)  # the rest of a range over the position
        if start < reader.position:
            last = end.entry_id
            if reader.position.ledger_id == start.ledger_id:
                last = min(last, reader.position.entry_id)
            reader.again.add(start.ledger_id, start.entry_id, last)
        self._place(reader)

    def reset(self, name: str, position: Position) -> None:
        """Restart a reader at `position`, backwards or forwards."""
        reader = self._readers.get(name)
        if reader is not None:
            reader.position = reader.at = position
            reader.served, reader.again = EntryRanges(), EntryRanges()
            self._place(reader)

    def leave(self, name: str, now_ms: int) -> None:
        if self._readers.pop(name, None) is None:
            return
        self._positions.remove(name)
        self._next.remove(name)
        self._serving.pop(name, None)
        self._left_ms = now_ms

    def expire(self, now_ms: int) -> list[str]:
        """Remove readers without a report. Return their names."""
        gone = [reader.name for reader in self._readers.values() if reader.until_ms <= now_ms]
        for name in gone:
            self.leave(name, now_ms)
        return gone

    def expected(self, ledger_id: int, first: int, end: int, *, but: str = "") -> int:
        """Count the readers, except `but`, that still need any of entries `[first, end)`."""
        count = self._positions.at_or_before(Position(ledger_id, end - 1))
        for reader in self._serving.values():
            count += _has_to_read(reader, ledger_id, first, end) - (reader.position < Position(ledger_id, end))
        left_out = self._readers.get(but)
        if left_out is not None:
            count -= _has_to_read(left_out, ledger_id, first, end)
        return count

    def _place(self, reader: Reader) -> None:
        self._positions.place(reader.name, reader.position)
        self._next.place(reader.name, reader.at)
        if reader.served or reader.again:
            self._serving[reader.name] = reader
        else:
            self._serving.pop(reader.name, None)


def _has_to_read(reader: Reader, ledger_id: int, first: int, end: int) -> bool:
    if reader.again.touches(ledger_id, first, end):
        return True
    position = reader.position
    if position.ledger_id > ledger_id:
        return False
    if position.ledger_id == ledger_id:
        first = max(first, position.entry_id)
    return first < end and not reader.served.covers(ledger_id, first, end)
