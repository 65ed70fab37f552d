"""Goal: cached entries are served, other entries are read once, and the memory never exceeds its limit. Method: the
cases of Pulsar's EntryCacheManager and RangeEntryCacheImpl by name; readers in threads; random traffic beside a
model.

Cases about parsed message metadata (testInsertParsesMessageMetadata and others) have no counterpart, because the cache
never parses frames. The case testReadFromStorageRetriesWhenHandleClosed has none either: a file is opened for
each read, and `ledger.client.block_reader` asks again for an object.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cache_yardsticks import LruPolicy
from pyspark_ledger.ledger.cache.block import CachedBlock
from pyspark_ledger.ledger.cache.cache import EntryCache
from pyspark_ledger.ledger.cache.eviction.expected_reads import ExpectedReadsPolicy, StashPolicy
from pyspark_ledger.ledger.cache.eviction.registry import POLICIES
from pyspark_ledger.ledger.cache.ledger_cache import BlockPart
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.position import Position, PositionRange
from tests.rigs.cache import HandClock, block, cache_limits, cache_of, insert
from tests.rigs.cache_invariants import check_cache

LATER = 10_000_000


class Storage:
    """Counts what is read of it."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []
        self.failing: set[tuple[int, int]] = set()

    def __call__(self, first: int, end: int) -> CachedBlock:
        self.reads.append((first, end))
        if (first, end) in self.failing:
            raise Unavailable(f"entries {first} to {end} cannot be read")
        return block(first, end)


def cached(limit: int = 10_000, **limits: int) -> EntryCache:
    return cache_of(LruPolicy, cache_limits(limit, **limits), HandClock())


def ranges(parts: list[BlockPart]) -> list[tuple[int, int]]:
    return [(part.first, part.end) for part in parts]


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        ([(50, 51)], [(0, 50), (51, 100)]),
        ([(0, 1)], [(1, 100)]),
        ([(99, 100)], [(0, 99)]),
        ([(25, 75)], [(0, 25), (75, 100)]),
        ([(0, 50)], [(50, 100)]),
        ([(50, 100)], [(0, 50)]),
        ([(10, 20), (30, 31), (60, 100)], [(0, 10), (20, 30), (31, 60)]),
        ([(0, 100)], []),
        ([(-5, 200)], []),
    ],
    ids=["MiddleEntry", "FirstEntry", "LastEntry", "MiddleRange", "FirstRange", "LastRange", "Multiple", "All", "More"],
)
def test_partial_caching(held: list[tuple[int, int]], missing: list[tuple[int, int]]) -> None:
    cache, storage = cached(), Storage()
    for first, end in held:
        insert(cache, "orders", block(max(first, 0), end))
    parts = cache.fetch("orders", "a", 1, 0, 100, storage)
    assert storage.reads == missing
    assert [entry for part in parts for entry in range(part.first, part.end)] == list(range(100))
    counts = cache.ledger("orders").counts
    assert counts.hits + counts.misses == 100
    assert counts.misses == sum(end - first for first, end in missing)
    assert (counts.hit_bytes + counts.miss_bytes) == 1000
    check_cache(cache)


@pytest.mark.parametrize("failing", [(0, 25), (75, 100)])
def test_partial_read_fails_falls_back_to_one_full_read(failing: tuple[int, int]) -> None:
    cache, storage = cached(), Storage()
    insert(cache, "orders", block(25, 75))
    storage.failing = {failing}
    assert ranges(cache.fetch("orders", "a", 1, 0, 100, storage)) == [(0, 100)]
    assert storage.reads[-1] == (0, 100)
    assert storage.reads.count((0, 100)) == 1
    assert len(cache.ledger("orders").pending) == 0
    check_cache(cache)


def test_a_full_read_that_fails_fails() -> None:
    cache, storage = cached(), Storage()
    storage.failing = {(0, 100)}
    with pytest.raises(Unavailable, match="entries 0 to 100"):
        cache.fetch("orders", "a", 1, 0, 100, storage)
    assert storage.reads == [(0, 100)]
    assert len(cache.ledger("orders").pending) == 0


