"""Snapshot of the readable entries of a managed ledger, and numbers of its entries for distances between readers.

Invariants
- A snapshot is immutable. It is replaced whole when the log moves.
- Segments are in the order of their ledger ids; `first_row` of each is the rows of all before it.
- `entries` of the open segment is its committed count: nothing beyond it is ever looked at.
- A position is *between* entries: `(L, E)` stands before entry E of ledger L. `(L, entries of L)` and `(next, 0)` are
  the same place. The log's end is always written in the first form, so that a rollover alone does not move it.
- Trimmed entries end at `trimmed`, which is also the same place as the first position that is left.
- Entry numbers are compared only within one moment. Trimming takes entries away at the beginning: number 7 may be
  number 3 afterwards. Distances stay.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from pyspark_ledger.ledger.errors import DataLoss
from pyspark_ledger.ledger.log.retention import NOTHING_TRIMMED, TrimMark
from pyspark_ledger.ledger.position import LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import SplitPart
from pyspark_ledger.ledger.segment.index import EntryIndex, Integers
from pyspark_ledger.ledger.segment.reader import SegmentBlock, blocks
from pyspark_ledger.ledger.tiering.offloaded_segment import OffloadedSegment

_LONGER_LOG = "The offset was written by a longer log: the store was restored from an older copy"


@dataclass(frozen=True, slots=True)
class LogSegment:
    """One ledger of a managed ledger. `size_bytes` is the sum of its entries' bytes; `close_ms` is 0 while open."""

    ledger_id: int
    entries: int
    first_row: int
    rows: int
    size_bytes: int
    close_ms: int
    path: Path
    index: Callable[[], EntryIndex]
    offloaded: OffloadedSegment | None = None

    @property
    def row_end(self) -> int:
        """Rows of the managed ledger up to and including this segment."""
        return self.first_row + self.rows

    def blocks(self, first: int, end: int, max_block_bytes: int) -> list[SegmentBlock]:
        """Return the blocks that have entries `[first, end)`, in order."""
        found = blocks(self.index(), self.path, self.ledger_id, first, end, max_block_bytes)
        return found if self.offloaded is None else [replace(block, home=self.offloaded) for block in found]


