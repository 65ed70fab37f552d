"""Ordered segments of a managed ledger, with running totals of their sizes (*prefix sums*).

A segment is a file of the ledger. Only the last segment is open for appends; all others are sealed and never change.
The size of a range of segments is the difference of two prefix sums.

Invariants
- `LogSegments` is an immutable view. All views of a log share append-only lists of its sealed segments. A view has its
  own start, end and open segment.
- An append or a rollover creates a new view and does not copy the lists. A trim, which deletes the oldest segments,
  moves the start of the view. The lists are copied if the trimmed part is larger than the rest, or if a segment is
  replaced.
- The metadata contain two counts of each sealed segment: the bytes in its file and its entries with rows. A segment of
  an earlier version of this package has no such counts, so they are computed once from its index.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import overload

import numpy as np

from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.segment.reader import SegmentBlock, blocks
from pyspark_ledger.ledger.tiering.offloaded_segment import OffloadedSegment

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class LogSegment:
    """Segment of a managed ledger. `size_bytes` is the sum of its entries' bytes. `close_ms` is 0 while it is open.

    A frame is an entry with its header in the file. `stored_bytes` is the number of bytes from the first frame to the
    end of the last frame. `row_entries` is the number of entries that have rows for readers. Both may be `UNKNOWN`.
    """

    ledger_id: int
    entries: int
    first_row: int
    rows: int
    size_bytes: int
    close_ms: int
    path: Path
    index: Callable[[], EntryIndex]
    offloaded: OffloadedSegment | None = None
    stored_bytes: int = UNKNOWN
    row_entries: int = UNKNOWN

    @property
    def row_end(self) -> int:
        """The number of rows of the log up to the end of this segment."""
        return self.first_row + self.rows

    @property
    def is_copied(self) -> bool:
        """Whether the segment is offloaded and still has a local copy."""
        return self.offloaded is not None and not self.offloaded.attempt.local_deleted

    def blocks(self, first: int, end: int, max_block_bytes: int) -> list[SegmentBlock]:
        """Return the blocks with the entries `[first, end)`, in order."""
        found = blocks(self.index(), self.path, self.ledger_id, first, end, max_block_bytes)
        return found if self.offloaded is None else [replace(block, source=self.offloaded) for block in found]


@dataclass(frozen=True, slots=True)
class Slice:
    """Entries `[first, end)` of one segment."""

    segment: LogSegment
    first: int
    end: int


def bytes_between(segment: LogSegment, first: int, end: int) -> int:
    """Return the bytes of the entries `[first, end)` in the file, with headers and padding."""
    index = segment.index()
    return index.end_offset(end - 1) - int(index.offsets[first])


def delivering(part: Slice) -> int:
    """Return the number of entries of a slice that have rows for readers."""
    return row_entries(part.segment.index(), part.first, part.end, part.segment.first_row)


def row_entries(index: EntryIndex, first: int, end: int, first_row: int) -> int:
    """Return the number of entries in `[first, end)` of an index that have rows for readers."""
    before = first_row if first == 0 else int(index.row_ends[first - 1])
    return int(np.count_nonzero(np.diff(index.row_ends[first:end], prepend=before)))


class _Sealed:
    """Shared lists of sealed segments, and their prefix sums. The sum at `i` covers the first `i` segments."""

    def __init__(self, segments: Iterable[LogSegment]) -> None:
        self.segments: list[LogSegment] = []
        self.ids: list[int] = []
        self.entries, self.sizes, self.closed = [0], [0], [0]
        self._stored, self._delivering = [0], [0]
        self._lock = threading.Lock()
        for segment in segments:
            self.append(segment)

    def append(self, segment: LogSegment) -> None:
        """Add a segment. Only one thread at a time calls this."""
        self.ids.append(segment.ledger_id)
        self.entries.append(self.entries[-1] + segment.entries)
        self.sizes.append(self.sizes[-1] + segment.size_bytes)
        self.closed.append(max(self.closed[-1], segment.close_ms))
        self.segments.append(segment)
        with self._lock:
            for sums, more in ((self._stored, segment.stored_bytes), (self._delivering, segment.row_entries)):
                if more != UNKNOWN and len(sums) == len(self.segments):
                    sums.append(sums[-1] + more)

    def is_counted(self, upto: int) -> bool:
        """Return whether all sums of the first `upto` segments are known. Otherwise an index must be read."""
        return min(len(self._stored), len(self._delivering)) > upto

    def stored(self, upto: int) -> list[int]:
        """Return the prefix sums of bytes in files, for at least the first `upto` segments."""
        return self._extended(self._stored, upto, _stored_bytes)

    def delivering(self, upto: int) -> list[int]:
        """Return the prefix sums of entries with rows, for at least the first `upto` segments."""
        return self._extended(self._delivering, upto, _row_entries)

    def _extended(self, sums: list[int], upto: int, count: Callable[[LogSegment], int]) -> list[int]:
        if len(sums) <= upto:
            with self._lock:
                for segment in self.segments[len(sums) - 1 : upto]:
                    sums.append(sums[-1] + count(segment))
        return sums


class LogSegments(Sequence[LogSegment]):
    """Immutable view of the segments of a log."""

    __slots__ = ("_end", "_first", "_open", "_sealed")

    def __init__(self, sealed: _Sealed, first: int, end: int, being_written: LogSegment | None = None) -> None:
        self._sealed, self._first, self._end, self._open = sealed, first, end, being_written

    @classmethod
    def of(cls, segments: Iterable[LogSegment]) -> LogSegments:
        """Return a view of `segments` with new lists."""
        sealed = _Sealed(segments)
        return cls(sealed, 0, len(sealed.segments))

    def __len__(self) -> int:
        return self._end - self._first + (self._open is not None)

    @overload
    def __getitem__(self, at: int) -> LogSegment: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[LogSegment]: ...
    def __getitem__(self, at: int | slice) -> LogSegment | Sequence[LogSegment]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        length = len(self)
        at += length if at < 0 else 0
        if not 0 <= at < length:
            raise IndexError(at)
        if self._open is not None and at == length - 1:
            return self._open
        return self._sealed.segments[self._first + at]

    def __iter__(self) -> Iterator[LogSegment]:
        yield from islice(self._sealed.segments, self._first, self._end)
        if self._open is not None:
            yield self._open

    def at(self, ledger_id: int) -> int:
        """Return the place in this view of the first segment whose id is at least `ledger_id`."""
        found = bisect_left(self._sealed.ids, ledger_id, self._first, self._end) - self._first
        beyond = self._open is not None and found == self._end - self._first and self._open.ledger_id < ledger_id
        return found + beyond

    def find(self, ledger_id: int) -> LogSegment | None:
        """Return the segment with this id, or None if the view does not have it."""
        at = self.at(ledger_id)
        return self[at] if at < len(self) and self[at].ledger_id == ledger_id else None

    def closed_before(self, ms: int, end: int) -> int:
        """Return the number of segments at the start that were sealed before `ms`; at most `end`."""
        closed = self._sealed.closed
        return bisect_left(closed, ms, self._first + 1, self._first + 1 + end) - self._first - 1

    def entries(self, first: int, end: int) -> int:
        """Return the number of entries of the segments `[first, end)`."""
        return self._between(self._sealed.entries, first, end, lambda segment: segment.entries)

    def size_bytes(self, first: int, end: int) -> int:
        """Return the bytes of the entries of the segments `[first, end)`."""
        return self._between(self._sealed.sizes, first, end, lambda segment: segment.size_bytes)

    def stored_bytes(self, first: int, end: int) -> int:
        """Return the sum of `stored_bytes` of the segments `[first, end)`."""
        return self._between(self._sealed.stored(self._sealed_upto(end)), first, end, _stored_bytes)

    def row_entries(self, first: int, end: int) -> int:
        """Return the number of entries in the segments `[first, end)` that have rows for readers."""
        return self._between(self._sealed.delivering(self._sealed_upto(end)), first, end, _row_entries)

    def rows(self, first: int, end: int) -> int:
        """Return the number of rows of the segments `[first, end)`."""
        return self[end - 1].row_end - self[first].first_row if first < end else 0

    def with_open(self, segment: LogSegment | None) -> LogSegments:
        """Return a view with the same sealed segments and `segment` as the open segment."""
        return LogSegments(self._sealed, self._first, self._end, segment)

    def sealed(self, segment: LogSegment) -> LogSegments:
        """Return a view with one more sealed segment."""
        lists, first = self._sealed, self._first
        if self._end < len(lists.segments):
            lists, first = _Sealed(lists.segments[first : self._end]), 0
        lists.append(segment)
        return LogSegments(lists, first, len(lists.segments))

    def without_first(self, count: int) -> LogSegments:
        """Return a view of the sealed segments without the first `count` segments."""
        first = self._first + count
        # New lists leave the trimmed segments out. Reason: a sum over these segments may need their indexes, which are
        # deleted.
        if 2 * first > self._end or not self._sealed.is_counted(first):
            return LogSegments.of(self._sealed.segments[first : self._end])
        return LogSegments(self._sealed, first, self._end)

    def replaced(self, segment: LogSegment) -> LogSegments:
        """Return a view in which `segment` replaces the sealed segment with the same id."""
        return LogSegments.of(segment if old.ledger_id == segment.ledger_id else old for old in self)

    def _sealed_upto(self, end: int) -> int:
        return min(self._first + end, self._end)

    def _between(self, sums: list[int], first: int, end: int, of_open: Callable[[LogSegment], int]) -> int:
        if first >= end:
            return 0
        found = sums[self._sealed_upto(end)] - sums[self._sealed_upto(first)]
        return found + (of_open(self._open) if self._open is not None and first < len(self) <= end else 0)


def _stored_bytes(segment: LogSegment) -> int:
    if segment.stored_bytes != UNKNOWN:
        return segment.stored_bytes
    return bytes_between(segment, 0, segment.entries) if segment.entries else 0


def _row_entries(segment: LogSegment) -> int:
    return delivering(Slice(segment, 0, segment.entries)) if segment.row_entries == UNKNOWN else segment.row_entries
