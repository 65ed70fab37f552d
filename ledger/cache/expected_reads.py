"""Who reads one managed ledger now, and what each of them has still to read.

A *reader* is an active cursor: a subscription whose query is alive, or a query without one. What it has still to read
is a set, not a counter: everything from its position on (its end, if it has one), less what it was served since, and
what it was told to read again. The expected reads of a span are the readers for which the span holds any of that.

Rules, and what of Spark's habits they are for
- `served` takes entries out of the set: a retried or speculative task, or a second job over the same batch, is served
  the same entries again and changes nothing.
- `commit` moves the position: whatever the batch did not ask for is settled with it. It never moves back.
- `reset` moves it anywhere and forgets what was served: all of it is expected again. `again` does so for some entries.
- A reader that is not heard of until `until_ms` is gone, and nothing is expected for it any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pyspark_ledger.ledger.cache.active_cursors import ActiveCursors, LazyCursors
from pyspark_ledger.ledger.position import LATEST, Position, PositionRange
from pyspark_ledger.ledger.positions.entry_ranges import EntryRanges


@dataclass(slots=True)
class Reader:
    """One reader. `at` is how far it was served without a gap: where it reads next."""

    name: str
    position: Position
    at: Position
    end: Position
    until_ms: int
    served: EntryRanges = field(default_factory=EntryRanges)
    again: EntryRanges = field(default_factory=EntryRanges)


def entry_number(position: Position) -> int:
    """How many entries are before a position, in a log of one ledger."""
    return position.entry_id


class Span(Protocol):
    """Entries `[first, end)` of a segment."""

    ledger_id: int
    first: int
    end: int


class LedgerReaders:
    """The readers of one ledger; what a span of it has to expect.

    `number` answers how many entries of the log are before a position, `end` where the log ends.
    """

    def __init__(
        self,
        number: Callable[[Position], int] = entry_number,
        end: Callable[[], Position] | None = None,
        cursors: Callable[[], ActiveCursors] = LazyCursors,
    ) -> None:
        self.number = number
        self._end = end
        self._readers: dict[str, Reader] = {}
        self._positions = cursors()
        self._next = cursors()
        self._serving: dict[str, Reader] = {}  # those with anything in `served`, `again` or with an end
        self._left_ms: int | None = None

    def __len__(self) -> int:
        return len(self._readers)

    def __contains__(self, name: object) -> bool:
        return name in self._readers

    @property
    def next_places(self) -> ActiveCursors:
        """Where each of them reads next."""
        return self._next

    @property
    def left_ms(self) -> int | None:
        """When the last of them left; None while there is one, and when there never was."""
        return None if self._readers else self._left_ms

    def names(self) -> list[str]:
        """All of them, sorted."""
        return sorted(self._readers)

    def slowest(self) -> Position | None:
        """The first position that any of them has not committed."""
        return self._positions.slowest()

    def position(self, name: str) -> Position | None:
        """Where a reader stands; None when it is not known."""
        reader = self._readers.get(name)
        return None if reader is None else reader.position

    def place(self, name: str, *, acknowledged: bool = False) -> Position:
        """Where a reader reads next, or how far it has acknowledged."""
        reader = self._readers[name]
        return reader.position if acknowledged else reader.at

    def backlogs(self) -> dict[str, int]:
        """Entries between where each reader reads next and the end of the log."""
        if self._end is None:
            return dict.fromkeys(self._readers, 0)
        end = self.number(self._end())
        return {reader.name: max(end - self.number(reader.at), 0) for reader in self._readers.values()}

    def follow(self, name: str, position: Position, until_ms: int, end: Position = LATEST) -> None:
        """A reader is there until `until_ms`, and stands at `position`: one that is known already has committed it."""
        reader = self._readers.get(name)
        if reader is None:
            reader = self._readers[name] = Reader(name, position, position, end, until_ms)
            self._place(reader)
        reader.until_ms = max(reader.until_ms, until_ms)
        self.commit(name, position)

    def keep(self, name: str, until_ms: int) -> None:
        """A reader was heard of."""
        reader = self._readers.get(name)
        if reader is not None:
            reader.until_ms = max(reader.until_ms, until_ms)

    def commit(self, name: str, position: Position) -> None:
        """It needs nothing before `position` any more."""
        reader = self._readers.get(name)
        if reader is None or position <= reader.position:
            return
        reader.position = position
        reader.served.discard_before(position)
        reader.again.discard_before(position)
        reader.at = max(reader.at, position)
        self._place(reader)

    def served(self, name: str, ledger_id: int, first: int, end: int) -> None:
        """It was served entries `[first, end)` of a ledger, completely."""
        reader = self._readers.get(name)
        if reader is None:
            return
        reader.again.discard(ledger_id, first, end)
        if Position(ledger_id, end) > reader.position:
            reader.served.add(ledger_id, first, end)
            if reader.at.ledger_id < ledger_id and first == 0:
                reader.at = Position(ledger_id, 0)  # whether the ledger before is read to its end, its index knows
            reader.at = reader.served.end_of(reader.at)
        self._place(reader)

    def again(self, name: str, range_: PositionRange) -> None:
        """Entries of a range of one ledger are going to be read again: not acknowledged, or queued for replay."""
        reader, start, end = self._readers.get(name), range_.start, range_.end
        if reader is None:
            return
        reader.served.discard(start.ledger_id, start.entry_id, end.entry_id)
        if start < reader.position:
            last = end.entry_id
            if reader.position.ledger_id == start.ledger_id:
                last = min(last, reader.position.entry_id)
            reader.again.add(start.ledger_id, start.entry_id, last)
        self._place(reader)

    def reset(self, name: str, position: Position) -> None:
        """It begins anew at `position`, back or forth."""
        reader = self._readers.get(name)
        if reader is not None:
            reader.position = reader.at = position
            reader.served, reader.again = EntryRanges(), EntryRanges()
            self._place(reader)

    def leave(self, name: str, now_ms: int) -> None:
        """It reads no more."""
        if self._readers.pop(name, None) is None:
            return
        self._positions.remove(name)
        self._next.remove(name)
        self._serving.pop(name, None)
        self._left_ms = now_ms

    def expire(self, now_ms: int) -> list[str]:
        """Readers that were not heard of in time leave; their names."""
        gone = [reader.name for reader in self._readers.values() if reader.until_ms <= now_ms]
        for name in gone:
            self.leave(name, now_ms)
        return gone

    def of(self, span: Span) -> int:
        """Readers that have still to read any of a span."""
        return self.expected(span.ledger_id, span.first, span.end)

    def expected(self, ledger_id: int, first: int, end: int, *, but: str = "") -> int:
        """Readers, `but` one, that have still to read any of entries `[first, end)`."""
        count = self._positions.at_or_before(Position(ledger_id, end - 1))
        for reader in self._serving.values():
            count += _has_to_read(reader, ledger_id, first, end) - (reader.position < Position(ledger_id, end))
        left_out = self._readers.get(but)
        if left_out is not None:
            count -= _has_to_read(left_out, ledger_id, first, end)
        return count

    def check(self) -> None:
        """Assert the invariants; for tests."""
        assert len(self._positions) == len(self._next) == len(self._readers)  # noqa: S101 — what the method is for
        for reader in self._readers.values():
            assert reader.at >= reader.position, reader  # noqa: S101 — as above
            reader.served.check()
            reader.again.check()
            assert all(part.end > reader.position for part in reader.served), reader  # noqa: S101 — as above

    def _place(self, reader: Reader) -> None:
        self._positions.place(reader.name, reader.position)
        self._next.place(reader.name, reader.at)
        if reader.served or reader.again or reader.end != LATEST:
            self._serving[reader.name] = reader
        else:
            self._serving.pop(reader.name, None)


def _has_to_read(reader: Reader, ledger_id: int, first: int, end: int) -> bool:
    if reader.again.touches(ledger_id, first, end):
        return True
    position, limit = reader.position, reader.end
    if position.ledger_id > ledger_id or limit.ledger_id < ledger_id:
        return False
    if position.ledger_id == ledger_id:
        first = max(first, position.entry_id)
    if limit.ledger_id == ledger_id:
        end = min(end, limit.entry_id)
    return first < end and not reader.served.covers(ledger_id, first, end)
