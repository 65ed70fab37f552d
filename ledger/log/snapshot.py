"""Snapshot of the readable entries of a managed ledger. It answers questions about positions, counts and ranges.

A *backlog* is the number of entries, rows and bytes that a reader has not read. `ledger.log.remaining` counts it for a
reader that skips positions. A *prefix* of a range is some first entries of the range.

Invariants
- A snapshot is immutable. A new snapshot replaces it when the log changes.
- Segments are ordered by id. `first_row` of a segment is the number of rows in all earlier segments.
- `entries` of the open segment is the number of committed entries. Readers never see a later entry of its file.
- A position is *between* entries: `(S, E)` is before entry E of segment S. `(S, entries of S)` and `(next segment, 0)`
  are the same position. The log's end always has the first form, so that a rollover does not change it.
- Retention has trimmed (deleted) all entries before the position `trimmed`. The first readable entry is behind this
  position.
- An entry can have no rows, for example the marker that ends a run (the entries of one committed batch). Every reader
  skips such an entry, so an exact backlog excludes it. An estimated backlog reads no file, so it includes it.
- The longest prefix with at most n rows ends before the entry that has row n + 1. So the prefix contains all entries
  without rows before this entry.
- The number of entries before a position is valid only within one snapshot, because a trim removes entries at the
  start. The distance of two positions is the same in all snapshots.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from pyspark_ledger.ledger.errors import DataLoss
from pyspark_ledger.ledger.log.retention import NOTHING_TRIMMED, TrimMark
from pyspark_ledger.ledger.log.segments.log_segments import LogSegment, LogSegments, Slice, bytes_between, delivering
from pyspark_ledger.ledger.position import LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import LedgerDescription, LedgerEnd, SegmentDescription
from pyspark_ledger.ledger.protocol.reads import ReadLimits, SplitPart
from pyspark_ledger.ledger.segment.index import Integers
from pyspark_ledger.ledger.segment.reader import SegmentBlock

_LONGER_LOG = "The offset was written when the log was longer: the store was restored from an older copy"


class Backlog(NamedTuple):
    """Number of entries, rows and bytes of a range."""

    entries: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Cover:
    """Segments of a range.

    The range contains all entries of the segments `[first, end)` of the log. `cut` has a slice (consecutive entries) of
    each segment that is only partly in the range.
    """

    cut: list[Slice]
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """Immutable view of all committed entries of a managed ledger."""

    name: str
    segments: LogSegments
    trimmed: TrimMark = NOTHING_TRIMMED
    terminated: bool = False
    incarnation: str = ""
    """The id of this creation of the ledger."""

    @classmethod
    def of(cls, name: str, segments: Iterable[LogSegment]) -> LogSnapshot:
        """Return the snapshot of a log that was never trimmed and has these segments."""
        return cls(name, LogSegments.of(segments))

    @property
    def start(self) -> Position:
        """The first readable position."""
        numbers = range(len(self.segments))
        filled = next((segment for number in numbers if (segment := self.segments[number]).entries), None)
        return self.trimmed.position if filled is None else Position(filled.ledger_id, 0)

    @property
    def end(self) -> Position:
        """The position after the last committed entry."""
        for segment in reversed(self.segments):
            if segment.entries:
                return Position(segment.ledger_id, segment.entries)
        return self.trimmed.position

    @property
    def rows(self) -> int:
        """The number of committed rows since the log was created, including trimmed rows."""
        return self.segments[-1].row_end if self.segments else self.trimmed.rows

    def require_left(self, position: Position) -> None:
        """Raise DataLoss if an entry after a position was trimmed."""
        if position.ledger_id >= 0:
            self._require_not_trimmed(position, self.end)

    def slices(self, range_: PositionRange) -> Iterator[Slice]:
        """Yield the slices of a range, segment by segment. Raises DataLoss if the log does not contain the range."""
        self._require_contains(range_)
        start, end, segments = range_.start, min(range_.end, self.end), self.segments
        for at in range(segments.at(start.ledger_id), segments.at(end.ledger_id + 1)):
            part = _part(segments[at], start, end)
            if part is not None:
                yield part

    def cover(self, range_: PositionRange) -> Cover:
        """Find the segments of a range by binary search. Raises DataLoss if the log does not contain the range."""
        self._require_contains(range_)
        start, end, segments = range_.start, min(range_.end, self.end), self.segments
        first, stop = segments.at(start.ledger_id), segments.at(end.ledger_id + 1)
        edges = {at: _part(segments[at], start, end) for at in (first, stop - 1) if first <= at < stop}
        whole = {at for at, part in edges.items() if part is not None and part.end - part.first == segments[at].entries}
        cut = [part for at, part in edges.items() if part is not None and at not in whole]
        first, stop = first + (first not in whole), stop - (stop - 1 not in whole)
        return Cover(cut, first, max(first, stop))

    def entries_before(self, position: Position) -> int:
        """Return the number of readable entries before a position."""
        segments = self.segments
        at = segments.at(position.ledger_id)
        before = segments.entries(0, at)
        if at < len(segments) and segments[at].ledger_id == position.ledger_id:
            before += min(max(position.entry_id, 0), segments[at].entries)
        return before

    def rows_before(self, position: Position) -> int:
        """Return the number of rows before a position, including trimmed rows."""
        at = self.segments.at(position.ledger_id + 1) - 1
        if at < 0:
            return self.segments[0].first_row if self.segments else self.trimmed.rows
        segment = self.segments[at]
        if segment.ledger_id < position.ledger_id or position.entry_id >= segment.entries:
            return segment.row_end
        return int(segment.index().row_ends[position.entry_id - 1]) if position.entry_id > 0 else segment.first_row

    def measure(self, range_: PositionRange) -> tuple[int, int, int]:
        """Return the number of entries, of rows, and of bytes in segment files, of a range."""
        cover = self.cover(range_)
        entries = self.segments.entries(cover.first, cover.end) + sum(part.end - part.first for part in cover.cut)
        if not entries:
            return 0, 0, 0
        size = self.segments.stored_bytes(cover.first, cover.end)
        size += sum(bytes_between(part.segment, part.first, part.end) for part in cover.cut)
        return entries, self.rows_before(min(range_.end, self.end)) - self.rows_before(range_.start), size

    def blocks(self, range_: PositionRange, max_block_bytes: int) -> list[SegmentBlock]:
        """Return blocks with the entries of a range, in order.

        A block has at most `max_block_bytes`, or one larger entry.
        """
        found: list[SegmentBlock] = []
        for part in self.slices(range_):
            found += part.segment.blocks(part.first, part.end, max_block_bytes)
        return found

    def split(self, range_: PositionRange, target_bytes: int, max_parts: int) -> list[SplitPart]:
        """Split a range into at most `max_parts` parts of about `target_bytes`. Entries are not split."""
        if not range_:
            return []
        _, _, total = self.measure(range_)
        split_points = list(self._split_points(range_, max(target_bytes, -(-total // max_parts), 1)))
        edges = [range_.start, *split_points, min(range_.end, self.end)]
        parts = []
        for start, end in pairwise(edges):
            entries, rows, size = self.measure(PositionRange(start, end))
            parts.append(SplitPart(PositionRange(start, end), entries, rows, size))
        return parts

    def seek_time(self, timestamp_ms: int) -> Position:
        """Return the position of the first entry stored at or after `timestamp_ms`, or the log's end."""
        segments = self.segments
        count = segments.at(self.end.ledger_id + 1)  # an empty last segment is not counted
        at = bisect_left(range(count), timestamp_ms, key=lambda at: _last_ms(segments, at))
        if at == count:
            return self.end
        stamps = _stamps(segments[at])
        return Position(segments[at].ledger_id, int(np.searchsorted(stamps, timestamp_ms, side="left")))

    def first_timestamp_ms(self, range_: PositionRange) -> int:
        """Return the broker timestamp of the first entry of a range, or 0 for an empty range."""
        for part in self.slices(range_):
            return int(_stamps(part.segment)[part.first])
        return 0

    def last_timestamp_ms(self) -> int:
        """Return the broker timestamp of the last committed entry, or 0 for an empty log."""
        return _last_ms(self.segments, len(self.segments) - 1)

    def backlog(self, left: PositionRange) -> Backlog:
        """Return the exact backlog of a range: its entries with rows, its rows, and its bytes in segment files."""
        if not left:
            return Backlog(0, 0, 0)
        _, rows, size = self.measure(left)
        cover = self.cover(left)
        entries = self.segments.row_entries(cover.first, cover.end) + sum(map(delivering, cover.cut))
        return Backlog(entries, rows, size)

    def estimated_backlog(self, left: PositionRange) -> Backlog:
        """Return the backlog of a range, estimated from counts and averages of segments."""
        if not left:
            return Backlog(0, 0, 0)
        cover, segments = self.cover(left), self.segments
        totals = (segments.entries, segments.rows, segments.size_bytes)
        entries, rows, size = (of(cover.first, cover.end) for of in totals)
        for part in cover.cut:
            count, segment = part.end - part.first, part.segment
            entries += count
            rows += segment.rows * count // segment.entries
            size += segment.size_bytes * count // segment.entries
        return Backlog(entries, rows, size)

    def prefix(self, range_: PositionRange, rows: int, size_bytes: int) -> SplitPart:
        """Return the longest prefix of the range with at most `rows` rows and `size_bytes` bytes. It may be empty."""
        entries, taken_rows, taken_bytes, reached = 0, 0, 0, range_.start
        for part in self.slices(range_):
            count = min(_by_rows(part, rows - taken_rows), _by_bytes(part, size_bytes - taken_bytes))
            if count:
                entries += count
                taken_rows += _rows_of(part, count)
                taken_bytes += bytes_between(part.segment, part.first, part.first + count)
                reached = Position(part.segment.ledger_id, part.first + count)
            if count < part.end - part.first:
                break
        else:
            reached = min(range_.end, self.end) if range_ else reached
        return SplitPart(PositionRange(range_.start, reached), entries, taken_rows, taken_bytes)

    def limited(self, range_: PositionRange, limits: ReadLimits) -> SplitPart:
        """Return the longest prefix within limits, or up to the first entry with rows if that is larger.

        Raises DataLoss if the range begins after the log's end.
        """
        if range_.start > self.end and not self._is_at_end(range_.start):
            raise DataLoss(
                f"{self.name!r} ends at {self.end}, entries from {range_.start} were requested", hint=_LONGER_LOG
            )
        rows, size, _ = self.head(range_)
        return self.prefix(range_, max(rows, limits.rows), max(size, limits.size_bytes))

    def head(self, range_: PositionRange) -> tuple[int, int, int]:
        """Return rows and timestamp of the first entry with rows, and the bytes up to its end, as rows, bytes, ms."""
        size = 0
        for part in self.slices(range_):
            index = part.segment.index()
            before = _row_before(part)
            entry = part.first + int(np.searchsorted(index.row_ends[part.first : part.end], before, side="right"))
            if entry < part.end:
                size += bytes_between(part.segment, part.first, entry + 1)
                return int(index.row_ends[entry]) - before, size, int(index.timestamps[entry])
            size += bytes_between(part.segment, part.first, part.end)
        return 0, 0, 0

    @property
    def offloaded_id(self) -> int:
        """The id of the last segment before the first segment that is not offloaded; -1 if there is none."""
        segments = self.segments
        count = bisect_left(range(len(segments)), True, key=lambda at: segments[at].offloaded is None)
        return segments[count - 1].ledger_id if count else -1

    def end_since(self, since: Position | None) -> LedgerEnd:
        """Return the end of the log, and the numbers of entries, rows and bytes after `since`."""
        entries = rows = size = first_ms = 0
        if since is not None and since < self.end:
            left = PositionRange(since, self.end)
            entries, rows, size = self.measure(left)
            first_ms = self.first_timestamp_ms(left)
        return LedgerEnd(
            name=self.name,
            incarnation=self.incarnation,
            start=self.start,
            end=self.end,
            rows_since=rows,
            bytes_since=size,
            entries_since=entries,
            last_publish_ms=self.last_timestamp_ms(),
            terminated=self.terminated,
            first_publish_ms=first_ms,
        )

    def description(
        self, properties: Mapping[str, str], terminated: Position | None, *, lists: bool = True
    ) -> LedgerDescription:
        """Return the description of the log, with every segment if `lists` is set. The store adds the rest."""
        segments = self.segments
        return LedgerDescription(
            name=self.name,
            incarnation=self.incarnation,
            start=self.start,
            end=self.end,
            entries=segments.entries(0, len(segments)),
            size_bytes=segments.size_bytes(0, len(segments)),
            rows=self.rows,
            last_publish_ms=self.last_timestamp_ms(),
            schema_version=-1,
            segments=[
                SegmentDescription(
                    part.ledger_id,
                    part.entries,
                    part.size_bytes,
                    part.rows,
                    part.close_ms,
                    part.offloaded is not None,
                    part.offloaded is None or not part.offloaded.attempt.local_deleted,
                )
                for part in (segments if lists else ())
            ],
            segment_count=len(segments),
            cursors=[],
            properties=dict(properties),
            terminated=terminated,
        )

    def _split_points(self, range_: PositionRange, target_bytes: int) -> Iterator[Position]:
        filled = 0
        for part in self.slices(range_):
            if filled >= target_bytes:
                yield Position(part.segment.ledger_id, part.first)
                filled = 0
            offsets = part.segment.index().offsets[: part.segment.entries]
            base = int(offsets[part.first]) - filled
            while True:
                cut = int(np.searchsorted(offsets, base + target_bytes, side="left"))
                cut = max(cut, part.first + 1)
                if cut >= part.end:
                    break
                yield Position(part.segment.ledger_id, cut)
                base = int(offsets[cut])
            filled = bytes_between(part.segment, part.first, part.end) + int(offsets[part.first]) - base

    def _require_contains(self, range_: PositionRange) -> None:
        start, end = range_.start, range_.end
        if start.ledger_id >= 0 and start < end and start < self.start:
            self._require_not_trimmed(start, end)
            if self.trimmed == NOTHING_TRIMMED:
                raise DataLoss(
                    f"{self.name!r} begins at {self.start}, entries from {start} were requested",
                    hint="The offset belongs to another log, or the store was restored from another copy",
                )
        if self.end < start < end and not self._is_at_end(start):
            raise DataLoss(f"{self.name!r} ends at {self.end}, entries from {start} were requested", hint=_LONGER_LOG)
        if end != LATEST and end > self.end:
            raise DataLoss(
                f"{self.name!r} ends at {self.end}, entries up to {end} were requested",
                hint=_LONGER_LOG,
            )

    def _require_not_trimmed(self, start: Position, end: Position) -> None:
        trimmed = self.trimmed.position
        if start < trimmed:
            raise DataLoss(
                f"entries {PositionRange(start, min(trimmed, end))} of {self.name!r} were trimmed by its retention, "
                f"the log begins at {self.start}",
                hint="Start at the first remaining entry, or restore the store from a copy",
            )

    def _is_at_end(self, position: Position) -> bool:
        """Return whether a position after `end` is the same place as `end`, because its segment is empty."""
        return position.entry_id <= 0 and self.segments.find(position.ledger_id) is not None


