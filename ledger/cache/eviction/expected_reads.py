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
- Expected reads are counted by which reader has read what (`ledger.cache.expected_reads`), not as PIP-430 counts
  releases: a retried task releases a second copy, and would evict an entry that a reader waits for.
"""

from __future__ import annotations

from pyspark_ledger.ledger.cache.eviction.policy import EvictionDecision, QueuePolicy
from pyspark_ledger.ledger.cache.range_cache import CachedRange


class ExpectedReadsPolicy(QueuePolicy):
    """PIP-430 as Pulsar has it: a span with expected reads is requeued."""

    def verdict(self, span: CachedRange, _now_ms: int) -> EvictionDecision:
        settings = self.settings
        if settings.managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed and span.accessed:
            return EvictionDecision.REQUEUE
        most = settings.managedLedgerCacheEvictionExtendTTLOfEntriesWithRemainingExpectedReadsMaxTimes
        return (
            EvictionDecision.REQUEUE if span.requeues < most and span.expected_reads() > 0 else EvictionDecision.REMOVE
        )


class StashPolicy(QueuePolicy):
    """PIP-430 as first drafted: a span with expected reads is stashed, up to a longer threshold."""

    def verdict(self, span: CachedRange, now_ms: int) -> EvictionDecision:
        old = span.timestamp_ms < now_ms - self.settings.managedLedgerCacheEvictionTimeThresholdMillisMax
        return EvictionDecision.REMOVE if old or span.expected_reads() <= 0 else EvictionDecision.STASH
