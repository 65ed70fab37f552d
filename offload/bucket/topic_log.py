"""The sealed ledgers of one topic as a log to plan reads of: positions, ranges, and the parts that tasks read. Pure.

Rules
- Segments whose heads are known are cut at any entry, others at blocks; either way a part reads exactly its entries.
- The log begins with the first entry that is there and ends behind the last one, or before the first entry of a
  transaction that has no outcome here.
- Parts are a function of the range and of objects that do not change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import numpy as np

from pyspark_ledger.ledger.errors import DataLoss, Refused
from pyspark_ledger.ledger.position import LATEST, Position, PositionRange
from pyspark_ledger.ledger.segment.format import FRAME_BYTES, HEADER_BYTES
from pyspark_ledger.offload.bucket.catalogue import Gap, Segment, TopicLedgers
from pyspark_ledger.offload.bucket.entry_heads import Chunk, EntryHeads
from pyspark_ledger.offload.bucket.frames import ByteRange
from pyspark_ledger.offload.bucket.visibility import Visibility, visibility_of


@dataclass(frozen=True, slots=True)
class Part:
    """Input of one task. If `scanned`, `hidden` entries and whole `messages` are known by position.

    In a part that is not scanned, an entry of a transaction or a chunk is an error, unless the entry is Arrow.
    """

    ranges: tuple[ByteRange, ...]
    scanned: bool
    hidden: frozenset[Position] = frozenset()
    messages: Mapping[Position, tuple[Chunk, ...]] = field(default_factory=dict)


class BucketLog:
    """One topic, with the heads of some of its segments."""

    def __init__(self, topic: TopicLedgers, heads: Mapping[int, EntryHeads] | None = None) -> None:
        self.topic = topic
        self.heads = dict(heads or {})

    @cached_property
    def visibility(self) -> Visibility:
        """What transactions and chunks make of it; empty where heads were not gathered."""
        return visibility_of(self.heads[one.ledger_id] for one in self.topic.segments) if self.scanned else Visibility()

    @property
    def scanned(self) -> bool:
        return all(segment.ledger_id in self.heads for segment in self.topic.segments)

    @property
    def incarnation(self) -> str:
        """What tells it from another topic of its name: the log's incarnation, or the cluster that wrote it."""
        return self.topic.incarnation or self.topic.cluster

    @property
    def start(self) -> Position:
        return Position(self.topic.segments[0].ledger_id, 0) if self.topic.segments else Position(-1, 0)

    @property
    def end(self) -> Position:
        """Behind the last entry that may be read."""
        if self.visibility.open_from is not None:
            return self.visibility.open_from
        if not self.topic.segments:
            return Position(-1, 0)
        last = self.topic.segments[-1]
        return Position(last.ledger_id, last.stored_entries)

    def gaps_in(self, range_: PositionRange) -> list[Gap]:
        return [gap for gap in self.topic.gaps if _lies_in(gap, range_)]

    def require_whole(self, range_: PositionRange) -> None:
        """Raise DataLoss naming every gap in a range."""
        gaps = self.gaps_in(range_)
        if gaps:
            known = [gap.end - gap.first for gap in gaps if gap.end >= 0]
            count = f"{sum(known)} entries" if len(known) == len(gaps) else f"at least {sum(known)} entries"
            raise DataLoss(
                f"{count} of {self.topic.name} are not in the bucket: {'; '.join(str(gap) for gap in gaps)}",
                hint="Set failOnDataLoss to false to read what is there",
            )

    def require_position(self, wanted: Position, option: str) -> Position:
        """The position, if the log has it."""
        if not self.start <= wanted <= self._last():
            raise DataLoss(
                f"option {option!r} is {wanted}, {self.topic.name} begins at {self.start} and ends at {self.end} "
                f"in the bucket",
                hint="Give a position within, or earliest or latest",
            )
        return min(wanted, self.end)

    def find_time(self, timestamp_ms: int) -> Position:
        """The first entry that was stored at or after a time; the end when none was. Needs heads."""
        for segment in self.topic.segments:
            times = self.heads[segment.ledger_id].times
            found = np.flatnonzero(times >= timestamp_ms)
            if len(found):
                return min(Position(segment.ledger_id, int(found[0])), self.end)
        return self.end

    def measure(self, range_: PositionRange) -> tuple[int, int]:
        """Rows and bytes of a range. Needs heads."""
        rows = size = 0
        for segment, first, end in self._slices(range_):
            heads = self.heads[segment.ledger_id]
            rows += int(heads.rows[first:end].sum())
            size += int(heads.lengths[first:end].sum()) + FRAME_BYTES * (end - first)
        return rows, size

    def split_by_limit(self, range_: PositionRange, rows: int | None, size_bytes: int | None) -> Position:
        """How far a batch may read: all that the limits allow, at least one entry. Needs heads."""
        rows_left, bytes_left, read = rows, size_bytes, False
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
                return Position(segment.ledger_id, first + max(fits, 0 if read else 1))
            read = True
            rows_left = None if rows_left is None else rows_left - int(heads.rows[part].sum())
            bytes_left = None if bytes_left is None else bytes_left - int((heads.lengths[part] + FRAME_BYTES).sum())
        return range_.end

    def parts(self, range_: PositionRange, target_bytes: int) -> list[Part]:
        """The range cut into parts of about `target_bytes`, in order."""
        found: list[Part] = []
        spans: list[ByteRange] = []
        size = 0
        for span in self._spans(range_, target_bytes):
            if spans and size + span.size_bytes > target_bytes:
                found.append(self._part(spans))
                spans, size = [], 0
            spans.append(span)
            size += span.size_bytes
        return [*found, self._part(spans)] if spans else found

    def size_of(self, range_: PositionRange) -> int:
        """About how many bytes a range has, without its heads."""
        return sum(
            segment.index.data_bytes * (end - first) // max(segment.stored_entries, 1)
            for segment, first, end in self._slices(range_)
        )

    def _part(self, spans: Sequence[ByteRange]) -> Part:
        seen, scanned = self.visibility, self.scanned
        if not seen.hidden and not seen.messages:
            return Part(tuple(spans), scanned)
        hidden = frozenset(_within(self._hidden_places, spans))
        messages = {place: seen.messages[place] for place in _within(self._message_places, spans)}
        return Part(tuple(spans), scanned, hidden, messages)

    @cached_property
    def _hidden_places(self) -> list[Position]:
        return sorted(self.visibility.hidden)

    @cached_property
    def _message_places(self) -> list[Position]:
        return sorted(self.visibility.messages)

    def _last(self) -> Position:
        if not self.topic.segments:
            return LATEST
        last = self.topic.segments[-1]
        return Position(last.ledger_id, last.entries)

    def _slices(self, range_: PositionRange) -> Iterator[tuple[Segment, int, int]]:
        """The entries `[first, end)` of each segment in a range."""
        stop = min(range_.end, self.end)
        segments = self.topic.segments
        for at in range(bisect_left(segments, range_.start.ledger_id, key=attrgetter("ledger_id")), len(segments)):
            segment, here = segments[at], segments[at].ledger_id
            if here > stop.ledger_id:
                return
            first = range_.start.entry_id if here == range_.start.ledger_id else 0
            end = min(stop.entry_id, segment.stored_entries) if here == stop.ledger_id else segment.stored_entries
            if first < end:
                yield segment, max(first, 0), end

    def _spans(self, range_: PositionRange, target_bytes: int) -> Iterator[ByteRange]:
        for segment, first, end in self._slices(range_):
            blocks = segment.index.blocks
            heads = self.heads.get(segment.ledger_id)
            number = bisect_right(blocks, first, key=lambda block: block.first_entry) - 1
            while number < len(blocks) and blocks[number].first_entry < end:
                span = block_range(segment, number)
                begin, stop = max(first, span.at_entry), min(end, span.end)
                if heads is None:
                    yield _narrowed(span, begin, stop)
                elif begin == span.at_entry and stop == span.end and span.size_bytes <= target_bytes:
                    yield span
                else:
                    yield from _cut(span, heads, begin, stop, target_bytes)
                number += 1


