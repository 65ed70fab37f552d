"""Log of one topic in a bucket, for the planning of reads. It finds positions, and splits a range into tasks.

The head of an entry is its offset, length, time, number of rows and transaction (`entry_heads`). A log is *scanned* if
the heads of all its entries have been read. A *part* is the input of one task. The page docs/concepts.md explains the
words segment, block, chunk and frame.

Rules
- A segment with heads is divided at any entry, a segment without heads only between blocks. Either way, a part returns
  exactly the entries of its range.
- The log starts at its first stored entry and ends after its last stored entry. Exception: it ends before the first
  entry of an open transaction, whose commit or abort is not in the bucket.
- Parts depend only on the range and on immutable objects. So a repeated batch has the same parts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter

import numpy as np

from pyspark_ledger.ledger.errors import DataLoss, Refused
from pyspark_ledger.ledger.position import LATEST, Position, PositionRange
from pyspark_ledger.ledger.segment.format import FRAME_BYTES, HEADER_BYTES
from pyspark_ledger.offload.bucket.catalogue import Gap, Segment, TopicSegments
from pyspark_ledger.offload.bucket.entry_heads import Chunk, EntryHeads
from pyspark_ledger.offload.bucket.frames import ByteRange
from pyspark_ledger.offload.bucket.visibility import Visibility, visibility_of


@dataclass(frozen=True, slots=True)
class Part:
    """Input of one task. `scanned` says whether the log was scanned.

    In a scanned log, `hidden` has the entries of aborted transactions, and `messages` maps the position of a message's
    last chunk to all its chunks. In a log that was not scanned, a chunk or an entry of a transaction is an error.
    Exception: an entry with Arrow rows is read.
    """

    ranges: tuple[ByteRange, ...]
    scanned: bool
    hidden: frozenset[Position] = frozenset()
    messages: Mapping[Position, tuple[Chunk, ...]] = field(default_factory=dict)


class BucketLog:
    """Log of one topic, with the heads of some or all of its segments."""

    def __init__(self, topic: TopicSegments, heads: Mapping[int, EntryHeads] | None = None) -> None:
        self.topic = topic
        self.heads = dict(heads or {})

    @cached_property
    def visibility(self) -> Visibility:
        """Entries of aborted transactions, and complete chunked messages. Empty if the log was not scanned."""
        return (
            visibility_of(self.heads[segment.ledger_id] for segment in self.topic.segments)
            if self.scanned
            else Visibility()
        )

    @property
    def scanned(self) -> bool:
        return all(segment.ledger_id in self.heads for segment in self.topic.segments)

    @property
    def incarnation(self) -> str:
        """The id that changes when a ledger is created again. If no object states the id, the cluster's name."""
        return self.topic.incarnation or self.topic.cluster

    @property
    def start(self) -> Position:
        return Position(self.topic.segments[0].ledger_id, 0) if self.topic.segments else Position(-1, 0)

    @property
    def end(self) -> Position:
        """The position after the last readable entry."""
        if self.visibility.open_from is not None:
            return self.visibility.open_from
        if not self.topic.segments:
            return Position(-1, 0)
        last = self.topic.segments[-1]
        return Position(last.ledger_id, last.stored_entries)

    def gaps_in(self, range_: PositionRange) -> list[Gap]:
        gaps = sorted((*self.topic.gaps, *self._row_gaps), key=attrgetter("ledger_id"))
        return [gap for gap in gaps if _overlaps(gap, range_)]

    @cached_property
    def _row_gaps(self) -> list[Gap]:
        """Gaps in which direct segments are missing. They are found by the numbers of rows.

        If a direct segment has lost its index object, its data object looks as if its batch was never committed. But
        the index of a later direct segment states the number of rows in the log before this later segment. The method
        compares this number with the rows in the bucket. The comparison needs the heads since the previous direct
        segment.
        """
        found, before, rows = [], -1, None
        known = [gap.ledger_id for gap in self.topic.gaps]
        for segment in self.topic.segments:
            ledger_id, stamps, heads = segment.ledger_id, segment.index.stamps, self.heads.get(segment.ledger_id)
            if any(before <= gap <= ledger_id for gap in known):
                rows = None
            if stamps is None:
                rows = None if rows is None or heads is None else rows + int(heads.rows.sum())
            else:
                if rows not in (None, stamps.rows[0]):
                    cause = f"the log has {stamps.rows[0]} rows before ledger {ledger_id}, the bucket has {rows}"
                    found.append(Gap(ledger_id - 1, 0, -1, cause))
                rows = stamps.rows[-1]
            before = ledger_id
        return found

    def require_whole(self, range_: PositionRange) -> None:
        """Raise DataLoss naming every gap in a range."""
        gaps = self.gaps_in(range_)
        if gaps:
            gap_entries = [gap.end - gap.first for gap in gaps if gap.end >= 0]
            count = (
                f"{sum(gap_entries)} entries"
                if len(gap_entries) == len(gaps)
                else f"at least {sum(gap_entries)} entries"
            )
            raise DataLoss(
                f"{count} of {self.topic.name} are not in the bucket: {'; '.join(str(gap) for gap in gaps)}",
                hint="Set failOnDataLoss to false to read the other entries",
            )

    def require_position(self, wanted: Position, option: str) -> Position:
        """Return the position, at most the end of the log. Raises DataLoss if the log does not contain it."""
        if not self.start <= wanted <= self._last_position():
            raise DataLoss(
                f"option {option!r} is {wanted}, {self.topic.name} begins at {self.start} and ends at {self.end} "
                f"in the bucket",
                hint="Give a position between start and end, or earliest or latest",
            )
        return min(wanted, self.end)

    def find_time(self, timestamp_ms: int) -> Position:
        """Return the first entry that was stored at or after a time, or the end. Requires the heads of all segments."""
        for segment in self.topic.segments:
            times = self.heads[segment.ledger_id].times
            found = np.flatnonzero(times >= timestamp_ms)
            if len(found):
                return min(Position(segment.ledger_id, int(found[0])), self.end)
        return self.end

    def measure(self, range_: PositionRange) -> tuple[int, int]:
        """Return the number of rows and bytes of a range. Requires its heads."""
        rows = size = 0
        for segment, first, end in self._slices(range_):
            heads = self.heads[segment.ledger_id]
            rows += int(heads.rows[first:end].sum())
            size += int(heads.lengths[first:end].sum()) + FRAME_BYTES * (end - first)
        return rows, size

    def split_by_limit(self, range_: PositionRange, rows: int | None, size_bytes: int | None) -> Position:
        """Return the end of the longest prefix of a range within the limits, at least one entry. Requires its heads."""
        rows_left, bytes_left, has_entries = rows, size_bytes, False
        for segment, first, end in self._slices(range_):
            heads = self.heads[segment.ledger_id]
            part = slice(first, end)
            fits = end - first
            if rows_left is not None:
                counts = np.cumsum(heads.rows[part])
                fits = min(fits, int(np.searchsorted(counts, rows_left, side="right")))
            if bytes_left is not None:
                sizes = np.cumsum(heads.lengths[part] + FRAME_BYTES)
                fits = min(fits, int(np.searchsorted(sizes, bytes_left, side="right")))
            if fits < end - first:
                return Position(segment.ledger_id, first + max(fits, 0 if has_entries else 1))
            has_entries = True
            rows_left = None if rows_left is None else rows_left - int(heads.rows[part].sum())
            bytes_left = None if bytes_left is None else bytes_left - int((heads.lengths[part] + FRAME_BYTES).sum())
        return range_.end

    def parts(self, range_: PositionRange, target_bytes: int) -> list[Part]:
        """Split a range into parts of about `target_bytes`, in order."""
        parts: list[Part] = []
        ranges: list[ByteRange] = []
        size = 0
        for byte_range in self._byte_ranges(range_, target_bytes):
            if ranges and size + byte_range.size_bytes > target_bytes:
                parts.append(self._part(ranges))
                ranges, size = [], 0
            ranges.append(byte_range)
            size += byte_range.size_bytes
        return [*parts, self._part(ranges)] if ranges else parts

    def size_of(self, range_: PositionRange) -> int:
        """Return the approximate number of bytes of a range. Does not require heads."""
        return sum(
            segment.index.data_bytes * (end - first) // max(segment.stored_entries, 1)
            for segment, first, end in self._slices(range_)
        )

    def _part(self, ranges: Sequence[ByteRange]) -> Part:
        visibility, scanned = self.visibility, self.scanned
        if not visibility.hidden and not visibility.messages:
            return Part(tuple(ranges), scanned)
        hidden = frozenset(_positions_in(self._hidden_positions, ranges))
        messages = {place: visibility.messages[place] for place in _positions_in(self._message_positions, ranges)}
        return Part(tuple(ranges), scanned, hidden, messages)

    @cached_property
    def _hidden_positions(self) -> list[Position]:
        return sorted(self.visibility.hidden)

    @cached_property
    def _message_positions(self) -> list[Position]:
        return sorted(self.visibility.messages)

    def _last_position(self) -> Position:
        if not self.topic.segments:
            return LATEST
        last = self.topic.segments[-1]
        return Position(last.ledger_id, last.entries)

    def _slices(self, range_: PositionRange) -> Iterator[tuple[Segment, int, int]]:
        """Yield each segment in a range, with the bounds of its entries `[first, end)` in the range."""
        stop = min(range_.end, self.end)
        segments = self.topic.segments
        for at in range(bisect_left(segments, range_.start.ledger_id, key=attrgetter("ledger_id")), len(segments)):
            segment, ledger_id = segments[at], segments[at].ledger_id
            if ledger_id > stop.ledger_id:
                return
            first = range_.start.entry_id if ledger_id == range_.start.ledger_id else 0
            end = min(stop.entry_id, segment.stored_entries) if ledger_id == stop.ledger_id else segment.stored_entries
            if first < end:
                yield segment, max(first, 0), end

    def _byte_ranges(self, range_: PositionRange, target_bytes: int) -> Iterator[ByteRange]:
        for segment, first, end in self._slices(range_):
            blocks = segment.index.blocks
            heads = self.heads.get(segment.ledger_id)
            number = bisect_right(blocks, first, key=lambda block: block.first_entry) - 1
            while number < len(blocks) and blocks[number].first_entry < end:
                byte_range = block_range(segment, number)
                begin, stop = max(first, byte_range.at_entry), min(end, byte_range.end)
                is_one = _pieces(byte_range.size_bytes, target_bytes) == 1
                if heads is None:
                    # The bytes of a block without heads begin at the block's start.
                    yield replace(byte_range, first=begin, end=stop, whole=stop == byte_range.end)
                elif (begin, stop) == (byte_range.at_entry, byte_range.end) and is_one:
                    yield byte_range
                else:
                    yield from _split_block(byte_range, heads, begin, stop, target_bytes)
                number += 1