@dataclass(frozen=True, slots=True)
class Slice:
    """Entries `[first, end)` of one segment."""

    segment: LogSegment
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    """All committed entries of a managed ledger, as they stand."""

    name: str
    segments: tuple[LogSegment, ...]
    trimmed: TrimMark = NOTHING_TRIMMED
    terminated: bool = False

    @property
    def start(self) -> Position:
        """The first readable position."""
        for segment in self.segments:
            if segment.entries:
                return Position(segment.ledger_id, 0)
        return self.trimmed.position

    @property
    def end(self) -> Position:
        """The position after the last committed entry."""
        for segment in reversed(self.segments):
            if segment.entries:
                return Position(segment.ledger_id, segment.entries)
        return self.trimmed.position

    @property
    def rows(self) -> int:
        """Rows ever appended, counted by the last committed entry."""
        return self.segments[-1].row_end if self.segments else self.trimmed.rows

    def require_left(self, position: Position) -> None:
        """Raise DataLoss if entries that follow a position were trimmed."""
        if position.ledger_id >= 0:
            self._require_not_trimmed(position, self.end)

    def slices(self, range_: PositionRange) -> Iterator[Slice]:
        """The parts of the range, segment by segment; raises DataLoss where the log does not hold it any more."""
        self._require_holds(range_)
        start, end = range_.start, min(range_.end, self.end)
        for segment in self.segments:
            if segment.ledger_id < start.ledger_id or segment.ledger_id > end.ledger_id:
                continue
            first = max(start.entry_id, 0) if segment.ledger_id == start.ledger_id else 0
            last = end.entry_id if segment.ledger_id == end.ledger_id else segment.entries
            if first < last:
                yield Slice(segment, first, last)

    def rows_before(self, position: Position) -> int:
        """Rows of all entries before a position."""
        rows = self.segments[0].first_row if self.segments else self.trimmed.rows
        for segment in self.segments:
            if segment.ledger_id > position.ledger_id:
                break
            if segment.ledger_id < position.ledger_id or position.entry_id >= segment.entries:
                rows = segment.row_end
            elif position.entry_id > 0:
                rows = int(segment.index().row_ends[position.entry_id - 1])
            else:
                rows = segment.first_row
        return rows

    def measure(self, range_: PositionRange) -> tuple[int, int, int]:
        """Entries, rows and bytes (as they lie in segments) of a range."""
        entries = size = 0
        for part in self.slices(range_):
            entries += part.end - part.first
            size += bytes_between(part.segment, part.first, part.end)
        if not entries:
            return 0, 0, 0
        return entries, self.rows_before(min(range_.end, self.end)) - self.rows_before(range_.start), size

    def blocks(self, range_: PositionRange, max_block_bytes: int) -> list[SegmentBlock]:
        """Return the blocks that have a range's entries, in order, of at most `max_block_bytes` (or one entry)."""
        found: list[SegmentBlock] = []
        for part in self.slices(range_):
            found += part.segment.blocks(part.first, part.end, max_block_bytes)
        return found

    def split(self, range_: PositionRange, target_bytes: int, max_parts: int) -> list[SplitPart]:
        """Cut a range at entries into parts of about `target_bytes`; together they are exactly the range."""
        if not range_:
            return []
        _, _, total = self.measure(range_)
        cuts = list(self._cuts(range_, max(target_bytes, -(-total // max_parts), 1)))
        edges = [range_.start, *cuts, min(range_.end, self.end)]
        parts = []
        for start, end in pairwise(edges):
            entries, rows, size = self.measure(PositionRange(start, end))
            parts.append(SplitPart(PositionRange(start, end), entries, rows, size))
        return parts

    def seek_time(self, timestamp_ms: int) -> Position:
        """The first entry whose broker timestamp is at or after `timestamp_ms`; the end when there is none."""
        held = [segment for segment in self.segments if segment.entries]
        at = bisect_left(held, timestamp_ms, key=lambda segment: int(_stamps(segment)[-1]))
        if at == len(held):
            return self.end
        return Position(held[at].ledger_id, int(np.searchsorted(_stamps(held[at]), timestamp_ms, side="left")))

    def first_timestamp_ms(self, range_: PositionRange) -> int:
        """The broker timestamp of the first entry of a range; 0 when it has none."""
        for part in self.slices(range_):
            return int(_stamps(part.segment)[part.first])
        return 0

    def last_timestamp_ms(self) -> int:
        """The broker timestamp of the last committed entry; 0 for an empty log."""
        for segment in reversed(self.segments):
            if segment.entries:
                return int(_stamps(segment)[-1])
        return 0

    def _cuts(self, range_: PositionRange, target_bytes: int) -> Iterator[Position]:
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

    def _require_holds(self, range_: PositionRange) -> None:
        start, end = range_.start, range_.end
        if start.ledger_id >= 0 and start < end and start < self.start:
            self._require_not_trimmed(start, end)
            if self.trimmed == NOTHING_TRIMMED:
                raise DataLoss(
                    f"{self.name!r} begins at {self.start}, entries from {start} were asked for",
                    hint="The offset is of another log, or the store was restored from another copy",
                )
        if self.end < start < end and not self._is_at_end(start):
            raise DataLoss(f"{self.name!r} ends at {self.end}, entries from {start} were asked for", hint=_LONGER_LOG)
        if end != LATEST and end > self.end:
            raise DataLoss(
                f"{self.name!r} ends at {self.end}, entries up to {end} were asked for",
                hint=_LONGER_LOG,
            )

    def _require_not_trimmed(self, start: Position, end: Position) -> None:
        trimmed = self.trimmed.position
        if start < trimmed:
            raise DataLoss(
                f"entries {PositionRange(start, min(trimmed, end))} of {self.name!r} were trimmed by its retention, "
                f"the log begins at {self.start}",
                hint="Start from the beginning of what is left, or restore the store from a copy",
            )

    def _is_at_end(self, position: Position) -> bool:
        """Whether a position after the end is the same place: before the first entry of a ledger that has none yet."""
        return position.entry_id <= 0 and any(s.ledger_id == position.ledger_id for s in self.segments)


def _stamps(segment: LogSegment) -> Integers:
    return segment.index().timestamps[: segment.entries]


def bytes_between(segment: LogSegment, first: int, end: int) -> int:
    """Bytes from the frame of entry `first` to the end of entry `end - 1`, headers and padding between included."""
    index = segment.index()
    return index.end_offset(end - 1) - int(index.offsets[first])


class EntryNumbers:
    """Numbers positions of a log; its segments are summed up once for each snapshot."""

    def __init__(self, snapshot: Callable[[], LogSnapshot]) -> None:
        self._snapshot = snapshot
        self._seen: LogSnapshot | None = None
        self._ids: list[int] = []
        self._before: list[int] = []

    def __call__(self, position: Position) -> int:
        """Entries of the log before `position`."""
        snapshot = self._snapshot()
        if snapshot is not self._seen:
            self._ids = [segment.ledger_id for segment in snapshot.segments]
            self._before = [0, *accumulate(segment.entries for segment in snapshot.segments)]
            self._seen = snapshot
        at = bisect_right(self._ids, position.ledger_id) - 1
        if at < 0:
            return 0
        if self._ids[at] < position.ledger_id:
            return self._before[at + 1]
        return min(self._before[at] + max(position.entry_id, 0), self._before[at + 1])