def _stamps(segment: LogSegment) -> Integers:
    return segment.index().timestamps[: segment.entries]


def _last_ms(segments: LogSegments, at: int) -> int:
    """Return the broker timestamp of the last entry of the segments 0 to `at`, or 0 if these segments are empty."""
    for number in range(at, -1, -1):
        segment = segments[number]
        if segment.entries:
            # The record of a direct segment states the time, so that no object is fetched.
            known = None if segment.offloaded is None else segment.offloaded.attempt.stamp_time_ms
            return int(_stamps(segment)[-1]) if known is None else known
    return 0


def _part(segment: LogSegment, start: Position, end: Position) -> Slice | None:
    """Return the slice of a segment between two positions, or None if the slice is empty."""
    first = max(start.entry_id, 0) if segment.ledger_id == start.ledger_id else 0
    last = min(end.entry_id, segment.entries) if segment.ledger_id == end.ledger_id else segment.entries
    return Slice(segment, first, last) if first < last else None


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
    # The last of the `count` entries starts within the limit. It is excluded if it ends after the limit.
    return count - 1 if count and index.end_offset(part.first + count - 1) > limit else count


def _rows_of(part: Slice, count: int) -> int:
    return int(part.segment.index().row_ends[part.first + count - 1]) - _row_before(part)


def _row_before(part: Slice) -> int:
    return int(part.segment.index().row_ends[part.first - 1]) if part.first else part.segment.first_row


class LogWatch(Protocol):
    """Listener for changes of the logs of a store, for example the broker's cache."""

    def moved(self, before: LogSnapshot, now: LogSnapshot) -> None:
        """Receive the snapshots before and after a change of a log, on the thread of the change. Never raises."""
        ...

    def forget(self, ledger_ids: Collection[int]) -> None:
        """Receive the ids of deleted segments."""
        ...