def test_simple() -> None:
    """Limit 10, watermark 0.8: eviction goes down to 8 and below."""
    cache = cache_of(LruPolicy, cache_limits(10, managedLedgerCacheEvictionWatermark=80), HandClock())
    first, second = cache.ledger("first"), cache.ledger("second")
    for entry in range(4):
        insert(cache, "first", block(entry, entry + 1, size=1))
    for entry in range(3):
        insert(cache, "second", block(entry, entry + 1, size=1))
    assert (cache.files.held, first.cache.size, second.cache.size) == (7, 4, 3)
    cache.drop("second")
    assert cache.files.held == 4
    cache.invalidate("first", PositionRange(Position(1, 0), Position(1, 2)))
    assert cache.files.held == 2
    for entry in range(10, 18):
        insert(cache, "first", block(entry, entry + 1, size=1))
    assert cache.files.held == 8
    assert cache.evictions.passes == 1
    check_cache(cache)


def test_double_insert() -> None:
    cache = cached()
    assert len(insert(cache, "orders", block(0, 1))) == 1
    assert insert(cache, "orders", block(0, 1, size=99)) == []
    assert (cache.files.held, cache.ledger("orders").counts.inserted) == (10, 1)


def test_cache_disabled() -> None:
    cache, storage = cached(0), Storage()
    for _ in range(2):
        assert ranges(cache.fetch("orders", "a", 1, 0, 5, storage)) == [(0, 5)]
    assert (cache.files.held, storage.reads) == (0, [(0, 5), (0, 5)])
    assert cache.ledger("orders").counts.misses == 10


@pytest.mark.parametrize("name", ["cursor-distance", "expected-reads", "expected-reads-stash"])
def test_verify_no_cache_if_no_consumer(name: str) -> None:
    """Entries that only their own reader expects are read and not cached."""
    cache, storage = cache_of(POLICIES[name], cache_limits(1000), HandClock()), Storage()
    with cache.moving("orders") as readers:
        readers.follow("a", Position(1, 0), LATER)
    cache.fetch("orders", "a", 1, 0, 5, storage)
    assert cache.files.held == 0
    with cache.moving("orders") as readers:
        readers.follow("b", Position(1, 3), LATER)
    cache.fetch("orders", "a", 1, 0, 3, storage)
    assert cache.files.held == 0
    cache.fetch("orders", "a", 1, 3, 9, storage)
    assert cache.files.held == 60


def test_verify_time_based_eviction() -> None:
    clock = HandClock()
    cache = cache_of(ExpectedReadsPolicy, cache_limits(1000, managedLedgerCacheEvictionTimeThresholdMillis=100), clock)
    insert(cache, "orders", block(0, 5))
    clock.pass_ms(50)
    insert(cache, "orders", block(5, 9))
    clock.pass_ms(60)
    cache.expire()
    assert cache.ledger("orders").cache.entries == 4
    clock.pass_ms(50)
    cache.expire()
    assert cache.files.held == 0


def test_readers_that_are_gone_are_expected_no_more_when_time_passes() -> None:
    clock = HandClock()
    cache = cache_of(
        POLICIES["cursor-distance"], cache_limits(1000, managedLedgerCacheEvictionTimeThresholdMillis=100), clock
    )
    with cache.moving("orders") as readers:
        readers.follow("a", Position(1, 0), clock() + 1000)
    insert(cache, "orders", block(0, 5))
    clock.pass_ms(999)
    cache.expire()
    assert cache.files.held == 50
    clock.pass_ms(1000)
    cache.expire()
    assert cache.files.held == 0


def test_eviction_begins_above_its_trigger_only() -> None:
    cache = cached(1000, managedLedgerCacheEvictionWatermark=70)  # type: ignore[arg-type]
    for entry in range(99):
        insert(cache, "orders", block(entry, entry + 1))
    assert (cache.files.held, cache.evictions.passes) == (990, 0)
    insert(cache, "orders", block(99, 100))
    assert (cache.files.held, cache.evictions.passes) == (700, 1)


def test_what_nothing_makes_room_for_is_handed_out_and_not_kept() -> None:
    cache, storage = cache_of(StashPolicy, cache_limits(100), HandClock()), Storage()
    with cache.moving("orders") as readers:
        for name in "ab":
            readers.follow(name, Position(1, 0), LATER)
    cache.fetch("orders", "a", 1, 0, 9, storage)
    assert cache.files.held == 90
    assert ranges(cache.fetch("orders", "a", 1, 9, 15, storage)) == [(9, 15)]
    assert (cache.files.held, cache.evictions.not_kept) == (90, 1)
    assert ranges(cache.fetch("orders", "a", 1, 15, 40, storage)) == [(15, 40)]  # larger than all of it
    assert (cache.files.held, cache.evictions.not_kept) == (90, 2)
    check_cache(cache)


