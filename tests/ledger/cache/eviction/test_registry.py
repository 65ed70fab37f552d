"""Goal: every policy keeps to the same contract, and each to its own order. Method: one suite over all of them, in a
small cache; then what is special to each.
"""

from __future__ import annotations

import random

import pytest

from benchmarks.cache_yardsticks import LruPolicy
from pyspark_ledger.ledger.cache.block import CachedBlock
from pyspark_ledger.ledger.cache.eviction.cursor_distance import CursorDistancePolicy
from pyspark_ledger.ledger.cache.eviction.policy import EvictionPolicy
from pyspark_ledger.ledger.cache.eviction.registry import POLICIES
from pyspark_ledger.ledger.cache.eviction.segmented import SegmentedPolicy
from pyspark_ledger.ledger.cache.eviction.slowest_reader import SlowestReaderPolicy
from pyspark_ledger.ledger.cache.range_cache import CachedRange, RangeCache
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange
from tests.rigs.cache import CountedHome, HandClock, block, cache_limits, cache_of, insert, put_one, removing
from tests.rigs.cache_invariants import check_cache

LATER = 10_000_000


@pytest.fixture(params=POLICIES)
def policy(request: pytest.FixtureRequest) -> EvictionPolicy:
    return POLICIES[request.param](
        cache_limits(
            2000,
            managedLedgerCacheEvictionTimeThresholdMillis=100,
        )
    )


def filled(policy: EvictionPolicy, count: int = 20, size: int = 10) -> tuple[RangeCache, list[CachedRange]]:
    cache = RangeCache("orders")
    spans = [put_one(cache, entry, size, entry) for entry in range(count)]
    for span in spans:
        policy.added(span)
    assert not policy.due
    return cache, spans


def test_a_size_pass_frees_at_least_what_was_asked_for_and_not_much_more(policy: EvictionPolicy) -> None:
    cache, _ = filled(policy)
    removed = list[CachedRange]()
    remove = removing(removed, policy)

    assert policy.free(55, 0, remove) >= 55
    assert cache.entries == 20 - len(removed)
    if not isinstance(policy, SegmentedPolicy):
        assert len(removed) == 6


def test_a_size_pass_ends_when_nothing_is_left(policy: EvictionPolicy) -> None:
    cache, _ = filled(policy)
    assert policy.free(10**9, 0, removing([], policy)) == 200
    assert cache.entries == 0
    assert policy.free(10**9, 0, removing([], policy)) == 0


@pytest.mark.parametrize("size", [0, -1])
def test_nothing_cannot_be_freed(policy: EvictionPolicy, size: int) -> None:
    with pytest.raises(Refused, match=f"{size} bytes"):
        policy.free(size, 0, removing([], policy))


def test_what_nobody_expects_is_gone_after_its_time(policy: EvictionPolicy) -> None:
    cache, _ = filled(policy)
    policy.expire(10_000, removing([], policy))
    by_time = not isinstance(policy, (LruPolicy, SegmentedPolicy))
    assert cache.entries == (0 if by_time else 20)


def test_what_others_removed_is_not_removed_again(policy: EvictionPolicy) -> None:
    cache, spans = filled(policy)
    for span in spans[::2]:
        cache.remove(span)
        policy.removed(span)
    removed = list[CachedRange]()
    policy.free(10**9, 0, removing(removed, policy))
    assert {id(span) for span in removed} == {id(span) for span in spans[1::2]}


def test_random_traffic_keeps_the_invariants(policy: EvictionPolicy) -> None:
    clock, dice = HandClock(), random.Random(5)

    def load(first: int, end: int) -> CachedBlock:
        """Every other block is in memory, the others are accounts of local files."""
        return block(first, end, storage=CountedHome() if first % 2 else None)

    cache = cache_of(type(policy), policy.limits, clock)
    for step in range(1500):
        name, reader = dice.choice(["x", "y"]), dice.choice("abc")
        first = dice.randrange(300)
        end = first + dice.randrange(1, 12)
        match dice.randrange(6):
            case 0:
                with cache.moving(name) as readers:
                    readers.follow(reader, Position(1, first), clock() + 500)
            case 1:
                cache.append(name, load(first, end))
            case 2 | 3:
                parts = cache.fetch(name, reader, 1, first, end, load)
                assert [e for part in parts for e in range(part.first, part.end)] == list(range(first, end))
                with cache.moving(name) as readers:
                    readers.served(reader, 1, first, end)
            case 4:
                with cache.moving(name) as readers:
                    readers.commit(reader, Position(1, first))
            case _:
                clock.pass_ms(dice.randrange(60))
                cache.expire()
        if step % 7 == 0:
            check_cache(cache)
    assert sum(ledger.counts.evicted for ledger in cache.ledgers()) > 100


