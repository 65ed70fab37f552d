"""What a reading of a log has left, and how far a quota of it reaches: from one snapshot. Pure.

Rules: what retention has taken is told, never passed over in silence; a position that the log never had is an error.
Entries that deliver no row (the marker that closes a run) are never what a reading begins with: the head of a reading
goes up to its first entry with rows, and a quota of rows takes what delivers none along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ledger.errors import DataLoss
from ledger.left_entries import head_left, measure_left
from ledger.log_snapshot import LogSnapshot, Slice, bytes_between
from ledger.position import EARLIEST, LATEST, Position, PositionRange
from ledger.position_set import PositionSet
from ledger.protocol import LedgerSegment
from ledger.read_calls import SplitPart
from ledger.survey_calls import Reading, SurveyedLog, TrimmedEntries

Gone = Callable[[], Sequence[LedgerSegment]]
"""The ledgers that were trimmed off a log, oldest first."""


def reading_left(
    snapshot: LogSnapshot, incarnation: str, reading: Reading, gone: Gone, skipped: PositionSet | None = None
) -> SurveyedLog:
    """The log, and what `reading` has left of it without what is `skipped`; DataLoss when it stands where the log never
    was.
    """
    if reading.incarnation and reading.incarnation != incarnation:
        reading = Reading(count=reading.count)
    begin, trimmed = _begin(snapshot, reading, gone)
    stop = snapshot.end
    if reading.until_ms is not None:
        stop = snapshot.seek_time(reading.until_ms)
    if reading.until is not None:
        stop = min(stop, reading.until)
    left = PositionRange(begin, stop)
    entries, rows, size = _measured(snapshot, left, skipped) if left and reading.count else (0, 0, 0)
    head_rows, head_bytes, head_ms = _head(snapshot, left, skipped) if rows else (0, 0, 0)
    return SurveyedLog(
        name=snapshot.name,
        incarnation=incarnation,
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
    )


def prefix(snapshot: LogSnapshot, range_: PositionRange, rows: int, size_bytes: int) -> SplitPart:
    """The longest beginning of the range with at most so many rows and bytes; it may be empty."""
    entries, taken_rows, taken_bytes, reached = 0, 0, 0, range_.start
    for part in snapshot.slices(range_):
        count = min(_by_rows(part, rows - taken_rows), _by_bytes(part, size_bytes - taken_bytes))
        if count:
            entries += count
            taken_rows += _rows_of(part, count)
            taken_bytes += bytes_between(part.segment, part.first, part.first + count)
            reached = Position(part.segment.ledger_id, part.first + count)
        if count < part.end - part.first:
            break
    else:
        reached = min(range_.end, snapshot.end) if range_ else reached
    return SplitPart(PositionRange(range_.start, reached), entries, taken_rows, taken_bytes)


def _begin(snapshot: LogSnapshot, reading: Reading, gone: Gone) -> tuple[Position, TrimmedEntries | None]:
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
            hint="The store was restored from an older copy, or the position is of another log: start with a new "
            "checkpoint",
        )
    return reading.position, None


def _trimmed(lost: PositionRange, gone: Sequence[LedgerSegment]) -> TrimmedEntries:
    entries = rows = size = 0
    for ledger in gone:
        if lost.start.ledger_id <= ledger.ledger_id <= lost.end.ledger_id:
            first = max(lost.start.entry_id, 0) if ledger.ledger_id == lost.start.ledger_id else 0
            last = lost.end.entry_id if ledger.ledger_id == lost.end.ledger_id else ledger.entries
            count = max(min(last, ledger.entries) - first, 0)
            entries += count
            rows += ledger.rows * count // max(ledger.entries, 1)
            size += ledger.size_bytes * count // max(ledger.entries, 1)
    # A log that was empty when it was last read has lost all that came since.
    known = any(ledger.ledger_id == lost.start.ledger_id for ledger in gone) or (lost.start.ledger_id < 0 < len(gone))
    return TrimmedEntries(lost, entries, rows, size, known)


def _measured(snapshot: LogSnapshot, left: PositionRange, skipped: PositionSet | None) -> tuple[int, int, int]:
    return measure_left(snapshot, left, skipped) if skipped else snapshot.measure(left)


def _head(snapshot: LogSnapshot, left: PositionRange, skipped: PositionSet | None) -> tuple[int, int, int]:
    """Rows, bytes and time of the first entry with rows; the bytes are those of what comes before it, too."""
    if skipped:
        head = head_left(snapshot, left, skipped)
        return (0, 0, 0) if head is None else head[:3]
    size = 0
    for part in snapshot.slices(left):
        index = part.segment.index()
        before = _row_before(part)
        entry = part.first + int(np.searchsorted(index.row_ends[part.first : part.end], before, side="right"))
        if entry < part.end:
            size += bytes_between(part.segment, part.first, entry + 1)
            return int(index.row_ends[entry]) - before, size, int(index.timestamps[entry])
        size += bytes_between(part.segment, part.first, part.end)
    return 0, 0, 0


def _by_rows(part: Slice, rows: int) -> int:
    if rows < 0:
        return 0
    ends = part.segment.index().row_ends[part.first : part.end]
    return int(np.searchsorted(ends, _row_before(part) + rows, side="right"))


def _by_bytes(part: Slice, size_bytes: int) -> int:
    index = part.segment.index()
    offsets = index.offsets[part.first : part.end]
    limit = int(offsets[0]) + size_bytes
    count = int(np.searchsorted(offsets, limit, side="left"))
    # The last of them begins within the limit; it may end beyond.
    return count - 1 if count and index.end_offset(part.first + count - 1) > limit else count


def _rows_of(part: Slice, count: int) -> int:
    return int(part.segment.index().row_ends[part.first + count - 1]) - _row_before(part)


def _row_before(part: Slice) -> int:
    return int(part.segment.index().row_ends[part.first - 1]) if part.first else part.segment.first_row
