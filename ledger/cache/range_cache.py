"""Cached entries of one managed ledger, by position. A cached range is the unit of eviction.

A *cached range* has consecutive entries of one block, usually all entries of the block. It lacks entries that are
cached in another block, and entries that were removed.

Rules
- `put` adds only entries that are not cached. Cached entries stay.
- `get` returns the cached parts of a range, in order, and its missing parts.
- `remove` removes a cached range only once.
- A range `[first, end)` excludes `end`. The caller of every method holds the cache's lock (`ledger.cache.cache`).

Invariants
- Cached ranges do not overlap. `size` and `entries` are the sums over them.
- `span.cache` is the `RangeCache` that contains the cached range, and None after its removal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sortedcontainers import SortedDict

from pyspark_ledger.ledger.cache.block import CachedBlock
from pyspark_ledger.ledger.cache.expected_reads import LedgerReaders
from pyspark_ledger.ledger.position import Position, PositionRange

_FIRST_OF_ALL = (-(2**63), 0)


class CachedRange:
    """Entries `[first, end)` of a block. `timestamp_ms` is when they were cached, or last postponed by a policy."""

    __slots__ = (
        "accessed", "block", "cache", "end", "first", "ledger_id", "readers", "requeues", "size", "timestamp_ms",
        "used_ms",
    )  # fmt: skip

    def __init__(self, block: CachedBlock, first: int, end: int, timestamp_ms: int, readers: LedgerReaders) -> None:
        self.block = block
        self.ledger_id = block.ledger_id
        self.first = first
        self.end = end
        self.size = block.cut(first, end)[1]
        self.used_ms = self.timestamp_ms = timestamp_ms
        self.readers = readers
        self.requeues = 0
        self.accessed = False
        self.cache: RangeCache | None = None

    @property
    def entries(self) -> int:
        return self.end - self.first

    def expected_reads(self) -> int:
        """Return the number of readers that still have to read an entry of the range."""
        return self.readers.expected(self.ledger_id, self.first, self.end)

    def __repr__(self) -> str:
        return f"CachedRange({self.ledger_id}:[{self.first}, {self.end}), {self.size} bytes)"


class Piece(NamedTuple):
    """Entries `[first, end)` of a cached range."""

    span: CachedRange
    first: int
    end: int


class RangeHit(NamedTuple):
    """Cached parts `found` and missing parts `missing` of a range. A missing part is a pair `(first, end)`."""

    found: list[Piece]
    missing: list[tuple[int, int]]


class Invalidated(NamedTuple):
    """Removed ranges, each with the bytes of its block that became free, and the new ranges of remaining entries."""

    removed: list[tuple[CachedRange, int]]
    parts: list[CachedRange]


class RangeCache:
    """Cached ranges of one managed ledger, and its readers."""

    def __init__(self, name: str, readers: LedgerReaders | None = None) -> None:
        self.name = name
        self.readers = LedgerReaders() if readers is None else readers
        self.size = 0
        self.entries = 0
        self._spans: SortedDict[tuple[int, int], CachedRange] = SortedDict()

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[CachedRange]:
        return iter(list(self._spans.values()))

    def put(self, block: CachedBlock, timestamp_ms: int) -> list[CachedRange]:
        """Cache the uncached entries of a block. Return the new ranges."""
        added = []
        for first, end in self.missing(block.ledger_id, block.first, block.end):
            span = CachedRange(block, first, end, timestamp_ms, self.readers)
            self._insert(span)
            block.spans += 1
            added.append(span)
        return added

    def get(self, ledger_id: int, first: int, end: int) -> RangeHit:
        """Return entries `[first, end)` of a segment (file). Marks their ranges as accessed."""
        exact = self._spans.get((ledger_id, first))
        if exact is not None and exact.end >= end:
            exact.accessed = True
            return RangeHit([Piece(exact, first, end)], [])
        found, missing, at = [], [], first
        for span in self.overlapping(ledger_id, first, end):
            span.accessed = True
            if span.first > at:
                missing.append((at, span.first))
            start, at = max(span.first, first), min(span.end, end)
            found.append(Piece(span, start, at))
        if at < end:
            missing.append((at, end))
        return RangeHit(found, missing)

    def missing(self, ledger_id: int, first: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of `[first, end)` that are not cached, as pairs. Marks no range as accessed."""
        missing, at = [], first
        for span in self.overlapping(ledger_id, first, end):
            if span.first > at:
                missing.append((at, span.first))
            at = span.end
        if at < end:
            missing.append((at, end))
        return missing

    def grow(self, span: CachedRange, end: int, size: int) -> None:
        """Extend a range and its block by the following entries up to `end`, with `size` bytes."""
        block = span.block
        self.entries += end - span.end
        self.size += size
        span.end = block.end = end
        span.size += size
        block.size += size

    def remove(self, span: CachedRange) -> int:
        """Remove a range. Return the size of its block if that was the block's last range, otherwise 0."""
        if span.cache is not self:
            return 0
        del self._spans[span.ledger_id, span.first]
        span.cache = None
        self.size -= span.size
        self.entries -= span.entries
        return _released(span.block)

    def invalidate(self, range_: PositionRange) -> Invalidated:
        """Remove the entries of a range.

        If a cached range is only partly in the range, the remaining entries are new ranges.
        """
        low = self._at_or_before(range_.start.ledger_id, range_.start.entry_id)
        keys = list(self._spans.irange(low, (range_.end.ledger_id, range_.end.entry_id), inclusive=(True, False)))
        found = Invalidated([], [])
        for span in [self._spans[key] for key in keys if key[0] >= range_.start.ledger_id]:
            first = range_.start.entry_id if span.ledger_id == range_.start.ledger_id else span.first
            end = range_.end.entry_id if span.ledger_id == range_.end.ledger_id else span.end
            if max(first, span.first) < min(end, span.end):
                released = self._cut_out(span, max(first, span.first), min(end, span.end), found.parts)
                found.removed.append((span, released))
        return found

    def first(self) -> CachedRange | None:
        return self._spans.peekitem(0)[1] if self._spans else None

    def until(self, position: Position | None) -> Iterator[CachedRange]:
        """Yield the ranges that end at or before a position, in order. None yields all ranges.

        The caller may remove ranges meanwhile.
        """
        last = None if position is None else (position.ledger_id, position.entry_id)
        for key in list(self._spans.irange(None, last)):
            span = self._spans.get(key)
            if span is not None and (last is None or (span.ledger_id, span.end) <= last):
                yield span

    def last_before(self, ledger_id: int, entry_id: int) -> CachedRange | None:
        """Return the last range that starts before a position."""
        at = self._spans.bisect_left((ledger_id, entry_id)) - 1
        return None if at < 0 else self._spans.peekitem(at)[1]

    def _insert(self, span: CachedRange) -> None:
        self._spans[span.ledger_id, span.first] = span
        span.cache = self
        self.size += span.size
        self.entries += span.entries

    def overlapping(self, ledger_id: int, first: int, end: int) -> list[CachedRange]:
        """Return the ranges with an entry of `[first, end)`, in order. Marks no range as accessed."""
        low = self._at_or_before(ledger_id, first)
        keys = self._spans.irange(low, (ledger_id, end), inclusive=(True, False))
        spans = [self._spans[key] for key in keys]
        return [span for span in spans if span.ledger_id == ledger_id and span.end > first]

    def _at_or_before(self, ledger_id: int, entry_id: int) -> tuple[int, int]:
        """Return the key of the range that may contain an entry."""
        at = self._spans.bisect_right((ledger_id, entry_id)) - 1
        return _FIRST_OF_ALL if at < 0 else self._spans.peekitem(at)[0]

    def _cut_out(self, span: CachedRange, first: int, end: int, parts: list[CachedRange]) -> int:
        """Replace a range by the ranges before `first` and after `end`. Return the bytes that became free."""
        block = span.block
        remaining = [(start, stop) for start, stop in ((span.first, first), (end, span.end)) if start < stop]
        block.spans += len(remaining)  # counted before the removal, which would otherwise release the block
        freed = self.remove(span)
        for start, stop in remaining:
            part = CachedRange(block, start, stop, span.timestamp_ms, span.readers)
            part.requeues, part.accessed, part.used_ms = span.requeues, span.accessed, span.used_ms
            self._insert(part)
            parts.append(part)
        return freed


def _released(block: CachedBlock) -> int:
    """Reduce a block's number of ranges by one. If none is left, release the block and return its size, else 0."""
    block.spans -= 1
    if block.spans:
        return 0
    if block.storage is not None:
        block.storage.release()
    return block.size
