"""What a range has left when some of its positions are passed over: rows and bytes, entry by entry. Pure.

    entry of       none skipped   some rows skipped                               whole skipped
    counts rows    all            those that are left                             0
    counts bytes   all            the share of its rows, at least an eighth       0

Rules
- So a limit of a batch bounds what is delivered, not what lies in between; and what is read for it, eight times that.
- Entries that count nothing, markers among them, go along with those before them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ledger.acknowledged_rows import entry_sizes
from ledger.bit_words import Integers
from ledger.log_snapshot import LogSnapshot, Slice
from ledger.position import Position, PositionRange
from ledger.position_set import PositionSet
from ledger.read_calls import SplitPart
from ledger.segment_format import FRAME_BYTES

_LEAST_SHARE = 8


class Head(NamedTuple):
    """The first entry of which a row is left: its rows, bytes and time, and where it ends."""

    rows: int
    size_bytes: int
    ms: int
    end: Position


class _Left(NamedTuple):
    """Of the entries of a slice: rows and bytes that count."""

    rows: Integers
    sizes: Integers


def measure_left(snapshot: LogSnapshot, range_: PositionRange, skipped: PositionSet) -> tuple[int, int, int]:
    """Entries of which a row is left, rows, and bytes."""
    entries = rows = size = 0
    for part in snapshot.slices(range_) if range_ else ():
        left = _left(part, skipped)
        entries += int(np.count_nonzero(left.rows))
        rows += int(left.rows.sum())
        size += int(left.sizes.sum())
    return entries, rows, size


def head_left(snapshot: LogSnapshot, range_: PositionRange, skipped: PositionSet) -> Head | None:
    """What comes first; None when no row is left."""
    for part in snapshot.slices(range_) if range_ else ():
        left = _left(part, skipped)
        held = np.flatnonzero(left.rows)
        if len(held):
            at = int(held[0])
            end = Position(part.segment.ledger_id, part.first + at + 1)
            size = int(left.sizes[: at + 1].sum())
            return Head(int(left.rows[at]), size, int(part.segment.index().timestamps[part.first + at]), end)
    return None


def prefix_left(
    snapshot: LogSnapshot, range_: PositionRange, skipped: PositionSet, rows: int, size_bytes: int
) -> SplitPart:
    """The longest beginning of a range with at most so many rows and bytes left; its counts are of what is left."""
    entries, taken_rows, taken_bytes, reached = 0, 0, 0, range_.start
    for part in snapshot.slices(range_) if range_ else ():
        left = _left(part, skipped)
        row_ends, size_ends = np.cumsum(left.rows), np.cumsum(left.sizes)
        count = min(
            int(np.searchsorted(row_ends, rows - taken_rows, side="right")),
            int(np.searchsorted(size_ends, size_bytes - taken_bytes, side="right")),
        )
        if count:
            entries += int(np.count_nonzero(left.rows[:count]))
            taken_rows += int(row_ends[count - 1])
            taken_bytes += int(size_ends[count - 1])
            reached = Position(part.segment.ledger_id, part.first + count)
        if count < part.end - part.first:
            break
    else:
        reached = min(range_.end, snapshot.end) if range_ else reached
    return SplitPart(PositionRange(range_.start, reached), entries, taken_rows, taken_bytes)


def _left(part: Slice, skipped: PositionSet) -> _Left:
    ledger_id, numbers = part.segment.ledger_id, np.arange(part.first, part.end)
    whole = entry_sizes(part.segment)[part.first : part.end]
    rows = np.where(skipped.contains_entries(ledger_id, numbers), 0, whole)
    partly = skipped.rows(ledger_id)
    partly = partly.selected((partly.entries >= part.first) & (partly.entries < part.end))
    rows[partly.entries - part.first] = partly.left_counts()
    sizes = part.segment.index().lengths[part.first : part.end].astype(np.int64) + FRAME_BYTES
    # A marker has no rows, and counts as it lies there.
    share = sizes * np.maximum(rows * _LEAST_SHARE, whole) // np.maximum(whole * _LEAST_SHARE, 1)
    return _Left(rows, np.where(rows > 0, share, 0))
