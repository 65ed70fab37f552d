"""`cursor-distance`: evict the range that is farthest ahead of the nearest reader behind it.

Readers move forward, so the next read of a range is that of the nearest reader behind it. The farther that reader is,
the later it comes. This approximates the optimum, which evicts the entry that is needed last.

    1. ranges without expected reads, the oldest first
    2. then, repeatedly, the one that is farthest ahead of its reader, in bytes, cached or not; of equals the one with
       fewer expected reads

Between two neighbouring readers the farthest is the last range before the front one, so only those are compared. A pass
costs a bisection for each reader and each evicted range.

Rule: only ranges without expected reads are evicted by time. Those from object storage stay longer, because their room
is not needed until then.
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
    """Policy that evicts the range farthest ahead of its reader."""

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
        """Evict ranges without expected reads, oldest first, up to the first that is young enough."""
        cutoff, freed = now_ms - self.settings.managedLedgerCacheEvictionTimeThresholdMillis, 0
        for span in self._older_than(cutoff):
            if span.expected_reads() > 0 or self._kept_for_others(span, now_ms):
                # Checked again after the same time once more, so that passes do not walk the same ranges each time.
                span.timestamp_ms = now_ms
                span.requeues += 1
                self._requeues += 1
                self._order.move_to_end(span)
            else:
                freed += remove(span)
        return freed

    def free(self, size: int, _now_ms: int, remove: Remove) -> int:
        """Evict ranges without expected reads, then the farthest."""
        require_positive(size)
        freed = self.free_unneeded(size, remove)
        if freed >= size:
            return freed
        candidates = [found for cache in self._caches for found in self._farthest_of(cache)]
        heapq.heapify(candidates)
        while freed < size and candidates:
            _, _, _, span, cache, behind = heapq.heappop(candidates)
            freed += remove(span)
            following = self._candidate(cache, behind, (span.ledger_id, span.first))
            if following is not None:
                heapq.heappush(candidates, following)
        while freed < size and self._order:  # behind all readers, and to be read again
            freed += remove(next(iter(self._order)))
        return freed

    def free_unneeded(self, size: int, remove: Remove) -> int:
        """Evict ranges without expected reads, the oldest first."""
        freed = 0
        for span in sorted(self._done(), key=lambda span: span.used_ms):
            if freed >= size:
                break
            freed += remove(span)
        return freed

    def _kept_for_others(self, span: CachedRange, now_ms: int) -> bool:
        """Return whether a range from object storage was read recently: queries start in groups."""
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

    def _done(self) -> Iterator[CachedRange]:
        """Yield the ranges at the beginning of each ledger that all its readers have passed."""
        for cache in self._caches:
            slowest = cache.readers.next_places.slowest()
            for span in cache.until(slowest):
                if span in self._order and span.expected_reads() <= 0:
                    yield span

    def _farthest_of(self, cache: RangeCache) -> Iterator[_Candidate]:
        """Yield the last range before each position of readers."""
        places = cache.readers.next_places.places()
        befores = [(place.ledger_id, place.entry_id) for place in places[1:]]
        for behind, before in zip(places, [*befores, (2**63, 0)], strict=True):
            found = self._candidate(cache, behind, before)
            if found is not None:
                yield found

    def _candidate(self, cache: RangeCache, behind: Position, before: tuple[int, int]) -> _Candidate | None:
        """Return the last range that begins before `before`, if the reader at `behind` still needs it."""
        span = cache.last_before(*before)
        while span is not None and span not in self._order:  # a span of the other pool
            span = cache.last_before(span.ledger_id, span.first)
        if span is None or (span.ledger_id, span.end) <= (behind.ledger_id, behind.entry_id):
            return None
        first = cache.readers.number(Position(span.ledger_id, span.first))
        entries, expected = max(first - cache.readers.number(behind), 0), span.expected_reads()
        distance = entries * span.size / span.entries if expected > 0 else inf
        return (-distance, expected, id(span), span, cache, behind)
