"""What the cache counted, as the protocol says it: per ledger, and the totals."""

from __future__ import annotations

from ledger.cache.entry_cache import EntryCache
from ledger.cache.ledger_cache import LedgerCache
from ledger.cache_calls import CacheMetrics, CacheReads, LedgerCacheMetrics, ReaderPlace
from ledger.clock import Clock

_LOOK_MS = 1_000


def cache_report(cache: EntryCache, policy: str) -> CacheMetrics:
    """All of it at one moment."""
    with cache.still():
        cache.lingering.look()
        ledgers = [_ledger_report(ledger) for ledger in cache.ledgers()]
        permits, evictions = cache.permits, cache.evictions
        counts = [ledger.counts for ledger in cache.ledgers()]
        return CacheMetrics(
            hits=sum(part.hits for part in ledgers),
            misses=sum(part.misses for part in ledgers),
            hit_bytes=sum(part.hit_bytes for part in ledgers),
            miss_bytes=sum(part.miss_bytes for part in ledgers),
            size_bytes=cache.size,
            lingering_bytes=cache.lingering.size,
            mapped_entries=sum(part.mapped for part in counts),
            mapped_bytes=sum(part.mapped_bytes for part in counts),
            limit_bytes=cache.limits.size,
            policy=policy,
            entries=sum(part.entries for part in ledgers),
            inserted=sum(part.inserted for part in ledgers),
            evicted=sum(part.evicted for part in ledgers),
            evictions=evictions.passes,
            eviction_nanos=evictions.nanoseconds,
            requeues=cache.policy.requeues,
            not_kept=evictions.not_kept,
            inflight_read_bytes=permits.used,
            inflight_read_limit=permits.limit,
            reads_waiting=permits.waiting,
            expected_reads=sum(part.expected_reads for part in ledgers),
            non_evictable_bytes=sum(part.non_evictable_bytes for part in ledgers),
            ledgers=ledgers,
            ahead_bytes=sum(part.ahead_bytes for part in ledgers),
            waited_ms=sum(part.waited_ms for part in ledgers),
        )


class CacheSums:
    """The same without its ledgers, for every trigger of every query. Any thread may ask."""

    def __init__(self, cache: EntryCache, clock: Clock) -> None:
        self._cache = cache
        self._clock = clock
        self._looked_ms: int | None = None
        self._expected = (0, 0)

    def now(self) -> CacheReads:
        """Sums of counts; what is expected is looked for once a second."""
        cache = self._cache
        with cache.still():
            now = self._clock()
            if self._looked_ms is None or now - self._looked_ms >= _LOOK_MS:
                cache.lingering.look()
                found = [_expected(ledger) for ledger in cache.ledgers()]
                self._expected = sum(reads for reads, _ in found), sum(size for _, size in found)
                self._looked_ms = now
            counts = [ledger.counts for ledger in cache.ledgers()]
            return CacheReads(
                hits=sum(part.hits for part in counts),
                misses=sum(part.misses for part in counts),
                hit_bytes=sum(part.hit_bytes for part in counts),
                miss_bytes=sum(part.miss_bytes for part in counts),
                mapped_entries=sum(part.mapped for part in counts),
                mapped_bytes=sum(part.mapped_bytes for part in counts),
                inserted=sum(part.inserted for part in counts),
                evicted=sum(part.evicted for part in counts),
                evictions=cache.evictions.passes,
                eviction_nanos=cache.evictions.nanoseconds,
                requeues=cache.policy.requeues,
                size_bytes=cache.size,
                lingering_bytes=cache.lingering.size,
                limit_bytes=cache.limits.size,
                inflight_read_bytes=cache.permits.used,
                expected_reads=self._expected[0],
                non_evictable_bytes=self._expected[1],
            )


def _expected(ledger: LedgerCache) -> tuple[int, int]:
    """Reads that are expected of what is cached of a ledger, in entries, and the bytes for which there are any."""
    expected = [(span, count) for span in ledger.cache if (count := span.expected_reads()) > 0]
    return sum(span.entries * count for span, count in expected), sum(span.size for span, _ in expected)


def _ledger_report(ledger: LedgerCache) -> LedgerCacheMetrics:
    counts, readers = ledger.counts, ledger.readers
    expected_reads, non_evictable_bytes = _expected(ledger)
    return LedgerCacheMetrics(
        name=ledger.cache.name,
        hits=counts.hits,
        misses=counts.misses,
        hit_bytes=counts.hit_bytes,
        miss_bytes=counts.miss_bytes,
        inserted=counts.inserted,
        evicted=counts.evicted,
        entries=ledger.cache.entries,
        size_bytes=ledger.cache.size,
        expected_reads=expected_reads,
        non_evictable_bytes=non_evictable_bytes,
        ahead_bytes=counts.ahead_bytes,
        waited_ms=counts.waited_ms,
        readers=[
            ReaderPlace(name, readers.place(name, acknowledged=True), readers.place(name)) for name in readers.names()
        ],
    )
