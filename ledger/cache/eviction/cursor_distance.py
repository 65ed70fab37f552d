"""`cursor-distance`: a policy that evicts the range that will probably be read last.

A range is the unit of the cache: entries of one block that were appended or read together. Readers move forward. So the
next reader of a range is the nearest reader behind it. The greater the distance between them, the later the read.

    1. First, ranges without expected reads are evicted, the oldest first. Expected reads are readers that still have
       to read the range.
    2. Then the range with the greatest distance to its next reader is evicted, until enough memory is free. The
       distance is in bytes of the log. Of equal ranges, the range with fewer expected reads is evicted first.

Of the ranges between two neighbouring readers, the last has the greatest distance. So a pass compares one range for
each reader. It finds each of them by a binary search.

Rule: Only ranges without expected reads are evicted because of their age. Ranges from object storage have a longer
maximum age, because reading them again is expensive.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from math import inf

from pyspark_ledger.ledger.cache.eviction.policy import (
    CacheLimits,
    EvictionPolicy,
    Remove,
    WantedRead,
    expects_others,
    require_positive,
)
from pyspark_ledger.ledger.cache.range_cache import CachedRange, RangeCache
from pyspark_ledger.ledger.position import Position

_Candidate = tuple[float, int, int, CachedRange, RangeCache, Position]


class CursorDistancePolicy(EvictionPolicy):
    """Policy that evicts the range with the greatest distance to the nearest reader behind it."""

    def __init__(self, limits: CacheLimits) -> None:
        super().__init__(limits)
        self._caches: dict[RangeCache, int] = {}
        self._order: OrderedDict[CachedRange, RangeCache] = OrderedDict()
        self._requeues = 0

    @property
    def requeues(self) -> int:
        return self._requeues

    def admits(self, wanted: WantedRead) -> bool:
        return expects_others(wanted)

    def added(self, span: CachedRange) -> None:
        cache = span.cache
        if cache is not None:
            self._order[span] = cache
            self._caches[cache] = self._caches.get(cache, 0) + 1

    def removed(self, span: CachedRange) -> None:
        cache = self._order.pop(span, None)
        if cache is not None:
            self._caches[cache] -= 1
            if not self._caches[cache]:
                del self._caches[cache]

    def expire(self, now_ms: int, remove: Remove) -> int:
        """Evict ranges without expected reads that are older than the threshold, the oldest first."""
        cutoff, freed = now_ms - self.settings.managedLedgerCacheEvictionTimeThresholdMillis, 0
        for span in self._older_than(cutoff):
            if span.expected_reads() > 0 or self._kept_for_others(span, now_ms):
                # The range counts as new, so that the next passes do not check it again until it is old.
                span.timestamp_ms = now_ms
                span.requeues += 1
                self._requeues += 1
                self._order.move_to_end(span)
            else:
                freed += remove(span)
        return freed

    def free(self, size: int, _now_ms: int, remove: Remove) -> int:
        """Evict ranges without expected reads, then the ranges with the greatest distance."""
        require_positive(size)
        freed = self.free_unneeded(size, remove)
        if freed >= size:
            return freed
        candidates = [found for cache in self._caches for found in self._farthest_of(cache)]
        heapq.heapify(candidates)
        while freed < size and candidates:
            _, _, _, span, cache, behind = heapq.heappop(candidates)
            freed += remove(span)
            earlier = self._candidate(cache, behind, (span.ledger_id, span.first))
            if earlier is not None:
                heapq.heappush(candidates, earlier)
        while freed < size and self._order:  # only ranges behind all readers are left
            freed += remove(next(iter(self._order)))
        return freed

    def free_unneeded(self, size: int, remove: Remove) -> int:
        """Evict ranges without expected reads, the least recently read first."""
        freed = 0
        for span in sorted(self._unneeded(), key=lambda span: span.used_ms):
            if freed >= size:
                break
            freed += remove(span)
        return freed

    def _kept_for_others(self, span: CachedRange, now_ms: int) -> bool:
        """Return whether a range from object storage was read recently. Another query may soon start and read it."""
        if span.block.storage is None:
            return False
        if span.accessed:
            span.accessed, span.used_ms = False, now_ms
        return now_ms - span.used_ms < self.settings.managedLedgerCacheEvictionTimeThresholdMillisOffloaded

    def _older_than(self, cutoff_ms: int) -> list[CachedRange]:
        old = []
        for span in self._order:
            if span.timestamp_ms >= cutoff_ms:
                break
            old.append(span)
        return old

    def _unneeded(self) -> Iterator[CachedRange]:
        """Yield the ranges of each ledger that are behind all its readers and have no expected reads."""
        for cache in self._caches:
            slowest = cache.readers.next_places.slowest()
            for span in cache.until(slowest):
                if span in self._order and span.expected_reads() <= 0:
                    yield span

    def _farthest_of(self, cache: RangeCache) -> Iterator[_Candidate]:
        """Yield for each reader the range that is farthest from it: the last range before the next reader."""
        places = cache.readers.next_places.places()
        befores = [(place.ledger_id, place.entry_id) for place in places[1:]]
        for behind, before in zip(places, [*befores, (2**63, 0)], strict=True):
            found = self._candidate(cache, behind, before)
            if found is not None:
                yield found

    def _candidate(self, cache: RangeCache, behind: Position, before: tuple[int, int]) -> _Candidate | None:
        """Return the last range that starts before `before`, if it is ahead of the reader at `behind`."""
        span = cache.last_before(*before)
        # A range that is not in `_order` belongs to the other pool: its block is of another kind.
        while span is not None and span not in self._order:
            span = cache.last_before(span.ledger_id, span.first)
        if span is None or (span.ledger_id, span.end) <= (behind.ledger_id, behind.entry_id):
            return None
        first = cache.readers.number(Position(span.ledger_id, span.first))
        entries, expected = max(first - cache.readers.number(behind), 0), span.expected_reads()
        distance = entries * span.size / span.entries if expected > 0 else inf
        return (-distance, expected, id(span), span, cache, behind)
