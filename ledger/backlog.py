"""What a reader has left of a log: entries, rows and bytes, counted or estimated.

Rules
- Counted, an entry that delivers no row (the marker that closes a run) is left out: every reader passes over it.
- Estimated, nothing is read: entries come from positions alone, markers among them, and a part of a segment has its
  share of the segment's rows and bytes. Whole segments are exact in both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ledger.log_snapshot import LogSnapshot, Slice
from ledger.position import PositionRange


class Backlog(NamedTuple):
    """What lies in a range."""

    entries: int
    rows: int
    size_bytes: int


def backlog(snapshot: LogSnapshot, left: PositionRange) -> Backlog:
    """The entries that deliver rows, the rows, and the bytes as they lie in segments."""
    if not left:
        return Backlog(0, 0, 0)
    _, rows, size = snapshot.measure(left)
    return Backlog(sum(_delivering(part) for part in snapshot.slices(left)), rows, size)


def estimated_backlog(snapshot: LogSnapshot, left: PositionRange) -> Backlog:
    """The same from counts and averages of segments."""
    if not left:
        return Backlog(0, 0, 0)
    entries = rows = size = 0
    for part in snapshot.slices(left):
        count, held = part.end - part.first, part.segment
        entries += count
        rows += held.rows * count // held.entries
        size += held.size_bytes * count // held.entries
    return Backlog(entries, rows, size)


def _delivering(part: Slice) -> int:
    ends = part.segment.index().row_ends[: part.end]
    before = part.segment.first_row if part.first == 0 else int(ends[part.first - 1])
    return int(np.count_nonzero(np.diff(ends[part.first :], prepend=before)))
