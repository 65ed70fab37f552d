"""Goal: the queue lets go in the order and by the rules of PIP-430. Method: the cases of Pulsar's
RangeCacheRemovalQueue by name, with its sizes and thresholds, through the two policies that use all of it.
"""

from __future__ import annotations

import pytest

from pyspark_ledger.ledger.cache.eviction.expected_reads import ExpectedReadsPolicy, StashPolicy
from pyspark_ledger.ledger.cache.eviction.policy import EvictionDecision, RemovalQueue
from pyspark_ledger.ledger.cache.range_cache import CachedRange, RangeCache
from pyspark_ledger.ledger.errors import Refused
from tests.rigs.cache import cache_limits, put_one, removing


class Rig:
    """A policy over one ledger's cache, and what it removed."""

    def __init__(self, policy: ExpectedReadsPolicy | StashPolicy) -> None:
        self.policy = policy
        self.cache = RangeCache("orders")
        self.removed: list[CachedRange] = []

    def put(self, size: int, now_ms: int = 0, *, expected: int = 0, accessed: bool = False) -> CachedRange:
        entry = len(self.policy.queue) + 100 * len(self.removed)
        span = put_one(self.cache, entry, size, now_ms, expected=expected)
        span.accessed = accessed
        self.policy.added(span)
        return span

    def expire(self, now_ms: int) -> list[CachedRange]:
        self.removed.clear()
        self.policy.expire(now_ms, removing(self.removed))
        return list(self.removed)

    def free(self, size: int, now_ms: int = 0) -> list[CachedRange]:
        self.removed.clear()
        self.policy.free(size, now_ms, removing(self.removed))
        return list(self.removed)


def final(*, extensions_max: int = 5, extend_accessed: bool = True) -> Rig:
    limits = cache_limits(
        1000,
        managedLedgerCacheEvictionTimeThresholdMillis=100,
        managedLedgerCacheEvictionExtendTTLOfEntriesWithRemainingExpectedReadsMaxTimes=extensions_max,
        managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed=extend_accessed,
    )
    return Rig(ExpectedReadsPolicy(limits))


def draft() -> Rig:
    return Rig(
        StashPolicy(
            cache_limits(
                1000,
                managedLedgerCacheEvictionTimeThresholdMillis=100,
            )
        )
    )


def test_add_entry_and_is_empty() -> None:
    queue, cache = RemovalQueue(), RangeCache("orders")
    assert not queue
    queue.add(put_one(cache, 0, 10, 0))
    assert queue


def test_time_based_eviction_respects_expected_reads_requeue_threshold() -> None:
    rig = final(extensions_max=1)
    span = rig.put(10, 0, expected=1)
    assert rig.expire(101) == []
    assert (span.requeues, span.timestamp_ms) == (1, 101)
    assert rig.expire(201) == []
    assert rig.expire(202) == [span]


def test_extend_ttl_of_recently_accessed_requeues_on_time_based_eviction() -> None:
    rig = final()
    span = rig.put(10, 0, accessed=True)
    assert rig.expire(101) == []
    assert not span.accessed
    assert rig.expire(202) == [span]


def test_what_was_accessed_lives_no_longer_where_that_is_off() -> None:
    rig = final(extend_accessed=False)
    span = rig.put(10, 0, accessed=True)
    assert rig.expire(101) == [span]


def test_size_based_eviction_evicts_as_long_as_needed() -> None:
    rig = final()
    spans = [rig.put(40, accessed=True), rig.put(50, expected=1), rig.put(30)]
    assert set(rig.free(120)) == set(spans)
    assert not rig.policy.queue


def test_size_based_eviction_evicts_easiest_first_as_long_as_needed() -> None:
    rig = final()
    _, _, plain = rig.put(40, accessed=True), rig.put(50, expected=1), rig.put(30)
    assert rig.free(20) == [plain]


def test_size_based_eviction_evicts_expected_reads_last() -> None:
    rig = final()
    accessed, expected, plain = rig.put(40, accessed=True), rig.put(50, expected=1), rig.put(30)
    assert rig.free(35) == [plain, accessed]
    assert expected.cache is rig.cache


def test_get_non_evictable_size_counts_entries_with_expected_reads() -> None:
    rig = final()
    for size, expected in ((40, 0), (50, 1), (30, 2)):
        rig.put(size, expected=expected)
    assert sum(span.size for span in rig.policy.queue if span.expected_reads() > 0) == 80


def test_the_time_pass_stops_at_the_first_that_is_not_older() -> None:
    rig = final()
    old, _, behind = rig.put(10, 0), rig.put(10, 50), rig.put(10, 0)
    assert rig.expire(100) == []  # strictly older
    assert rig.expire(101) == [old]
    assert behind.cache is rig.cache


