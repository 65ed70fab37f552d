"""What a reader has left of a log: entries, rows and bytes, counted or estimated.

Rules
- Counted, an entry that delivers no row (the marker that closes a run) is left out: every reader passes over it.
- Estimated, nothing is read: entries come from positions alone, markers among them, and a part of a segment has its
  share of the segment's rows and bytes. Whole segments are exact in both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ledger.bit_words import members
from ledger.log_snapshot import LogSnapshot, Slice
from ledger.position import PositionRange
from ledger.position_set import PositionSet
from ledger.segment_format import FRAME_BYTES


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


def unacknowledged(
    left_of: PositionSet, snapshot: LogSnapshot, left: PositionRange, all_of_it: Backlog, *, precise: bool = True
) -> Backlog:
    """What a range has left when these positions in it are acknowledged, entry by entry and row by row.

    Not `precise`: rows and bytes of an entry are its segment's average, and rows of entries are not looked at.
    """
    entries, rows, size = all_of_it
    if not left:
        return all_of_it
    for part in snapshot.slices(left):
        ledger_id, held = part.segment.ledger_id, part.segment
        gone = members(left_of.words(ledger_id))
        gone = gone[(gone >= part.first) & (gone < part.end)]
        if not precise:
            entries -= len(gone)
            rows -= held.rows * len(gone) // held.entries
            size -= held.size_bytes * len(gone) // held.entries
            continue
        index = held.index()
        partly = left_of.rows(ledger_id)
        partly = partly.selected((partly.entries >= part.first) & (partly.entries < part.end))
        sizes = np.diff(index.row_ends[: part.end], prepend=part.segment.first_row)
        entries -= int(np.count_nonzero(sizes[gone]))
        rows -= int(sizes[gone].sum()) + int(sizes[partly.entries].sum()) - int(partly.left_counts().sum())
        size -= int(index.lengths[gone].sum()) + FRAME_BYTES * len(gone)
    return Backlog(entries, rows, max(size, 0))


def _delivering(part: Slice) -> int:
    ends = part.segment.index().row_ends[: part.end]
    before = part.segment.first_row if part.first == 0 else int(ends[part.first - 1])
    return int(np.count_nonzero(np.diff(ends[part.first :], prepend=before)))