@pytest.mark.parametrize("held", [True, False])
def test_one_kind_of_blocks_never_makes_room_for_the_other(policy: EvictionPolicy, *, held: bool) -> None:
    """A ledger whose beginning is of one kind and whose end, three times the limit, is of the other."""
    cache = cache_of(type(policy), policy.limits, HandClock())
    with cache.moving("orders") as readers:
        for name in "ab":
            readers.follow(name, EARLIEST, LATER)
    for entry in range(0, 600, 10):
        in_memory = held == (entry < 80)
        insert(cache, "orders", block(entry, entry + 10, storage=CountedHome() if in_memory else None))
    kept = {span.first for span in cache.ledger("orders").cache}
    assert set(range(0, 80, 10)) <= kept
    stays, evicted = cache.pools if held else reversed(cache.pools)
    assert stays.held == 800
    assert 0 < evicted.held <= 2000
    check_cache(cache)


def test_lru_lets_the_longest_untouched_go() -> None:
    policy = LruPolicy(cache_limits(1000))
    cache, spans = filled(policy, 3)
    policy.read(spans[0])
    removed = list[CachedRange]()
    policy.free(15, 0, removing(removed, policy))
    assert removed == [spans[1], spans[2]]
    assert cache.entries == 1


def test_the_farthest_ahead_of_its_reader_goes_first() -> None:
    policy = CursorDistancePolicy(cache_limits(1000))
    cache, spans = filled(policy, 20)
    cache.readers.follow("slow", Position(1, 2), LATER)
    cache.readers.follow("fast", Position(1, 9), LATER)
    removed = list[CachedRange]()
    remove = removing(removed, policy)

    policy.free(10, 0, remove)
    assert [span.first for span in removed] == [0]  # nobody has to read 0 and 1
    policy.free(50, 0, remove)
    assert [span.first for span in removed] == [0, 1, 19, 18, 17, 16]
    policy.free(30, 0, remove)
    assert [span.first for span in removed[6:]] == [8, 15, 7]  # of equals the one that fewer expect
    assert spans[2].cache is cache


def test_expected_ranges_are_not_evicted_by_time_and_replayed_ones_last() -> None:
    policy = CursorDistancePolicy(cache_limits(1000, managedLedgerCacheEvictionTimeThresholdMillis=100))
    cache, spans = filled(policy, 3)
    cache.readers.follow("a", Position(1, 3), LATER)
    cache.readers.again("a", PositionRange(Position(1, 1), Position(1, 2)))
    policy.expire(1000, removing([], policy))
    assert [span.first for span in cache] == [1]
    assert spans[1].requeues == 1
    assert policy.free(5, 0, removing([], policy)) == 10


def test_what_every_reader_is_past_is_discarded_at_once() -> None:
    cache = cache_of(SlowestReaderPolicy, cache_limits(1000), HandClock())
    insert(cache, "orders", block(0, 20))
    with cache.moving("orders") as readers:
        readers.follow("a", EARLIEST, LATER)
        readers.follow("b", EARLIEST, LATER)
        readers.served("a", 1, 0, 10)
    assert cache.ledger("orders").cache.entries == 20
    with cache.moving("orders") as readers:
        readers.served("b", 1, 0, 5)
    assert [(span.first, span.end) for span in cache.ledger("orders").cache] == [(5, 20)]
    check_cache(cache)


def test_by_mark_delete_it_is_kept_until_it_is_acknowledged() -> None:
    cache = cache_of(SlowestReaderPolicy, cache_limits(1000, cacheEvictionByMarkDeletedPosition=True), HandClock())
    insert(cache, "orders", block(0, 20))
    with cache.moving("orders") as readers:
        readers.follow("a", Position(1, 0), LATER)
        readers.served("a", 1, 0, 10)
    assert cache.ledger("orders").cache.entries == 20
    with cache.moving("orders") as readers:
        readers.commit("a", Position(1, 10))
    assert cache.ledger("orders").cache.entries == 10


