"""Eviction policies of PIP-430: `expected-reads`, as Pulsar has it, and `expected-reads-stash`, of its earlier draft.

`expected-reads`: oldest first; a span that is still going to be read is put off, a limited number of times.

    a span is put off when   it was read since it was last looked at, and that extends lives, or
                             reads are expected, and it was put off fewer than the setting for that allows times
    time pass                stops at the first that is not older than the threshold; puts off or lets go
    size pass                stops when enough is free; puts off or lets go, and so comes to what is put off at the end

`expected-reads-stash`: a span that is still going to be read leaves the queue for a stash.

    time pass   stops at the first that is not older than the threshold; a span that nobody expects goes, one that is
                expected is stashed, and goes when it is older than the longer threshold
    size pass   stops when enough is free; what is expected, and not older than the longer threshold, is stashed;
                everything else goes

Rules
- Both passes of `expected-reads` spend the same budget of extensions, whatever the reason for them was.
- Each pass of `expected-reads-stash` walks the stash first, then the queue.
- The draft's count of an evicted entry takes no more reads (`ReadCount.freeze`). An entry that is put twice has the
  reads of both.
"""

from __future__ import annotations

from pyspark_ledger.ledger.cache.eviction.policy import (
    QueuePolicy,
    ReadCount,
    Remove,
    Verdict,
    WantedRead,
    expects_others,
    require_positive,
)
from pyspark_ledger.ledger.cache.range_cache import CachedSpan, Expectation


class ExpectedReadsPolicy(QueuePolicy):
    """PIP-430 as Pulsar has it: a span with expected reads is requeued."""

    def admits(self, wanted: WantedRead) -> bool:
        """Return whether another reader expects the entries."""
        return expects_others(wanted)

    def expire(self, now_ms: int, remove: Remove) -> int:
        """Evict oldest first, up to the first span that is young enough."""
        cutoff = now_ms - self.settings.managedLedgerCacheEvictionTimeThresholdMillis

        def decide(span: CachedSpan, _freed: int) -> Verdict:
            if span.timestamp_ms >= cutoff:
                return Verdict.STOP
            return Verdict.REQUEUE if self._puts_off(span) else Verdict.REMOVE

        return self.queue.evict(decide, now_ms, remove)

    def free(self, size: int, now_ms: int, remove: Remove) -> int:
        """Evict oldest first, until enough is free."""
        require_positive(size)

        def decide(span: CachedSpan, freed: int) -> Verdict:
            if freed >= size:
                return Verdict.STOP
            return Verdict.REQUEUE if self._puts_off(span) else Verdict.REMOVE

        return self.queue.evict(decide, now_ms, remove)

    def _puts_off(self, span: CachedSpan) -> bool:
        settings = self.settings
        if settings.managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed and span.accessed:
            return True
        return (
            span.requeues < settings.managedLedgerCacheEvictionExtendTTLOfEntriesWithRemainingExpectedReadsMaxTimes
            and span.expected_reads() > 0
        )


class StashPolicy(QueuePolicy):
    """PIP-430 as first drafted: a span with expected reads is stashed."""

    def admits(self, wanted: WantedRead) -> bool:
        """Return whether another reader expects the entries."""
        return expects_others(wanted)

    def put_again(self, span: CachedSpan, reads: Expectation | None) -> None:
        """Add the reads of the second put to the expected reads."""
        if isinstance(span.reads, ReadCount) and isinstance(reads, ReadCount):
            span.reads.increment(reads.count)

    def removed(self, span: CachedSpan) -> None:
        """Freeze the count of the span; the queue drops the span as missing."""
        if isinstance(span.reads, ReadCount):
            span.reads.freeze()

    def expire(self, now_ms: int, remove: Remove) -> int:
        """Evict by age: a longer threshold counts for spans with expected reads."""
        cutoff = now_ms - self.settings.managedLedgerCacheEvictionTimeThresholdMillis

        def decide(span: CachedSpan, _freed: int) -> Verdict:
            if span.timestamp_ms >= cutoff:
                return Verdict.STOP
            return Verdict.REMOVE if self._is_old(span, now_ms) else Verdict.STASH

        return self.queue.evict(decide, now_ms, remove)

    def free(self, size: int, now_ms: int, remove: Remove) -> int:
        """Evict spans without expected reads or beyond the longer threshold, until enough is free."""
        require_positive(size)

        def decide(span: CachedSpan, freed: int) -> Verdict:
            if freed >= size:
                return Verdict.STOP
            if span.expected_reads() > 0 and not self._is_old(span, now_ms):
                return Verdict.STASH
            return Verdict.REMOVE

        return self.queue.evict(decide, now_ms, remove)

    def _is_old(self, span: CachedSpan, now_ms: int) -> bool:
        settings = self.settings
        most = (
            settings.managedLedgerCacheEvictionTimeThresholdMillisMax
            if span.expected_reads() > 0
            else settings.managedLedgerCacheEvictionTimeThresholdMillis
        )
        return span.timestamp_ms < now_ms - most
