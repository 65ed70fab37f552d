"""`cursor-distance`: a policy that evicts the range that will probably be read last.

A range is the unit of the cache: entries of one block that were appended or read together. Readers move forward. So the
next reader of a range is the nearest reader behind it. The greater the distance between them, the later the read.

    1. First, ranges without expected reads are evicted, the oldest first. Expected reads are readers that still have
       to read the range.
    2. Then the range with the greatest distance to its next reader is evicted, until enough memory is free. The
       distance is in bytes of the log. Of equal ranges, the range with fewer expected reads is evicted first.

Of the ranges between two neighbouring readers, the last has the greatest distance. So the ranking of a ledger compares
one range for each reader. It finds each of them by a binary search (`ledger_ranking`).

A sorted index has one item for each ledger: its first range. So a size pass does not look at all ledgers. If readers or
ranges of a ledger have changed, the next pass ranks this ledger anew. A pass ranks at most `RANKED_MAX` changed
ledgers, those that changed first. The other changed ledgers keep their old ranking until a later pass.

Rule: Only ranges without expected reads are evicted because of their age. Ranges from object storage have a longer
maximum age, because reading them again is expensive.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count, islice

from sortedcontainers import SortedDict

from pyspark_ledger.ledger.cache.eviction.ledger_ranking import LedgerRanking, RankKey
from pyspark_ledger.ledger.cache.eviction.policy import (
    UNLIMITED,
    CacheLimits,
    EvictionPolicy,
    Remove,
    WantedRead,
    expects_others,
    require_positive,
)
from pyspark_ledger.ledger.cache.range_cache import CachedRange, RangeCache

RANKED_MAX = 32
_OFFLOADED_AGE_MS = 60_000  # so long, because a reader that comes a little later finds the block in the cache


class CursorDistancePolicy(EvictionPolicy):
    """Policy that evicts the range with the greatest distance to the nearest reader behind it."""

    keeps_read = True

    def __init__(self, limits: CacheLimits) -> None:
        super().__init__(limits)
        self._caches: dict[RangeCache, int] = {}
        self._order: OrderedDict[CachedRange, RangeCache] = OrderedDict()
        self._changed: dict[RangeCache, None] = {}
        self._rankings: dict[RangeCache, LedgerRanking] = {}
        self._by_key: SortedDict[RankKey, LedgerRanking] = SortedDict()
        self._numbers = count()
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
            self._changed[cache] = None

    def removed(self, span: CachedRange) -> None:
        cache = self._order.pop(span, None)
        if cache is not None:
            self._caches[cache] -= 1
            if not self._caches[cache]:
                del self._caches[cache]
                self._changed.pop(cache, None)
                self._unrank(cache)

    def changed(self, cache: RangeCache) -> None:
        if cache in self._caches:
            self._changed[cache] = None

    def expire(self, now_ms: int, remove: Remove, most: int = UNLIMITED) -> bool:
        """Evict ranges without expected reads that are older than the threshold, the oldest first."""
        old = self._older_than(now_ms - self.settings.managedLedgerCacheEvictionTimeThresholdMillis, most)
        for span in old:
            if span.expected_reads() > 0 or self._kept_for_others(span, now_ms):
                # The range counts as new, so that the next passes do not check it again until it is old.
                span.timestamp_ms = now_ms
                span.requeues += 1
                self._requeues += 1
                self._order.move_to_end(span)
            else:
                remove(span)
        return len(old) == most

    def free(self, size: int, _now_ms: int, remove: Remove, most: int = UNLIMITED, at_least: int = 0) -> int:
        """Evict ranges without expected reads, then the ranges with the greatest distance."""
        require_positive(size)
        self._rank_changed()
        freed = evicted = 0
        while freed < at_least or (freed < size and evicted < most):
            ranking = self._first_ranking()
            # Without a ranking, only ranges behind all readers are left.
            span = next(iter(self._order), None) if ranking is None else ranking.first
            if span is None:
                break
            freed += remove(span)
            evicted += 1
        return freed

    def free_unneeded(self, size: int, remove: Remove) -> int:
        """Evict ranges without expected reads, the least recently read first."""
        self._rank_changed()
        freed = 0
        while freed < size:
            ranking = self._first_ranking()
            if ranking is None or not ranking.is_unneeded:
                break
            freed += remove(ranking.first)
        return freed

    def _first_ranking(self) -> LedgerRanking | None:
        """Return the ranking with the range to evict first."""
        while self._by_key or self._changed:
            if not self._by_key:
                self._rank_changed()
                continue
            ranking: LedgerRanking = self._by_key.peekitem(0)[1]
            if ranking.first.cache is not None:
                return ranking
            self._unrank(ranking.cache)  # its first range was removed, and the next one gets another place
            self._place(ranking)
        return None

    def _rank_changed(self) -> None:
        """Rank the ledgers that have changed, at most `RANKED_MAX` of them."""
        for cache in list(islice(self._changed, RANKED_MAX)):
            del self._changed[cache]
            self._unrank(cache)
            self._place(LedgerRanking(cache, self._order, next(self._numbers)))

    def _place(self, ranking: LedgerRanking) -> None:
        if ranking.advance():
            self._rankings[ranking.cache] = self._by_key[ranking.key] = ranking

    def _unrank(self, cache: RangeCache) -> None:
        ranking = self._rankings.pop(cache, None)
        if ranking is not None:
            del self._by_key[ranking.key]

    def _kept_for_others(self, span: CachedRange, now_ms: int) -> bool:
        """Return whether a range from object storage was read recently. Another query may soon start and read it."""
        if span.block.storage is None:
            return False
        if span.accessed:
            span.accessed, span.used_ms = False, now_ms
            self._changed[self._order[span]] = None
        return now_ms - span.used_ms < _OFFLOADED_AGE_MS

    def _older_than(self, cutoff_ms: int, most: int) -> list[CachedRange]:
        """Return the ranges that are older, at most `most` of them."""
        old = []
        for span in islice(self._order, most):
            if span.timestamp_ms >= cutoff_ms:
                break
            old.append(span)
        return old
