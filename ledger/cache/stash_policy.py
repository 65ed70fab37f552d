"""`expected-reads-stash`: PIP-430's earlier draft. What is still going to be read leaves the queue for a stash.

    time pass   stops at the first that is not older than the threshold; a span that nobody expects goes, one that is
                expected is stashed, and goes when it is older than the longer threshold
    size pass   stops when enough is free; what is expected, and not older than the longer threshold, is stashed;
                everything else goes

Each pass walks the stash first, then the queue. The draft's count of an evicted entry takes no more reads
(`ReadCount.freeze`), and one that is put twice adds its reads to what is there.
"""

from __future__ import annotations

from ledger.cache.cached_span import CachedSpan, Expectation
from ledger.cache.eviction_policy import QueuePolicy, WantedRead, expects_others, require_positive
from ledger.cache.read_count import ReadCount
from ledger.cache.removal_queue import Remove, Verdict


class StashPolicy(QueuePolicy):
    """PIP-430, draft."""

    def admits(self, wanted: WantedRead) -> bool:
        """When somebody else is going to read it."""
        return expects_others(wanted)

    def put_again(self, span: CachedSpan, reads: Expectation | None) -> None:
        """The reads of both are expected."""
        if isinstance(span.reads, ReadCount) and isinstance(reads, ReadCount):
            span.reads.increment(reads.count)

    def removed(self, span: CachedSpan) -> None:
        """Its count takes no more reads; the queue finds it missing."""
        if isinstance(span.reads, ReadCount):
            span.reads.freeze()

    def expire(self, now_ms: int, remove: Remove) -> int:
        """By two thresholds."""
        cutoff = now_ms - self.limits.time_threshold_ms

        def decide(span: CachedSpan, _freed: int) -> Verdict:
            if span.timestamp_ms >= cutoff:
                return Verdict.STOP
            return Verdict.REMOVE if self._is_old(span, now_ms) else Verdict.STASH

        return self.queue.evict(decide, now_ms, remove)

    def free(self, size: int, now_ms: int, remove: Remove) -> int:
        """The easiest first."""
        require_positive(size)

        def decide(span: CachedSpan, freed: int) -> Verdict:
            if freed >= size:
                return Verdict.STOP
            if span.expected_reads() > 0 and not self._is_old(span, now_ms):
                return Verdict.STASH
            return Verdict.REMOVE

        return self.queue.evict(decide, now_ms, remove)

    def _is_old(self, span: CachedSpan, now_ms: int) -> bool:
        limits = self.limits
        most = limits.time_threshold_expected_ms if span.expected_reads() > 0 else limits.time_threshold_ms
        return span.timestamp_ms < now_ms - most
