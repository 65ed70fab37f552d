"""Ranking of the cached ranges of one ledger: the range that is evicted first, then the next one.

    1. ranges without expected reads, behind all readers: the least recently read first
    2. the range with the greatest distance to its next reader; of equal ranges, the one with fewer expected reads

A ranking shows the readers and the ranges at the time of its creation. It skips ranges that were removed since.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Container, Iterator
from itertools import count
from math import inf
from typing import NamedTuple

from pyspark_ledger.ledger.cache.range_cache import CachedRange, RangeCache
from pyspark_ledger.ledger.position import Position

RankKey = tuple[int, float, int, int]


class _Candidate(NamedTuple):
    """The last range before the next reader. `number` differs, so that two candidates never compare their ranges."""

    distance: float
    expected: int
    number: int
    span: CachedRange
    behind: Position


class LedgerRanking:
    """Ranking of the ranges of `cache` that are in `owned`, the ranges of one pool.

    `advance` finds `first`, the range to evict first. `key` orders the rankings of several ledgers by these ranges.
    `number` orders rankings that are otherwise equal.
    """

    first: CachedRange
    key: RankKey

    def __init__(self, cache: RangeCache, owned: Container[CachedRange], number: int) -> None:
        self.cache = cache
        self._owned = owned
        self._number = number
        self._numbers = count()
        self._unneeded = deque(sorted(self._all_unneeded(), key=lambda span: span.used_ms))
        self._farthest: list[_Candidate] | None = None  # made when no unneeded range is left

    @property
    def is_unneeded(self) -> bool:
        """Whether no reader expects the first range."""
        return self.key[0] == 0

    def advance(self) -> bool:
        """Find the first range that is still cached. Return whether there is one."""
        while self._unneeded:
            span = self._unneeded[0]
            if span.cache is not None:
                self.first, self.key = span, (0, span.used_ms, 0, self._number)
                return True
            self._unneeded.popleft()
        if self._farthest is None:
            self._farthest = list(self._farthest_of_each())
            heapq.heapify(self._farthest)
        while self._farthest:
            distance, expected, _, span, behind = self._farthest[0]
            if span.cache is not None:
                self.first, self.key = span, (1, distance, expected, self._number)
                return True
            heapq.heappop(self._farthest)
            earlier = self._candidate(behind, (span.ledger_id, span.first))
            if earlier is not None:
                heapq.heappush(self._farthest, earlier)
        return False

    def _all_unneeded(self) -> Iterator[CachedRange]:
        """Yield the ranges that are behind all readers and have no expected reads."""
        for span in self.cache.until(self.cache.readers.next_places.slowest()):
            if span in self._owned and span.expected_reads() <= 0:
                yield span

    def _farthest_of_each(self) -> Iterator[_Candidate]:
        """Yield for each reader the range that is farthest from it: the last range before the next reader."""
        places = self.cache.readers.next_places.places()
        befores = [(place.ledger_id, place.entry_id) for place in [*places[1:], Position(2**63, 0)]]
        for behind, before in zip(places, befores, strict=False):  # without readers there is only the last of `befores`
            found = self._candidate(behind, before)
            if found is not None:
                yield found

    def _candidate(self, behind: Position, before: tuple[int, int]) -> _Candidate | None:
        """Return the last range that starts before `before`, if it is ahead of the reader at `behind`."""
        cache = self.cache
        span = cache.last_before(*before)
        # A range that is not owned belongs to the other pool: its block is of another kind.
        while span is not None and span not in self._owned:
            span = cache.last_before(span.ledger_id, span.first)
        if span is None or (span.ledger_id, span.end) <= (behind.ledger_id, behind.entry_id):
            return None
        first = cache.readers.number(Position(span.ledger_id, span.first))
        entries, expected = max(first - cache.readers.number(behind), 0), span.expected_reads()
        distance = entries * span.size / span.entries if expected > 0 else inf
        return _Candidate(-distance, expected, next(self._numbers), span, behind)
