"""Active readers of one managed ledger, and the entries that they still have to read: their expected reads.

A *reader* is a subscription with a running query, or a query without a subscription. Its expected reads are a set of
entries. The set has all entries after the reader's position, without the entries that were already served. It also has
earlier entries that the reader will read again. The number of expected reads of a range is the number of readers that
still have to read one of its entries.

Rules, and the behaviour of Spark that requires them
- `served` removes entries from the set. Spark may retry a task, run it twice, or read a batch in two jobs. Then the
  same entries are served again, and the set does not change.
- `commit` moves a reader's position forward, which removes the rest of the batch from the set. A commit never moves
  the position back.
- `reset` moves the position anywhere, and all entries after it are expected again. `again` adds a range of entries.
- A registered reader must report before the time `until_ms`. Otherwise it is removed with its expected reads.

`ActiveCursors` has the positions of the readers in a sorted list, and counts the readers at or before a position. A
move of a reader is only recorded. The list is sorted before the next count, because moves are far more frequent than
counts.

Invariants
- A reader is in the list once. Several readers may have the same position.
- A reader that has moved or was removed is never counted at its old position.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark_ledger.ledger.clock import DueTimes
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.entry_ranges import EntryRanges

_Placed = tuple[int, int, str]


class ActiveCursors:
    """Positions of readers in a list that is sorted on demand. The cost of a move does not depend on the other readers.

    A count first moves the changed readers to their new places. If at least half of all readers have changed, the
    whole list is sorted again. One sort is then cheaper than a removal and an insertion for each reader.
    """

    def __init__(self) -> None:
        self._placed: dict[str, _Placed] = {}
        self._moved: dict[
            str, _Placed | None
        ] = {}  # for each moved reader its place in `_order`; None if it is not in `_order`
        self._order: list[_Placed] = []

    def __len__(self) -> int:
        return len(self._placed)

    def place(self, name: str, position: Position) -> None:
        """Add or move a reader."""
        self._moved.setdefault(name, self._placed.get(name))
        self._placed[name] = (position.ledger_id, position.entry_id, name)

    def remove(self, name: str) -> None:
        before = self._placed.pop(name, None)
        if before is not None:
            self._moved.setdefault(name, before)
        if len(self._moved) > 2 * len(self._order) + 16:  # limits the size of `_moved` if nothing is counted
            self._reconcile()

    def at_or_before(self, position: Position) -> int:
        """Count the readers at or before a position."""
        self._reconcile()
        return bisect_left(self._order, (position.ledger_id, position.entry_id + 1))

    def slowest(self) -> Position | None:
        """Return the position of the slowest reader, or None without readers."""
        self._reconcile()
        return Position(*self._order[0][:2]) if self._order else None

    def places(self) -> list[Position]:
        """Return the distinct positions of all readers, in order."""
        self._reconcile()
        return [Position(*place) for place in dict.fromkeys(placed[:2] for placed in self._order)]

    def _reconcile(self) -> None:
        """Apply the recorded moves to the sorted list."""
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
    """Reader of a ledger. It has committed all entries before `position`.

    All entries before `at` were served to it. So its next read starts at `at`.
    """

    name: str
    position: Position
    at: Position
    until_ms: int
    served: EntryRanges = field(default_factory=EntryRanges)
    again: EntryRanges = field(default_factory=EntryRanges)


def entry_number(position: Position) -> int:
    """Return the number of entries before a position, in a log of one segment (file)."""
    return position.entry_id


class LedgerReaders:
    """Readers of one ledger, and the expected reads of its ranges.

    `number` returns the number of entries before a position. `end` returns the log's end.
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
        self._serving: dict[str, Reader] = {}  # the readers with entries in `served` or `again`
        self._left_ms: int | None = None
        # A report postpones a reader's deadline, and its due time here stays. `expire` then sets the later one.
        self._deadlines = DueTimes()

    def __len__(self) -> int:
        return len(self._readers)

    def __contains__(self, name: object) -> bool:
        return name in self._readers

    @property
    def next_places(self) -> ActiveCursors:
        return self._next

    @property
    def left_ms(self) -> int | None:
        """The time at which the last reader left. None while there is a reader, and before the first reader."""
        return None if self._readers else self._left_ms

    @property
    def due_ms(self) -> int | None:
        """The time at which `expire` must be called. None without a deadline."""
        return self._deadlines.first()

    def names(self) -> list[str]:
        """Return the names of all readers, sorted."""
        return sorted(self._readers)

    def place(self, name: str, *, acknowledged: bool = False) -> Position:
        """Return the position of a reader's next read, or its committed position if `acknowledged` is set."""
        reader = self._readers[name]
        return reader.position if acknowledged else reader.at

    def backlogs(self) -> dict[str, int]:
        """Return, for each reader, the number of entries between its next read and the end of the log."""
        if self._end is None:
            return dict.fromkeys(self._readers, 0)
        end = self.number(self._end())
        return {reader.name: max(end - self.number(reader.at), 0) for reader in self._readers.values()}

    def follow(self, name: str, position: Position, until_ms: int) -> None:
        """Register a reader at `position` until `until_ms`. For a registered reader this is a commit of `position`."""
        reader = self._readers.get(name)
        if reader is None:
            reader = self._readers[name] = Reader(name, position, position, until_ms)
            self._deadlines.put(name, until_ms)
            self._place(reader)
        reader.until_ms = max(reader.until_ms, until_ms)
        self.commit(name, position)

    def keep(self, name: str, until_ms: int) -> None:
        """Extend the registration of a reader."""
        reader = self._readers.get(name)
        if reader is not None:
            reader.until_ms = max(reader.until_ms, until_ms)

    def commit(self, name: str, position: Position) -> None:
        """Record that a reader has committed all entries before `position`."""
        reader = self._readers.get(name)
        if reader is None or position <= reader.position:
            return
        reader.position = position
        reader.served.discard_before(position)
        reader.again.discard_before(position)
        reader.at = max(reader.at, position)
        self._place(reader)

    def served(self, name: str, ledger_id: int, first: int, end: int) -> None:
        """Record that entries `[first, end)` of a segment were served to a reader completely."""
        reader = self._readers.get(name)
        if reader is None:
            return
        reader.again.discard(ledger_id, first, end)
        if Position(ledger_id, end) > reader.position:
            reader.served.add(ledger_id, first, end)
            if reader.at.ledger_id < ledger_id and first == 0:
                # Assumes that the previous segment was served to its end. Its length is unknown here.
                reader.at = Position(ledger_id, 0)
            reader.at = reader.served.end_of(reader.at)
        self._place(reader)

    def again(self, name: str, range_: PositionRange) -> None:
        """Record that a reader will read entries of one segment again, such as unacknowledged entries."""
        reader, start, end = self._readers.get(name), range_.start, range_.end
        if reader is None:
            return
        reader.served.discard(start.ledger_id, start.entry_id, end.entry_id)
        reader.served.discard_before(reader.position)  # `discard` can split a range: a part before the position is left
        if start < reader.position:
            last = end.entry_id
            if reader.position.ledger_id == start.ledger_id:
                last = min(last, reader.position.entry_id)
            reader.again.add(start.ledger_id, start.entry_id, last)
        self._place(reader)

    def reset(self, name: str, position: Position) -> None:
        """Move a reader to any position. All entries after it are expected again."""
        reader = self._readers.get(name)
        if reader is not None:
            reader.position = reader.at = position
            reader.served, reader.again = EntryRanges(), EntryRanges()
            self._place(reader)

    def leave(self, name: str, now_ms: int) -> None:
        """Remove a reader."""
        if self._readers.pop(name, None) is None:
            return
        self._positions.remove(name)
        self._next.remove(name)
        self._serving.pop(name, None)
        self._left_ms = now_ms

    def expire(self, now_ms: int) -> list[str]:
        """Remove the readers that have not reported in time. Return their names."""
        gone = []
        for name in self._deadlines.take(now_ms):
            reader = self._readers.get(name)
            if reader is not None and reader.until_ms > now_ms:
                self._deadlines.put(name, reader.until_ms)
            elif reader is not None:
                self.leave(name, now_ms)
                gone.append(name)
        return gone

    def expected(self, ledger_id: int, first: int, end: int, *, except_for: str = "") -> int:
        """Count the readers, except `except_for`, that still have to read one of the entries `[first, end)`."""
        count = self._positions.at_or_before(Position(ledger_id, end - 1))
        for reader in self._serving.values():
            count += _has_to_read(reader, ledger_id, first, end) - (reader.position < Position(ledger_id, end))
        excepted = self._readers.get(except_for)
        if excepted is not None:
            count -= _has_to_read(excepted, ledger_id, first, end)
        return count

    def _place(self, reader: Reader) -> None:
        self._positions.place(reader.name, reader.position)
        self._next.place(reader.name, reader.at)
        if reader.served or reader.again:
            self._serving[reader.name] = reader
        else:
            self._serving.pop(reader.name, None)


def _has_to_read(reader: Reader, ledger_id: int, first: int, end: int) -> bool:
    """Return whether a reader still has to read one of the entries."""
    if reader.again.touches(ledger_id, first, end):
        return True
    position = reader.position
    if position.ledger_id > ledger_id:
        return False
    if position.ledger_id == ledger_id:
        first = max(first, position.entry_id)
    return first < end and not reader.served.covers(ledger_id, first, end)
