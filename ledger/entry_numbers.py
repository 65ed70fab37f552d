"""How many entries of a log are before a position: what tells how far apart two readers are.

Rule: numbers are compared only within one moment. Trimming takes entries away at the beginning, and what was number 7
is number 3 afterwards; distances stay.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

from ledger.log_snapshot import LogSnapshot
from ledger.position import Position


class EntryNumbers:
    """Numbers positions of a log; its segments are summed up once for each snapshot."""

    def __init__(self, snapshot: Callable[[], LogSnapshot]) -> None:
        self._snapshot = snapshot
        self._seen: LogSnapshot | None = None
        self._ids: list[int] = []
        self._before: list[int] = []

    def __call__(self, position: Position) -> int:
        """Entries of the log before `position`."""
        snapshot = self._snapshot()
        if snapshot is not self._seen:
            self._ids = [segment.ledger_id for segment in snapshot.segments]
            self._before = [0, *accumulate(segment.entries for segment in snapshot.segments)]
            self._seen = snapshot
        at = bisect_right(self._ids, position.ledger_id) - 1
        if at < 0:
            return 0
        if self._ids[at] < position.ledger_id:
            return self._before[at + 1]
        return min(self._before[at] + max(position.entry_id, 0), self._before[at + 1])
