"""Time to keep the positions of many cursors in order, against a list that is sorted at every move.

In each round 50 of 1,000 cursors move forward a little. Then one query counts the cursors up to a position, as the
broker does. Ours is a container that sorts only when it is queried. The ratio is of times.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from sortedcontainers import SortedList

from benchmarks.harness import Loop, compare
from pyspark_ledger.ledger.cache.expected_reads import ActiveCursors
from pyspark_ledger.ledger.position import Position

ROUNDS = 200


class SortedCursors:
    """Sorted list of cursors: O(log n) for each move and each query."""

    def __init__(self) -> None:
        self._placed: dict[str, Position] = {}
        self._order: SortedList[tuple[int, int, str]] = SortedList()

    def place(self, name: str, position: Position) -> None:
        """Add a cursor, or move it."""
        before = self._placed.get(name)
        if before is not None:
            self._order.remove((before.ledger_id, before.entry_id, name))
        self._placed[name] = position
        self._order.add((position.ledger_id, position.entry_id, name))

    def at_or_before(self, position: Position) -> int:
        """Return the number of cursors at or before a position."""
        return int(self._order.bisect_left((position.ledger_id, position.entry_id + 1)))

    def slowest(self) -> Position | None:
        """Return the position of the slowest cursor."""
        return Position(*self._order[0][:2]) if self._order else None


def loop(make: Callable[[], ActiveCursors | SortedCursors], cursors: int, moves: int) -> Loop:
    """Return a loop of rounds of moves and one query."""

    def run() -> float:
        dice, held = random.Random(1), make()
        places = [dice.randrange(1000) for _ in range(cursors)]
        for number, place in enumerate(places):
            held.place(f"c{number}", Position(1, place))
        held.slowest()
        began = time.perf_counter()
        for _ in range(ROUNDS):
            for _ in range(moves):
                number = dice.randrange(cursors)
                places[number] += dice.randrange(1, 9)
                held.place(f"c{number}", Position(1, places[number]))
            held.at_or_before(Position(1, places[number]))
        return time.perf_counter() - began

    return run


def main() -> None:
    """Print a table of all sizes, then the comparison."""
    print(f"{'cursors':>8}{'moves':>7}{'sorted us':>11}{'lazy us':>9}   time of a move, with its part of the query")
    for cursors in (10, 1_000, 10_000):
        for moves in (1, 50, 1_000):
            found = [
                min(loop(make, cursors, moves)() or 0.0 for _ in range(2)) / ROUNDS / moves * 1e6
                for make in (SortedCursors, ActiveCursors)
            ]
            print(f"{cursors:>8}{moves:>7}{found[0]:>11.2f}{found[1]:>9.2f}", flush=True)
    compare("active_cursors", loop(ActiveCursors, 1_000, 50), loop(SortedCursors, 1_000, 50), of_time=True)


if __name__ == "__main__":
    main()
