"""Entries, rows and bytes that a reader has not read, if the reader may skip positions, such as acknowledged rows.

Rows and bytes are counted for each entry:

    entry with        no row skipped   some rows skipped                                    all rows skipped
    counted rows      all              remaining rows                                       0
    counted bytes     all              in proportion to the remaining rows, at least 1/8    0

Rules
- A result depends only on one snapshot and the arguments.
- If entries of a range were trimmed (deleted by retention), the result reports them. A position that the log never had
  raises DataLoss.
- The *head* of a read is its first entry with rows, together with the entries without rows before it.
- The limits of a batch apply to counted rows and counted bytes. A partly skipped entry is read whole, and at least 1/8
  of its bytes are counted. So a batch reads at most eight times its limit in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pyspark_ledger.ledger.errors import DataLoss
from pyspark_ledger.ledger.log.acknowledged_positions import entry_sizes
from pyspark_ledger.ledger.log.segments.log_segments import Slice
from pyspark_ledger.ledger.log.snapshot import Backlog, LogSnapshot
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.positions.bitset import Integers, members
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.actions import SegmentDescription
from pyspark_ledger.ledger.protocol.reads import LogStatus, ReadProgress, SplitPart, TrimmedEntries
from pyspark_ledger.ledger.segment.format import FRAME_BYTES


def unacknowledged(
    positions: PositionSet, snapshot: LogSnapshot, left: PositionRange, total: Backlog, *, precise: bool = True
) -> Backlog:
    """Return the entries, rows and bytes of the range `left` that are not in `positions`. `total` has all of the range.

    If not `precise`, each acknowledged entry counts as an average entry of its segment. An entry with only some
    acknowledged rows then counts as unacknowledged.
    """
    entries, rows, size = total
    if not left:
        return total
    for part in _slices_with(positions, snapshot, left):
        ledger_id, segment = part.segment.ledger_id, part.segment
        acknowledged = members(positions.words(ledger_id))
        acknowledged = acknowledged[(acknowledged >= part.first) & (acknowledged < part.end)]
        if not precise:
            entries -= len(acknowledged)
            rows -= segment.rows * len(acknowledged) // segment.entries
            size -= segment.size_bytes * len(acknowledged) // segment.entries
            continue
        index = segment.index()
        partly = positions.rows(ledger_id)
        partly = partly.selected((partly.entries >= part.first) & (partly.entries < part.end))
        sizes = np.diff(index.row_ends[: part.end], prepend=part.segment.first_row)
        entries -= int(np.count_nonzero(sizes[acknowledged]))
        rows -= int(sizes[acknowledged].sum()) + int(sizes[partly.entries].sum()) - int(partly.left_counts().sum())
        size -= int(index.lengths[acknowledged].sum()) + FRAME_BYTES * len(acknowledged)
    return Backlog(entries, rows, max(size, 0))


def _slices_with(positions: PositionSet, snapshot: LogSnapshot, left: PositionRange) -> Iterator[Slice]:
    """Yield the part of the range `left` in each segment that has entries in `positions`."""
    for ledger_id in positions.ledgers():
        if left.start.ledger_id <= ledger_id <= left.end.ledger_id and snapshot.segments.find(ledger_id) is not None:
            within = PositionRange(Position(ledger_id, 0), Position(ledger_id + 1, 0))
            yield from snapshot.slices(PositionRange(max(left.start, within.start), min(left.end, within.end)))


_LEAST_SHARE = 8


class Head(NamedTuple):
    """First entry of a read with remaining rows: these rows, the time of the entry, and the position after the entry.

    The time is when the broker stored the entry, in milliseconds since 1970. `size_bytes` includes the entries without
    remaining rows before it.
    """

    rows: int
    size_bytes: int
    ms: int
    end: Position


class _Left(NamedTuple):
    """Counted rows and bytes of each entry of a slice (consecutive entries of one segment)."""

    rows: Integers
    sizes: Integers


def measure_left(snapshot: LogSnapshot, range_: PositionRange, skipped: PositionSet) -> tuple[int, int, int]:
    """Return the number of entries with remaining rows, their remaining rows, and their counted bytes."""
    entries = rows = size = 0
    for part in snapshot.slices(range_) if range_ else ():
        left = _left(part, skipped)
        entries += int(np.count_nonzero(left.rows))
        rows += int(left.rows.sum())
        size += int(left.sizes.sum())
    return entries, rows, size


def head_left(snapshot: LogSnapshot, range_: PositionRange, skipped: PositionSet) -> Head | None:
    """Return the first entry of a range with a row that is not in `skipped`, or None."""
    for part in snapshot.slices(range_) if range_ else ():
        left = _left(part, skipped)
        with_rows = np.flatnonzero(left.rows)
        if len(with_rows):
            at = int(with_rows[0])
            end = Position(part.segment.ledger_id, part.first + at + 1)
            size = int(left.sizes[: at + 1].sum())
            return Head(int(left.rows[at]), size, int(part.segment.index().timestamps[part.first + at]), end)
    return None


def prefix_left(
    snapshot: LogSnapshot, range_: PositionRange, skipped: PositionSet, rows: int, size_bytes: int
) -> SplitPart:
    """Return the longest prefix of a range with at most `rows` rows and `size_bytes` bytes, without `skipped` rows.

    The table at the head of this module defines the counted bytes.
    """
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
    # A marker has no rows and counts 0 bytes.
    share = sizes * np.maximum(rows * _LEAST_SHARE, whole) // np.maximum(whole * _LEAST_SHARE, 1)
    return _Left(rows, np.where(rows > 0, share, 0))


Gone = Callable[[], Sequence[SegmentDescription]]
"""Returns the trimmed segments of a log, oldest first."""


def reading_left(
    snapshot: LogSnapshot, reading: ReadProgress, gone: Gone, skipped: PositionSet | None = None
) -> LogStatus:
    """Return the state of the log, and how much a reader has not read. `reading` is the progress of the reader.

    `skipped` positions do not count. Raises DataLoss if the reader is at a position that the log never had.
    """
    if reading.incarnation and reading.incarnation != snapshot.incarnation:
        reading = ReadProgress(count=reading.count)
    begin, trimmed = _begin(snapshot, reading, gone)
    stop = snapshot.end
    if reading.until_ms is not None:
        stop = snapshot.seek_time(reading.until_ms)
    if reading.until is not None:
        stop = min(stop, reading.until)
    left = PositionRange(begin, stop)
    entries, rows, size = _measured(snapshot, left, skipped) if left and reading.count else (0, 0, 0)
    head_rows, head_bytes, head_ms = _head(snapshot, left, skipped) if rows else (0, 0, 0)
    return LogStatus(
        name=snapshot.name,
        incarnation=snapshot.incarnation,
        start=snapshot.start,
        end=snapshot.end,
        begin=begin,
        stop=stop,
        entries=entries,
        rows=rows,
        size_bytes=size,
        head_rows=head_rows,
        head_bytes=head_bytes,
        head_ms=head_ms,
        last_publish_ms=snapshot.last_timestamp_ms(),
        terminated=snapshot.terminated,
        trimmed=trimmed,
        offloaded_id=snapshot.offloaded_id,
    )


def _begin(snapshot: LogSnapshot, reading: ReadProgress, gone: Gone) -> tuple[Position, TrimmedEntries | None]:
    """Return the first position to read, and the entries that the reader has lost because they were trimmed."""
    if reading.from_ms is not None:
        return snapshot.seek_time(reading.from_ms), None
    if reading.position is None or reading.position == EARLIEST:
        return snapshot.start, None
    if reading.position == LATEST:
        return snapshot.end, None
    if reading.position < snapshot.trimmed.position:
        until = snapshot.trimmed.position if reading.until is None else min(reading.until, snapshot.trimmed.position)
        lost = PositionRange(reading.position, until)
        return snapshot.start, _trimmed(lost, gone()) if lost else None
    if reading.position > snapshot.end:
        raise DataLoss(
            f"ledger {snapshot.name!r} ends at {snapshot.end}, the reader has read up to {reading.position}",
            hint="The store was restored from an older copy, or the position belongs to another log. Start with a new "
            "checkpoint",
        )
    return reading.position, None


def _trimmed(lost: PositionRange, gone: Sequence[SegmentDescription]) -> TrimmedEntries:
    """Count the trimmed entries in a range. Rows and bytes of a partly trimmed segment are estimated."""
    entries = rows = size = 0
    for ledger in gone:
        if lost.start.ledger_id <= ledger.ledger_id <= lost.end.ledger_id:
            first = max(lost.start.entry_id, 0) if ledger.ledger_id == lost.start.ledger_id else 0
            last = lost.end.entry_id if ledger.ledger_id == lost.end.ledger_id else ledger.entries
            count = max(min(last, ledger.entries) - first, 0)
            entries += count
            rows += ledger.rows * count // max(ledger.entries, 1)
            size += ledger.size_bytes * count // max(ledger.entries, 1)
    # A negative id means that the log was empty at the last read. Then the reader has lost all trimmed entries.
    known = any(ledger.ledger_id == lost.start.ledger_id for ledger in gone) or (lost.start.ledger_id < 0 < len(gone))
    return TrimmedEntries(lost, entries, rows, size, known)


def _measured(snapshot: LogSnapshot, left: PositionRange, skipped: PositionSet | None) -> tuple[int, int, int]:
    return measure_left(snapshot, left, skipped) if skipped else snapshot.measure(left)


def _head(snapshot: LogSnapshot, left: PositionRange, skipped: PositionSet | None) -> tuple[int, int, int]:
    """Return the rows and the timestamp of the first entry with rows, and the bytes up to its end."""
    if not skipped:
        return snapshot.head(left)
    head = head_left(snapshot, left, skipped)
    return (0, 0, 0) if head is None else head[:3]
