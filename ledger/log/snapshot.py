"""Snapshot of the readable entries of a managed ledger. It answers questions about positions, counts and ranges.

Invariants
- A snapshot is immutable. A new snapshot replaces it when the log changes.
- Segments are ordered by id. `first_row` of a segment is the number of rows in all earlier segments.
- `entries` of the open segment is the number of committed entries. Readers never see a later entry of its file.
- A position is *between* entries: `(S, E)` is before entry E of segment S. `(S, entries of S)` and `(next segment, 0)`
  are the same position. The log's end always has the first form, so that a rollover does not change it.
- Retention has trimmed (deleted) all entries before the position `trimmed`. The first readable entry is behind this
  position.
- The number of entries before a position is valid only within one snapshot, because a trim removes entries at the
  start. The distance of two positions is the same in all snapshots.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from pyspark_ledger.ledger.errors import DataLoss
from pyspark_ledger.ledger.log.retention import NOTHING_TRIMMED, TrimMark
from pyspark_ledger.ledger.log.segments.log_segments import LogSegment, LogSegments, Slice, bytes_between
from pyspark_ledger.ledger.position import LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import SplitPart
from pyspark_ledger.ledger.segment.index import Integers
from pyspark_ledger.ledger.segment.reader import SegmentBlock

_LONGER_LOG = "The offset was written when the log was longer: the store was restored from an older copy"


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


class LogWatch(Protocol):
    """Listener for changes of the logs of a store, for example the broker's cache."""

    def moved(self, before: LogSnapshot, now: LogSnapshot) -> None:
        """Receive the snapshots before and after a change of a log, on the thread of the change. Never raises."""
        ...

    def forget(self, ledger_ids: Collection[int]) -> None:
        """Receive the ids of deleted segments."""
        ...
