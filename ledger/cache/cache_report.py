"""What the cache counted, as the protocol says it: per ledger, and the totals."""

from __future__ import annotations

from ledger.cache.entry_cache import EntryCache, LedgerCache
from ledger.cache_calls import CacheMetrics, CacheReads, LedgerCacheMetrics, ReaderPlace


def cache_report(cache: EntryCache, policy: str) -> CacheMetrics:
    """All of it at one moment."""
    with cache.still():
        ledgers = [_ledger_report(ledger) for ledger in cache.ledgers()]
        permits, evictions = cache.permits, cache.evictions
        counts = [ledger.counts for ledger in cache.ledgers()]
        return CacheMetrics(
            hits=sum(part.hits for part in ledgers),
            misses=sum(part.misses for part in ledgers),
            hit_bytes=sum(part.hit_bytes for part in ledgers),
            miss_bytes=sum(part.miss_bytes for part in ledgers),
            size_bytes=cache.held,
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


def cache_reads(cache: EntryCache) -> CacheReads:
    """What was handed out: sums of counts, without a look at any span."""
    with cache.still():
        counts = [ledger.counts for ledger in cache.ledgers()]
    return CacheReads(
        hits=sum(part.hits for part in counts),
        misses=sum(part.misses for part in counts),
        hit_bytes=sum(part.hit_bytes for part in counts),
        miss_bytes=sum(part.miss_bytes for part in counts),
        mapped_entries=sum(part.mapped for part in counts),
        mapped_bytes=sum(part.mapped_bytes for part in counts),
    )


def _ledger_report(ledger: LedgerCache) -> LedgerCacheMetrics:
    counts, readers = ledger.counts, ledger.readers
    expected = [(span, span.expected_reads()) for span in ledger.cache]
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
        expected_reads=sum(span.entries * count for span, count in expected if count > 0),
        non_evictable_bytes=sum(span.size for span, count in expected if count > 0),
        ahead_bytes=counts.ahead_bytes,
        waited_ms=counts.waited_ms,
        readers=[
            ReaderPlace(name, readers.place(name, acknowledged=True), readers.place(name)) for name in readers.names()
        ],
    )
