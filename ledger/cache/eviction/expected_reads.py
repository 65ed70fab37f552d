"""Eviction policies of PIP-430: `expected-reads`, as Pulsar has it, and `expected-reads-stash`, of its earlier draft.

`expected-reads`: oldest first; a range with expected reads is postponed a limited number of times.

    a range is postponed if  it was read since the last check, and reads extend lives, or
                             reads are expected, and it was postponed fewer times than the setting allows
    time pass                stops at the first that is not older than the threshold; postpones or evicts
    size pass                stops when enough is free; postpones or evicts, and reaches postponed ranges at the end

`expected-reads-stash`: a range with expected reads leaves the queue for a stash.

    time pass   stops at the first that is not older than the threshold; a range without expected reads is evicted, any
                other is stashed, and evicted when it is older than the longer threshold
    size pass   stops when enough is free; a range with expected reads that is not older than the longer threshold is
                stashed, any other is evicted

Rules
- Both passes of `expected-reads` use the same budget of extensions, for any reason.
- Each pass of `expected-reads-stash` walks the stash first, then the queue.
- Expected reads are counted by which reader has read what (`ledger.cache.expected_reads`), not by releases as in
  PIP-430. Reason: a retried task releases a second copy, and would evict an entry that a reader waits for.
"""

from __future__ import annotations

from pyspark_ledger.ledger.cache.eviction.policy import EvictionDecision, QueuePolicy
from pyspark_ledger.ledger.cache.range_cache import CachedRange


class ExpectedReadsPolicy(QueuePolicy):
    """PIP-430 as in Pulsar: a range with expected reads is requeued."""

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