def test_every_extension_spends_the_budget_of_expected_reads() -> None:
    """Also one that an access brought, and one of a size pass, which makes the entry young again."""
    rig = final(extensions_max=2)
    span, behind = rig.put(10, 0, expected=1, accessed=True), rig.put(10, 0)
    assert rig.free(10, now_ms=50) == [behind]
    assert (span.requeues, span.timestamp_ms, span.accessed) == (1, 50, False)
    assert rig.expire(120) == []  # was made young at 50
    assert span.requeues == 1
    assert rig.expire(151) == []
    assert span.requeues == 2
    assert rig.expire(252) == [span]


def test_accesses_extend_a_life_without_limit() -> None:
    rig = final(extensions_max=1)
    span, now = rig.put(10, 0), 0
    for _ in range(10):
        span.accessed, now = True, now + 101
        assert rig.expire(now) == []
    assert span.requeues == 10


def test_a_size_pass_spends_one_extension_of_each_range() -> None:
    rig = final()
    spans = [rig.put(100, expected=1) for _ in range(9)]
    assert rig.free(100, now_ms=50) == spans[:1]
    assert [span.requeues for span in spans[1:]] == [1] * 8


def test_a_size_pass_does_not_spare_an_expired_range() -> None:
    """PIP-430: an entry with expected reads is spared by size unless it also meets timestamp expiration."""
    rig = final()
    expired, young = rig.put(10, 0, expected=1, accessed=True), rig.put(10, 1, expected=1)
    plain = rig.put(10, 50)
    assert rig.free(20, now_ms=101) == [expired, plain]
    assert (young.requeues, young.cache) == (1, rig.cache)


def test_a_pass_ends_though_all_are_expected_for_ever() -> None:
    rig = final()
    spans = [rig.put(10, expected=9, accessed=True) for _ in range(3)]
    assert rig.free(1000) == spans


@pytest.mark.parametrize("size", [0, -1])
def test_nothing_cannot_be_freed(size: int) -> None:
    with pytest.raises(Refused, match=f"{size} bytes cannot be freed"):
        final().free(size)
    with pytest.raises(Refused, match=f"{size} bytes cannot be freed"):
        draft().free(size)


def test_what_somebody_else_removed_is_dropped() -> None:
    rig = final()
    gone, there = rig.put(10), rig.put(10)
    rig.cache.remove(gone)
    assert rig.free(10) == [there]
    assert not rig.policy.queue


def test_custom_time_extraction() -> None:
    """Three of four are old; a reader of one of them keeps it."""
    rig = final()
    spans = [rig.put(10, now) for now in (0, 1, 2, 100)]
    held = rig.cache.get(1, spans[0].first, spans[0].end).found[0].span
    held.accessed = False
    assert rig.expire(103) == spans[:3]
    assert held.block.size == 10


def test_the_draft_stashes_what_is_expected_and_walks_the_stash_first() -> None:
    rig = draft()
    expected, plain = rig.put(50, expected=1), rig.put(30)
    assert rig.free(20) == [plain]
    younger = rig.put(10)
    expected.readers.served("reader 0", 1, expected.first, expected.end)
    assert rig.free(60) == [expected, younger]


def test_a_stop_in_the_stash_ends_the_stash_only() -> None:
    rig = draft()
    first, second = rig.put(10, 0, expected=1), rig.put(10, 0, expected=1)
    plain = rig.put(10, 60)
    rig.free(10)
    assert (first.cache, second.cache, plain.cache) == (rig.cache, rig.cache, None)
    first.timestamp_ms = 10_000  # the stash stops here
    late = rig.put(10, 0)
    assert rig.expire(5_000) == [late]


def test_the_draft_keeps_what_is_expected_up_to_its_own_threshold() -> None:
    rig = draft()
    span, plain = rig.put(10, 0, expected=1), rig.put(10, 0)
    assert rig.expire(101) == [plain]
    assert rig.expire(5_000) == []
    assert rig.expire(5_001) == [span]


def test_the_draft_lets_nothing_go_by_size_that_is_expected_and_young() -> None:
    rig = draft()
    span = rig.put(10, 0, expected=1)
    assert rig.free(10, now_ms=5_000) == []
    assert rig.free(10, now_ms=5_001) == [span]


def test_verdicts_are_what_they_say() -> None:
    queue, cache, removed = RemovalQueue(), RangeCache("orders"), list[CachedRange]()
    spans = [put_one(cache, entry, 10, 0) for entry in range(4)]
    for span in spans:
        queue.add(span)
    verdicts = {
        0: EvictionDecision.REMOVE,
        1: EvictionDecision.REQUEUE,
        2: EvictionDecision.STASH,
        3: EvictionDecision.STOP,
    }
    assert queue.evict(lambda span, _freed: verdicts[span.first], 5, removing(removed)) == 10
    assert removed == [spans[0]]
    assert list(queue) == [spans[2], spans[3], spans[1]]
    assert spans[1].timestamp_ms == 5