def test_what_is_appended_in_small_groups_is_one_span() -> None:
    cache = cached(16 * 100)
    for entry in range(9):
        cache.append("orders", block(entry, entry + 1))
    assert [(span.first, span.end) for span in cache.ledger("orders").cache] == [(0, 9)]
    cache.append("orders", block(9, 12))
    assert [(span.first, span.end) for span in cache.ledger("orders").cache] == [(0, 9), (9, 12)]
    cache.append("orders", block(0, 2, ledger_id=2))
    assert len(cache.ledger("orders").cache) == 3
    check_cache(cache)


def test_range_read_before_its_append_is_reported_is_cached_once() -> None:
    cache = cached(16 * 100)
    cache.append("orders", block(0, 4))
    insert(cache, "orders", block(5, 7))
    cache.append("orders", block(4, 8))
    assert [(span.first, span.end) for span in cache.ledger("orders").cache] == [(0, 4), (4, 5), (5, 7), (7, 8)]
    check_cache(cache)


def test_a_deleted_ledger_is_forgotten() -> None:
    cache = cached()
    insert(cache, "orders", block(0, 5, ledger_id=1))
    insert(cache, "orders", block(0, 5, ledger_id=2))
    cache.forget({2, 9})
    assert [span.ledger_id for span in cache.ledger("orders").cache] == [1]
    check_cache(cache)


def test_another_policy_takes_over_what_is_cached() -> None:
    cache = cached(1000)
    for entry in range(50):
        insert(cache, "orders", block(entry, entry + 1))
    cache.change(ExpectedReadsPolicy, cache_limits(300, local_file_size=300))
    assert cache.files.held == 270
    check_cache(cache)


def test_concurrent_readers_of_overlapping_ranges_share_one_read() -> None:
    cache = cache_of(LruPolicy, cache_limits(0), HandClock())  # nothing is kept: only sharing helps
    reading, go = threading.Event(), threading.Event()
    reads: list[tuple[int, int]] = []

    def slow(first: int, end: int) -> CachedBlock:
        reads.append((first, end))
        if (first, end) == (0, 100):
            reading.set()
            assert go.wait(60)
        return block(first, end)

    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(cache.fetch, "orders", "a", 1, 0, 100, slow)
        assert reading.wait(60)
        inside = threads.submit(cache.fetch, "orders", "b", 1, 20, 30, slow)
        beyond = threads.submit(cache.fetch, "orders", "c", 1, 90, 120, slow)
        while (100, 120) not in reads:
            pass
        go.set()
        assert ranges(first.result(60)) == [(0, 100)]
        assert ranges(inside.result(60)) == [(20, 30)]
        assert ranges(beyond.result(60)) == [(90, 100), (100, 120)]
    assert sorted(reads) == [(0, 100), (100, 120)]
    counts = cache.ledger("orders").counts
    assert (counts.misses, counts.hits) == (120, 20)
    assert len(cache.ledger("orders").pending) == 0


def test_who_waited_for_a_read_that_failed_reads_for_himself() -> None:
    cache = cached()
    reading, go, waiting = threading.Event(), threading.Event(), threading.Event()

    def failing(_first: int, _end: int) -> CachedBlock:
        reading.set()
        assert go.wait(60)
        raise Unavailable("the disk is gone")

    storage = Storage()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(cache.fetch, "orders", "a", 1, 0, 100, failing)
        assert reading.wait(60)
        waiting.set()
        second = threads.submit(cache.fetch, "orders", "b", 1, 20, 30, storage)
        go.set()
        with pytest.raises(Unavailable, match="the disk is gone"):
            first.result(60)
        assert ranges(second.result(60)) == [(20, 30)]
    assert storage.reads == [(20, 30)]


