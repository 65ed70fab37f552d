"""`segmented`: a policy that ignores readers and age.

It works like the read cache of Apache BookKeeper, Pulsar's storage. The whole pool is a ring of cache segments of equal
size: one for each GiB of the limit, at least two. New ranges go to the current cache segment until it is full. Then the
next cache segment, which has the oldest ranges, is emptied and becomes the current one. A range larger than a cache
segment is evicted at once.

In BookKeeper a segment is one buffer. New entries overwrite it, and each read copies entries from it. Here readers get
the memory itself. So a cache segment is a list of ranges, and their blocks are released, never overwritten. With the
setting `managedLedgerCacheCopyEntries`, the broker copies blocks before they are cached.
"""

from __future__ import annotations

from pyspark_ledger.ledger.cache.eviction.policy import (
    UNLIMITED,
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
    """Ring of cache segments. Evicts the oldest cache segment as a whole."""

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
        """Add a range to the current cache segment. If that is full, use the next one, and evict its ranges."""
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

    def free(self, size: int, _now_ms: int, remove: Remove, _most: int = UNLIMITED, _at_least: int = 0) -> int:
        """Evict cache segments, the oldest first, until enough is free. A cache segment is evicted in one step."""
        require_positive(size)
        freed = 0
        for distance in range(1, len(self._segments) + 1):
            if freed >= size:
                break
            segment = self._segments[(self._current + distance) % len(self._segments)]
            freed += sum(remove(span) for span in list(segment))
        return freed