def block_range(segment: Segment, number: int) -> ByteRange:
    block, index = segment.index.blocks[number], segment.index
    after = index.blocks[number + 1] if number + 1 < len(index.blocks) else None
    end_offset = after.offset if after else index.data_bytes
    end = min(after.first_entry, segment.stored_entries) if after else segment.stored_entries
    if end_offset - block.offset < HEADER_BYTES:
        raise Refused(f"{segment.data_name}: block {number} at {block.offset} ends at {end_offset}")
    return ByteRange(
        segment.data_name, segment.ledger_id, block.offset, end_offset, block.first_entry, block.first_entry, end,
        header=True, whole=True,
    )  # fmt: skip


def segment_ranges(segment: Segment) -> list[ByteRange]:
    return [
        block_range(segment, number)
        for number, block in enumerate(segment.index.blocks)
        if block.first_entry < segment.stored_entries
    ]


def _narrowed(span: ByteRange, first: int, end: int) -> ByteRange:
    """The entries `[first, end)` of a block whose frames are not known: it is walked from its start."""
    return ByteRange(
        span.data_name, span.ledger_id, span.offset, span.end_offset, span.at_entry, first, end,
        header=True, whole=end == span.end,
    )  # fmt: skip


def _cut(span: ByteRange, heads: EntryHeads, first: int, end: int, target_bytes: int) -> Iterator[ByteRange]:
    """Entries `[first, end)` of a block in spans of whole frames, of at most `target_bytes` or one entry."""
    offsets, ends = heads.offsets, heads.ends
    while first < end:
        limit = int(offsets[first]) + target_bytes
        stop = max(first + 1, first + int(np.searchsorted(ends[first:end], limit, side="right")))
        yield ByteRange(
            span.data_name, span.ledger_id, int(offsets[first]), int(ends[stop - 1]), first, first, stop,
            header=False, whole=False,
        )  # fmt: skip
        first = stop


def _within(places: Sequence[Position], spans: Sequence[ByteRange]) -> Iterator[Position]:
    """Those of the places, which rise, that lie in the spans."""
    for span in spans:
        first = bisect_left(places, Position(span.ledger_id, span.first))
        yield from places[first : bisect_left(places, Position(span.ledger_id, span.end), first)]


def _lies_in(gap: Gap, range_: PositionRange) -> bool:
    end = Position(gap.ledger_id, gap.end if gap.end >= 0 else LATEST.entry_id)
    return Position(gap.ledger_id, gap.first) < range_.end and end > range_.start
