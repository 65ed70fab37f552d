"""Eviction policies of PIP-430: `expected-reads`, as in Pulsar, and `expected-reads-stash`, as in the proposal's draft.

Expected reads are the readers that still have to read a range. The time pass evicts old ranges. The size pass evicts
ranges until enough memory is free. Both check the oldest range first.

`expected-reads` postpones the eviction of a range a limited number of times. A postponed range goes to the end of the
queue.

    a range is postponed if  it was read since the last check, and the setting for recently read ranges is on, or
                             it has expected reads, and was postponed fewer times than the setting allows
    time pass                checks the ranges that are older than the threshold, and postpones or evicts each
    size pass                checks ranges until enough memory is free; it evicts old ranges, and postpones any other
                             range at most once; the postponed ranges come last

`expected-reads-stash` moves a range with expected reads from the queue to a list, the stash.

    time pass   checks the ranges that are older than the threshold; a range with expected reads goes to the stash, and
                is evicted when it is older than a second, longer threshold; any other range is evicted
    size pass   checks ranges until enough memory is free; a range with expected reads that is younger than the longer
                threshold goes to the stash; any other range is evicted

Rules
- In `expected-reads`, a range has one count of postponements. Each postponement raises this count, in either pass
  and for either reason.
- In `expected-reads-stash`, each pass checks the stash first, then the queue.
- Here expected reads follow from the entries that each reader has read (`ledger.cache.expected_reads`). In PIP-430, a
  reader releases each entry, and the releases are counted. But a task that Spark retries would release its entries
  twice. Then an entry could be evicted that another reader still needs.
"""

from __future__ import annotations

from pyspark_ledger.ledger.cache.eviction.policy import EvictionDecision, QueuePolicy
from pyspark_ledger.ledger.cache.range_cache import CachedRange

_STASH_MS_MAX = 5_000


class ExpectedReadsPolicy(QueuePolicy):
    """Policy of PIP-430 as in Pulsar: a range with expected reads is postponed."""

    def verdict(self, span: CachedRange, _now_ms: int) -> EvictionDecision:
        settings = self.settings
        if settings.managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed and span.accessed:
            return EvictionDecision.REQUEUE
        most = settings.managedLedgerCacheEvictionExtendTTLOfEntriesWithRemainingExpectedReadsMaxTimes
        return (
            EvictionDecision.REQUEUE if span.requeues < most and span.expected_reads() > 0 else EvictionDecision.REMOVE
        )


class StashPolicy(QueuePolicy):
    """Policy of PIP-430's draft: a range with expected reads goes to the stash, up to a longer threshold."""

    def verdict(self, span: CachedRange, now_ms: int) -> EvictionDecision:
        old = span.timestamp_ms < now_ms - _STASH_MS_MAX
        return EvictionDecision.REMOVE if old or span.expected_reads() <= 0 else EvictionDecision.STASH