def test_a_reader_too_far_behind_keeps_nothing() -> None:
    policy, cache = SlowestReaderPolicy(cache_limits(1000)), RangeCache("orders")
    cache.readers._end = lambda: Position(1, 1050)
    cache.readers.follow("far", Position(1, 10), LATER)
    assert policy.keeps_from(cache.readers) is None
    cache.readers.follow("near", Position(1, 60), LATER)
    assert policy.keeps_from(cache.readers) == Position(1, 60)


class Ring:
    """BookKeeper's read cache in its own numbers: KiB entries, the segments it is made of."""

    def __init__(self, size: int, segments: int = 0) -> None:
        self.policy = SegmentedPolicy(cache_limits(size), segments)
        self.cache = RangeCache("orders")

    def put(self, first: int, end: int, size: int = 1024) -> None:
        for entry in range(first, end):
            self.policy.added(put_one(self.cache, entry, size, 0))
            while self.policy.due:
                removing([], self.policy)(self.policy.due.pop())


def test_simple_ring() -> None:
    ring = Ring(10 * 1024)
    ring.put(0, 10)
    assert ring.cache.entries == 10
    ring.put(10, 11)
    assert [span.first for span in ring.cache] == [5, 6, 7, 8, 9, 10]


def test_multiple_segments() -> None:
    ring = Ring(10 * 1024, 5)
    assert ring.policy.segment_bytes == 2 * 1024
    ring.put(0, 10)
    assert ring.cache.entries == 10
    ring.put(10, 11)
    assert (ring.cache.entries, ring.cache.size) == (9, 9 * 1024)


def test_the_ring_rounds_up_to_64_and_passes_over_what_no_segment_holds() -> None:
    ring = Ring(640, 2)
    ring.put(0, 3, size=100)  # two and a half fit: 100 takes 128, the last one 100
    assert ring.cache.entries == 2 + 1
    ring.put(3, 4, size=321)
    assert 3 not in [span.first for span in ring.cache]


def test_a_range_over_two_segments_is_found_whole() -> None:
    ring = Ring(10 * 1024)
    ring.put(3, 7)
    ring.put(0, 3)
    ring.put(7, 9)
    assert ring.cache.get(1, 0, 9).missing == []


def test_has_entry() -> None:
    ring = Ring(10 * 1024)
    ring.put(0, 11)
    assert [ring.cache.missing(1, entry, entry + 1) for entry in (0, 4, 5, 10, 11)] == [
        [(0, 1)], [(4, 5)], [], [], [(11, 12)],
    ]  # fmt: skip


def test_an_empty_ring_frees_nothing() -> None:
    policy = SegmentedPolicy(cache_limits(1000))
    assert policy.free(10, 0, removing([], policy)) == 0
    with pytest.raises(Refused):
        policy.free(0, 0, removing([], policy))


def test_ranges_from_object_storage_stay_since_read_and_are_evicted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_ledger.ledger.cache.eviction.cursor_distance._OFFLOADED_AGE_MS", 1000)
    clock = HandClock()
    limits = cache_limits(
        1000,
        managedLedgerCacheEvictionTimeThresholdMillis=100,
    )
    cache = cache_of(CursorDistancePolicy, limits, clock)
    for entry in range(3):
        insert(cache, "orders", block(entry, entry + 1, size=300, storage=CountedHome() if entry < 2 else None))
    clock.pass_ms(900)
    cache.fetch("orders", "a", 1, 1, 2, block)
    cache.expire()
    assert [span.first for span in cache.ledger("orders").cache] == [0, 1]  # the file's went after its 100 ms
    clock.pass_ms(200)
    cache.expire()
    assert [span.first for span in cache.ledger("orders").cache] == [1]
    cache.ledger("orders").readers.follow("a", Position(1, 5), 10**9)
    for entry in range(5, 8):
        insert(cache, "orders", block(entry, entry + 1, size=300, storage=CountedHome()))
    assert [span.first for span in cache.ledger("orders").cache] == [5, 6, 7]