def block_range(segment: Segment, number: int) -> ByteRange:
    block, index, stamps = segment.index.blocks[number], segment.index, segment.index.stamps
    after = index.blocks[number + 1] if number + 1 < len(index.blocks) else None
    end_offset = after.offset if after else index.data_bytes
    end = min(after.first_entry, segment.stored_entries) if after else segment.stored_entries
    if end_offset - block.offset < HEADER_BYTES:
        raise Refused(f"{segment.data_name}: block {number} at {block.offset} ends at {end_offset}")
    return ByteRange(
        segment.data_name, segment.ledger_id, block.offset, end_offset, block.first_entry, block.first_entry, end,
        header=True, whole=True, stamps=None if stamps is None else stamps.of_block(number),
    )  # fmt: skip


def segment_ranges(segment: Segment) -> list[ByteRange]:
    return [
        block_range(segment, number)
        for number, block in enumerate(segment.index.blocks)
        if block.first_entry < segment.stored_entries
    ]


def _split_block(
    byte_range: ByteRange, heads: EntryHeads, first: int, end: int, target_bytes: int
) -> Iterator[ByteRange]:
    """Yield byte ranges of about equal size for the entries `[first, end)` of a block.

    A byte range has whole frames, about `target_bytes`, and at least one entry.
    """
    offsets, ends = heads.offsets, heads.ends
    begin, size = int(offsets[first]), int(ends[end - 1] - offsets[first])
    count = min(_pieces(size, target_bytes), end - first)
    limits = begin + size * np.arange(1, count + 1) // count
    stops = first + np.unique(np.searchsorted(ends[first:end], limits, side="right"))
    for stop in stops[stops > first].tolist():
        stamps = byte_range.stamps
        if stamps is not None:
            stamps = stamps._replace(row_start=stamps.row_start + int(heads.rows[byte_range.at_entry : first].sum()))
        yield ByteRange(
            byte_range.data_name, byte_range.ledger_id, int(offsets[first]), int(ends[stop - 1]), first, first, stop,
            header=False, whole=False, stamps=stamps,
        )  # fmt: skip
        first = stop


def _pieces(size: int, target_bytes: int) -> int:
    """Return the number of ranges of about `target_bytes`.

    The number is rounded to the nearest integer. Rounded up, it could give each task only half of `target_bytes`.
    """
    return max(1, round(size / target_bytes))


def _positions_in(positions: Sequence[Position], ranges: Sequence[ByteRange]) -> Iterator[Position]:
    """Yield the positions that lie in the ranges. `positions` must be sorted."""
    for byte_range in ranges:
        first = bisect_left(positions, Position(byte_range.ledger_id, byte_range.first))
        yield from positions[first : bisect_left(positions, Position(byte_range.ledger_id, byte_range.end), first)]


def _overlaps(gap: Gap, range_: PositionRange) -> bool:
    end = Position(gap.ledger_id, gap.end if gap.end >= 0 else LATEST.entry_id)
    return Position(gap.ledger_id, gap.first) < range_.end and end > range_.start