def test_threads_hammering_a_small_cache_get_what_they_asked_for() -> None:
    """Every piece is a piece of a block that holds it, and none is lost; the account is exact in the end."""
    for name in POLICIES:
        cache = cache_of(POLICIES[name], cache_limits(500), HandClock())

        def work(reader: str, seed: int, cache: EntryCache = cache) -> None:
            dice = random.Random(seed)
            for _ in range(150):
                first = dice.randrange(200)
                end = first + dice.randrange(1, 30)
                with cache.moving("orders") as readers:
                    readers.follow(reader, Position(1, max(first - 20, 0)), LATER)
                parts = cache.fetch("orders", reader, 1, first, end, block)
                assert [e for part in parts for e in range(part.first, part.end)] == list(range(first, end))
                assert all(part.block.first <= part.first < part.end <= part.block.end for part in parts)
                with cache.moving("orders") as readers:
                    readers.served(reader, 1, first, end)
                assert cache.files.held <= 500

        with ThreadPoolExecutor(6) as threads:
            for done in [threads.submit(work, f"r{i}", i) for i in range(6)]:
                done.result(60)
        check_cache(cache)
        assert len(cache.ledger("orders").pending) == 0


STEP = st.tuples(
    st.sampled_from(["append", "fetch", "follow", "commit", "reset", "leave", "again", "time", "invalidate"]),
    st.sampled_from("ab"), st.integers(0, 30), st.integers(1, 9),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(list(POLICIES)), st.lists(STEP, max_size=40))
def test_random_traffic_beside_a_model(name: str, steps: list[tuple[str, str, int, int]]) -> None:
    """The model: a hit is what the range cache lists, everything else is read, each entry once; nothing is lost."""
    clock = HandClock()
    cache = cache_of(
        POLICIES[name],
        cache_limits(200, managedLedgerCacheEvictionTimeThresholdMillis=2_500),
        clock,
    )
    ledger, storage = cache.ledger("orders"), Storage()
    for kind, reader, first, length in steps:
        end, position = first + length, Position(1, first)
        storage.reads.clear()
        if kind == "append":
            cache.append("orders", block(first, end))
        elif kind == "fetch":
            there = {entry for span in ledger.cache for entry in range(span.first, span.end)}
            hits = ledger.counts.hits
            parts = cache.fetch("orders", reader, 1, first, end, storage)
            wanted = set(range(first, end))
            assert [entry for part in parts for entry in range(part.first, part.end)] == sorted(wanted)
            assert sorted(e for a, b in storage.reads for e in range(a, b)) == sorted(wanted - there)
            assert ledger.counts.hits - hits == len(wanted & there)
        elif kind == "time":
            clock.pass_ms(length * 500)
            cache.expire()
        elif kind == "invalidate":
            cache.invalidate("orders", PositionRange(position, Position(1, end)))
            assert not any(span.first < end and span.end > first for span in ledger.cache)
        else:
            with cache.moving("orders") as readers:
                match kind:
                    case "follow":
                        readers.follow(reader, position, clock() + 10_000)
                    case "commit":
                        readers.commit(reader, position)
                    case "reset":
                        readers.reset(reader, position)
                    case "leave":
                        readers.leave(reader, clock())
                    case _:
                        readers.again(reader, PositionRange(position, Position(1, end)))
        check_cache(cache)


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_long_random_traffic_beside_a_model(name: str) -> None:
    """The same with thousands of steps in one cache, three readers and a clock that goes on."""
    dice = random.Random(11)
    clock = HandClock()
    limits = cache_limits(900, managedLedgerCacheEvictionTimeThresholdMillis=2_500)
    cache, storage = cache_of(POLICIES[name], limits, clock), Storage()
    ledger = cache.ledger("orders")
    for step in range(6_000):
        storage.reads.clear()
        reader, first = dice.choice("abc"), step // 10 + dice.randrange(60)
        end = first + dice.randrange(1, 12)
        there = {entry for span in ledger.cache for entry in range(span.first, span.end)} & set(range(first, end))
        if dice.random() < 0.3:
            cache.append("orders", block(first, end))
        else:
            parts = cache.fetch("orders", reader, 1, first, end, storage)
            assert [entry for part in parts for entry in range(part.first, part.end)] == list(range(first, end))
            assert {e for a, b in storage.reads for e in range(a, b)} == set(range(first, end)) - there
        with cache.moving("orders") as readers:
            readers.follow(reader, Position(1, max(first - 30, 0)), clock() + 15_000)
            readers.served(reader, 1, first, end)
            if dice.random() < 0.02:
                readers.reset(reader, Position(1, first))
        clock.pass_ms(dice.randrange(4) * 50)
        if step % 10 == 0:
            cache.expire()
            check_cache(cache)
    assert ledger.counts.evicted > 1000
