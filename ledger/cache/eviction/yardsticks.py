"""`segmented`: one ring of segments for the whole broker, as BookKeeper's read cache. No order, no clock, no counts.

Spans are put into the current segment until it is full; then the next one, which holds the oldest, is emptied and
becomes the current. Eviction is that one step. Segments are an equal part of the limit each: one per GiB, at least two.
What is larger than a segment is not put, and counted.

Where the entries are is known by the range cache of each ledger, over all segments: a range whose older half lies in
an older segment is found whole. (A map per segment, walked from the newest to the oldest, loses it.)

Two modes, by `managedLedgerCacheCopyEntries`: mapped, a segment holds references to the blocks as they came; copied,
the broker copies a block before it is put (`ledger.broker.reads.offloaded_reads`), so that nothing else is held by it.
In BookKeeper a segment is one piece of memory that is overwritten, and each read copies out of it; here readers get the
memory itself, so a block is let go of and never written again.

`lru`: the least recently read goes first, whoever waits for it. Invariant: the order holds each cached span once, the
one longest untouched first.
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
    """A ring of segments."""

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
        """Into the current segment, or, when it has no room, into the next, whose spans are then due to go."""
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
        """Segment after segment, the oldest first, until enough is free."""
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
        """The longest untouched first."""
        require_positive(size)
        freed = 0
        while freed < size and self._order:
            freed += remove(self._order.popitem(last=False)[0])
        return freed
