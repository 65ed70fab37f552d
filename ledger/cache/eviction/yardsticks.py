"""`segmented`: one ring of segments for the whole broker, as in BookKeeper's read cache. No order, no clock, no counts.

Ranges are put into the current segment until it is full. Then the next one, which has the oldest ranges, is emptied and
becomes the current one. That step is the eviction. Segments are equal parts of the limit: one for each GiB, at least
two. A range larger than a segment is counted, and not put.

The range cache of each ledger finds entries over all segments, so a range over two segments is found as a whole. A map
for each segment, walked from the newest to the oldest, would lose it.

`managedLedgerCacheCopyEntries` selects one of two modes. Mapped: a segment references the blocks as they came. Copied:
the broker copies a block before it is put (`ledger.broker.reads.offloaded_reads`), so no larger buffer is referenced.
In BookKeeper a segment is one buffer that is overwritten, and each read copies out of it. Here readers get the memory
itself, so a block is released and never overwritten.

`lru`: the least recently read range is evicted first, regardless of expected reads. Invariant: the order has each
cached range once, the longest untouched first.
"""

from __future__ import annotations

from collections import OrderedDict

from pyspark_ledger.ledger.cache.eviction.policy import (
    CacheLimits,
    EvictionPolicy,
    Remove,
    WantedRead,
    require_positive,
)
from pyspark_ledger.ledger.cache.range_cache import CachedRange

_SEGMENT_BYTES_MAX = 2**30
_ALIGNMENT = 64


class SegmentedPolicy(EvictionPolicy):
    """Ring of segments."""

    grows = False

    def __init__(self, limits: CacheLimits, segments: int = 0) -> None:
        super().__init__(limits)
        count = segments or max(2, limits.size // _SEGMENT_BYTES_MAX)
        self._segments: list[dict[CachedRange, None]] = [{} for _ in range(count)]
        self._offset = 0
        self._current = 0

    @property
    def segment_bytes(self) -> int:
        return self.limits.size // len(self._segments)

    def admits(self, _wanted: WantedRead) -> bool:
        return True

    def added(self, span: CachedRange) -> None:
        """Put a range into the current segment or, without room, into the next one, whose ranges are then due for
        eviction.
        """
        aligned = -(-span.size // _ALIGNMENT) * _ALIGNMENT
        if span.size > self.segment_bytes:
            self.due.append(span)
            return
        if self._offset + span.size > self.segment_bytes:
            self._current = (self._current + 1) % len(self._segments)
            self.due += self._segments[self._current]
            self._segments[self._current] = {}
            self._offset = 0
        self._offset += aligned
        self._segments[self._current][span] = None

    def removed(self, span: CachedRange) -> None:
        for segment in self._segments:
            segment.pop(span, None)

    def free(self, size: int, _now_ms: int, remove: Remove) -> int:
        """Evict segment after segment, the oldest first, until enough is free."""
        require_positive(size)
        freed = 0
        for turn in range(1, len(self._segments) + 1):
            if freed >= size:
                break
            segment = self._segments[(self._current + turn) % len(self._segments)]
            freed += sum(remove(span) for span in list(segment))
        return freed


class LruPolicy(EvictionPolicy):
    """Least recently used, without a time limit."""

    def __init__(self, limits: CacheLimits) -> None:
        super().__init__(limits)
        self._order: OrderedDict[CachedRange, None] = OrderedDict()

    def admits(self, _wanted: WantedRead) -> bool:
        return True

    def added(self, span: CachedRange) -> None:
        self._order[span] = None

    def read(self, span: CachedRange) -> None:
        self._order.move_to_end(span)

    def removed(self, span: CachedRange) -> None:
        self._order.pop(span, None)

    def free(self, size: int, _now_ms: int, remove: Remove) -> int:
        """Evict the longest untouched first."""
        require_positive(size)
        freed = 0
        while freed < size and self._order:
            freed += remove(self._order.popitem(last=False)[0])
        return freed
