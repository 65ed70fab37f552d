"""Where the active cursors of one ledger stand, in order: how many are at or before a position, who is nearest.

Two ways to the same answers. `SortedCursors` keeps a sorted list at every move. `LazyCursors` only notes a move, in
O(1), and puts its list in order when it is asked: cursors move far more often than anybody asks.

Invariants: a name is there once; equal positions all count; what was removed or moved is never counted where it was.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Protocol

from sortedcontainers import SortedList

from pyspark_ledger.ledger.position import Position

_Placed = tuple[int, int, str]


class ActiveCursors(Protocol):
    """The cursors of one ledger. Adding a name that is there moves it; unknown names are no error, and count 0."""

    def __len__(self) -> int: ...

    def place(self, name: str, position: Position) -> None:
        """Add a cursor, or move it, in any direction."""
        ...

    def remove(self, name: str) -> None:
        """It is active no more."""
        ...

    def at_or_before(self, position: Position) -> int:
        """How many stand at or before a position."""
        ...

    def at_or_before_cursor(self, name: str) -> int:
        """How many stand where this one does or before it, itself included."""
        ...

    def nearest_behind(self, position: Position) -> Position | None:
        """The last place at or before a position where one stands."""
        ...

    def slowest(self) -> Position | None:
        """Where the first of all stands."""
        ...

    def places(self) -> list[Position]:
        """Where they stand, in order, each place once."""
        ...


class SortedCursors:
    """In order at any time: O(log n) for each move and each question."""

    def __init__(self) -> None:
        self._placed: dict[str, Position] = {}
        self._order: SortedList[_Placed] = SortedList()

    def __len__(self) -> int:
        return len(self._placed)

    def place(self, name: str, position: Position) -> None:
        """Add or move."""
        self.remove(name)
        self._placed[name] = position
        self._order.add((position.ledger_id, position.entry_id, name))

    def remove(self, name: str) -> None:
        """Remove."""
        before = self._placed.pop(name, None)
        if before is not None:
            self._order.remove((before.ledger_id, before.entry_id, name))

    def at_or_before(self, position: Position) -> int:
        """By bisection."""
        return int(self._order.bisect_left(_after(position)))

    def at_or_before_cursor(self, name: str) -> int:
        """By bisection."""
        position = self._placed.get(name)
        return 0 if position is None else self.at_or_before(position)

    def nearest_behind(self, position: Position) -> Position | None:
        """By bisection."""
        at = self.at_or_before(position)
        return Position(*self._order[at - 1][:2]) if at else None

    def slowest(self) -> Position | None:
        """The first."""
        return Position(*self._order[0][:2]) if self._order else None

    def places(self) -> list[Position]:
        """All of them."""
        return _places(list(self._order))


class LazyCursors:
    """In order when it is asked: O(1) for a move; a question first puts those in order that moved since the last.

    Few are taken out and put in again, each for the length of a memory move; when half of all or more have moved the
    list is sorted anew, those that stayed being in order already.
    """

    def __init__(self) -> None:
        self._placed: dict[str, _Placed] = {}
        self._moved: dict[str, _Placed | None] = {}  # where each that moved stands in `_order`; None: nowhere
        self._order: list[_Placed] = []

    def __len__(self) -> int:
        return len(self._placed)

    def place(self, name: str, position: Position) -> None:
        """Note it."""
        self._moved.setdefault(name, self._placed.get(name))
        self._placed[name] = (position.ledger_id, position.entry_id, name)

    def remove(self, name: str) -> None:
        """Note it."""
        before = self._placed.pop(name, None)
        if before is not None:
            self._moved.setdefault(name, before)
        if len(self._moved) > 2 * len(self._order) + 16:  # nobody asks: keep no more than there is
            self._reconcile()

    def at_or_before(self, position: Position) -> int:
        """By bisection of what is in order."""
        self._reconcile()
        return bisect_left(self._order, _after(position))

    def at_or_before_cursor(self, name: str) -> int:
        """By bisection of what is in order."""
        placed = self._placed.get(name)
        return 0 if placed is None else self.at_or_before(Position(placed[0], placed[1]))

    def nearest_behind(self, position: Position) -> Position | None:
        """By bisection of what is in order."""
        at = self.at_or_before(position)
        return Position(*self._order[at - 1][:2]) if at else None

    def slowest(self) -> Position | None:
        """The first."""
        self._reconcile()
        return Position(*self._order[0][:2]) if self._order else None

    def places(self) -> list[Position]:
        """All of them."""
        self._reconcile()
        return _places(self._order)

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


def _after(position: Position) -> tuple[int, int]:
    return (position.ledger_id, position.entry_id + 1)


def _places(order: list[_Placed]) -> list[Position]:
    found: list[Position] = []
    for ledger_id, entry_id, _ in order:
        if not found or (found[-1].ledger_id, found[-1].entry_id) != (ledger_id, entry_id):
            found.append(Position(ledger_id, entry_id))
    return found
