"""Metrics of the cache as messages of the protocol: for each ledger, and the totals."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from pyspark_ledger.ledger.cache.cache import EntryCache
from pyspark_ledger.ledger.cache.ledger_cache import CacheCounts, LedgerCache
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.protocol.cache import CacheMetrics, CacheReads, LedgerCacheMetrics, ReaderPlace, ReadSources

_REFRESH_MS = 1_000


def cache_report(cache: EntryCache, policy: str) -> CacheMetrics:
    with cache.still():
        cache.memory.pinned.refresh()
        counted, ledgers = _counted(cache), [_ledger_report(ledger) for ledger in cache.ledgers()]
        expected = _added((part.expected_reads, part.non_evictable_bytes) for part in ledgers)
        return CacheMetrics(
            **msgspec.structs.asdict(_sums(cache, counted, expected)),
            policy=policy,
            entries=sum(part.entries for part in ledgers),
            not_kept=cache.evictions.not_kept,
            inflight_read_limit=cache.permits.limit,
            reads_waiting=cache.permits.waiting,
            ledgers=ledgers,
            ahead_bytes=counted.ahead_bytes,
            waited_ms=counted.waited_ms,
        )


class CacheSums:
    """Totals of the cache, which each streaming query requests once per batch. Any thread may call any method."""

    def __init__(self, cache: EntryCache, clock: Clock) -> None:
        self._cache = cache
        self._clock = clock
        self._refreshed_ms: int | None = None
        self._expected = (0, 0)

    def now(self) -> CacheReads:
        """Return the sums of the counters. Expected reads are counted at most once a second, because that is slow."""
        cache = self._cache
        with cache.still():
            now = self._clock()
            if self._refreshed_ms is None or now - self._refreshed_ms >= _REFRESH_MS:
                cache.memory.pinned.refresh()
                self._expected = _added(_expected(ledger) for ledger in cache.ledgers_with_ranges())
                self._refreshed_ms = now
            return _sums(cache, _counted(cache), self._expected)


def _counted(cache: EntryCache) -> CacheCounts:
    """Return the sum of all ledgers' counters."""
    counted = CacheCounts()
    for ledger in cache.ledgers():
        counted.add(ledger.counts)
    return counted


def _sums(cache: EntryCache, counted: CacheCounts, expected: tuple[int, int]) -> CacheReads:
    """Return the totals. `expected` is the number of expected reads, and the bytes with expected reads."""
    return CacheReads(
        **_sources(counted),
        mapped_entries=counted.mapped,
        mapped_bytes=counted.mapped_bytes,
        direct_entries=counted.direct,
        direct_bytes=counted.direct_bytes,
        inserted=counted.inserted,
        evicted=counted.evicted,
        evictions=cache.evictions.passes,
        eviction_nanos=cache.evictions.nanoseconds,
        requeues=sum(pool.policy.requeues for pool in cache.pools),
        size_bytes=cache.size,
        lingering_bytes=cache.memory.pinned.size,
        limit_bytes=cache.limits.size,
        local_file_bytes=cache.files.held,
        local_file_limit_bytes=cache.files.limits.size,
        inflight_read_bytes=cache.permits.used,
        expected_reads=expected[0],
        non_evictable_bytes=expected[1],
    )


def _sources(counts: CacheCounts) -> dict[str, int]:
    """Return the numbers and bytes of hits and misses by source."""
    return {name: getattr(counts, name) for name in ReadSources.__struct_fields__}


def _added(pairs: Iterable[tuple[int, int]]) -> tuple[int, int]:
    reads = size = 0
    for more_reads, more_size in pairs:
        reads, size = reads + more_reads, size + more_size
    return reads, size


def _expected(ledger: LedgerCache) -> tuple[int, int]:
    """Return the expected reads of a ledger's cached entries, and the bytes of ranges with expected reads."""
    expected = [(span, count) for span in ledger.cache if (count := span.expected_reads()) > 0]
    return sum(span.entries * count for span, count in expected), sum(span.size for span, _ in expected)


def _ledger_report(ledger: LedgerCache) -> LedgerCacheMetrics:
    counts, readers = ledger.counts, ledger.readers
    expected_reads, non_evictable_bytes = _expected(ledger)
    accounted = sum(span.size for span in ledger.cache if span.block.storage is None)
    return LedgerCacheMetrics(
        name=ledger.cache.name,
        **_sources(counts),
        inserted=counts.inserted,
        evicted=counts.evicted,
        entries=ledger.cache.entries,
        size_bytes=ledger.cache.size - accounted,
        local_file_bytes=accounted,
        expected_reads=expected_reads,
        non_evictable_bytes=non_evictable_bytes,
        ahead_bytes=counts.ahead_bytes,
        waited_ms=counts.waited_ms,
        readers=[
            ReaderPlace(name, readers.place(name, acknowledged=True), readers.place(name)) for name in readers.names()
        ],
    )
