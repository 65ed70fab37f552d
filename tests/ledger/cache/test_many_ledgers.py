"""Goal: the cost of a pass depends on what is due, not on the number of ledgers. Method: counts of the ledgers and
ranges that a pass looks at, with a clock that the test sets.
"""

from __future__ import annotations

import random

import pytest

from pyspark_ledger.ledger.broker.reads.cached_reads import CachedReads
from pyspark_ledger.ledger.cache.block_pool import STEP_RANGES
from pyspark_ledger.ledger.cache.cache import EntryCache
from pyspark_ledger.ledger.cache.eviction.cursor_distance import RANKED_MAX, CursorDistancePolicy
from pyspark_ledger.ledger.cache.eviction.ledger_ranking import LedgerRanking
from pyspark_ledger.ledger.cache.expected_reads import LedgerReaders
from pyspark_ledger.ledger.cache.range_cache import CachedRange
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.settings.broker import Settings
from tests.rigs.cache import HandClock, block, cache_limits
from tests.rigs.cache_invariants import check_cache

LEDGERS = 200
LATER = 10_000_000


class CountedReaders(LedgerReaders):
    """Readers that count how often a pass looks at them."""

    expired = 0
    asked = 0

    def expire(self, now_ms: int) -> list[str]:
        CountedReaders.expired += 1
        return super().expire(now_ms)

    def expected(self, ledger_id: int, first: int, end: int, *, except_for: str = "") -> int:
        CountedReaders.asked += 1
        return super().expected(ledger_id, first, end, except_for=except_for)


@pytest.fixture(autouse=True)
def _counts() -> None:
    CountedReaders.expired = CountedReaders.asked = 0


def cached(clock: HandClock, limit: int = 10_000, **settings: int) -> EntryCache:
    limits = cache_limits(limit, **settings)
    return EntryCache(CursorDistancePolicy, limits, clock, lambda _name: CountedReaders())


def follow(cache: EntryCache, name: str, until_ms: int, reader: str = "a", entry: int = 0) -> None:
    with cache.moving(name) as readers:
        readers.follow(reader, Position(1, entry), until_ms)


def test_a_time_pass_looks_only_at_ledgers_with_a_due_reader() -> None:
    clock = HandClock()
    cache = cached(clock)
    for number in range(LEDGERS):
        follow(cache, f"log{number}", clock() + (100 if number < 3 else 10_000))
    cache.expire()
    assert CountedReaders.expired == 0
    clock.pass_ms(100)
    cache.expire()
    assert CountedReaders.expired == 3
    assert not any(cache.has_reader(f"log{number}", "a") for number in range(3))
    assert all(cache.has_reader(f"log{number}", "a") for number in range(3, LEDGERS))
    cache.expire()
    assert CountedReaders.expired == 3


def test_a_reader_that_reports_is_looked_at_once_for_each_deadline() -> None:
    clock = HandClock()
    cache = cached(clock)
    for _ in range(50):
        follow(cache, "log", clock() + 100)
        clock.pass_ms(10)
        cache.expire()
    assert CountedReaders.expired == 500 // 100
    clock.pass_ms(90)
    cache.expire()
    assert not cache.has_reader("log", "a")


def test_a_later_reader_that_is_due_earlier_expires_at_its_deadline() -> None:
    clock = HandClock()
    cache = cached(clock)
    follow(cache, "log", clock() + 1000, "slow")
    follow(cache, "log", clock() + 10, "fast")
    clock.pass_ms(10)
    cache.expire()
    assert (cache.has_reader("log", "slow"), cache.has_reader("log", "fast")) == (True, False)
    with cache.moving("log") as readers:
        readers.leave("slow", clock())
    follow(cache, "log", clock() + 2000, "slow")
    clock.pass_ms(1990)
    cache.expire()
    assert cache.has_reader("log", "slow")
    clock.pass_ms(10)
    cache.expire()
    assert not cache.has_reader("log", "slow")


def test_a_pass_of_the_broker_lists_no_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_log(name: str) -> LogSnapshot:
        return None  # type: ignore[return-value]  # nothing is read of it

    reads = CachedReads(Settings(), HandClock(), no_log)
    for number in range(LEDGERS):
        reads.follow(f"log{number}", "a", Position(1, 0), LATER)
    monkeypatch.setattr(reads.cache, "ledgers", lambda: pytest.fail("a pass lists all ledgers"))
    reads._expire()


def test_a_size_pass_looks_only_at_ledgers_that_have_changed() -> None:
    """Each ledger has a range that its two readers expect. The pool is full."""
    cache = cached(HandClock(), LEDGERS * 10)
    for number in range(LEDGERS):
        for reader in "ab":
            follow(cache, f"log{number}", LATER, reader)
        cache.append(f"log{number}", block(number, number + 1))
    passes, most = cache.evictions.passes, 0
    for number in range(LEDGERS):
        CountedReaders.asked = 0
        cache.append(f"log{number % 10}", block(1000 + number, 1001 + number))
        most = max(most, CountedReaders.asked)
    assert cache.evictions.passes - passes > 5
    assert most <= 2 * RANKED_MAX + 2 * STEP_RANGES, "the first passes rank ledgers in steps"
    cache.append("log0", block(5000, 5010))
    CountedReaders.asked = 0
    cache.append("log0", block(6000, 6010))
    cache.append("log0", block(7000, 7010))
    assert 0 < CountedReaders.asked <= 50, "later passes rank one ledger"
    check_cache(cache)


def test_a_call_evicts_in_steps_and_the_time_pass_makes_the_others() -> None:
    cache = cached(HandClock(), 10_000, managedLedgerCacheEvictionWatermark=50)
    for number in range(990):
        follow(cache, f"log{number}", LATER)
        cache.append(f"log{number}", block(0, 1))
    assert (cache.files.held, cache.evictions.passes) == (9900, 0)
    cache.append("log", block(0, 1))
    assert (cache.files.held, cache.evictions.passes) == (9910 - 10 * STEP_RANGES, 1)
    cache.append("log", block(1, 2))  # below the trigger, but the eviction is not complete
    assert (cache.files.held, cache.evictions.passes) == (9920 - 20 * STEP_RANGES, 2)
    cache.expire()
    assert cache.files.held == 5000
    passes = cache.evictions.passes
    cache.append("log", block(2, 3))
    assert (cache.files.held, cache.evictions.passes) == (5010, passes)
    check_cache(cache)


def test_a_large_block_is_made_room_for_in_one_step() -> None:
    cache = cached(HandClock(), 10_000)
    for number in range(900):
        cache.append(f"log{number}", block(0, 1))
    assert len(cache.append("log", block(0, 300))) == 1
    assert cache.files.held <= 10_000
    check_cache(cache)


def test_the_time_pass_frees_the_lock_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, steps = HandClock(), list[int]()
    cache = cached(clock, managedLedgerCacheEvictionTimeThresholdMillis=100)
    for number in range(500):
        cache.append(f"log{number}", block(0, 1))
    clock.pass_ms(101)
    monkeypatch.setattr("pyspark_ledger.ledger.cache.cache.pause", lambda _ms: steps.append(cache.files.held))
    cache.expire()
    assert steps[:2] == [5000 - 10 * STEP_RANGES, 5000 - 20 * STEP_RANGES]
    assert cache.files.held == 0


def test_cached_blocks_are_found_without_a_look_at_all_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cached(HandClock())
    for number in range(LEDGERS):
        follow(cache, f"log{number}", LATER)
    cache.append("log7", block(0, 5, ledger_id=7))
    monkeypatch.setattr(cache, "ledgers", lambda: pytest.fail("all ledgers are listed"))
    assert cache.mapped_bytes() == 0
    assert [ledger.cache.name for ledger in cache.ledgers_with_ranges()] == ["log7"]
    cache.forget({7})
    assert cache.ledgers_with_ranges() == []


def first_key(cache: EntryCache) -> tuple[float, ...]:
    """Return the key of the range to evict first, from rankings of all ledgers."""
    policy = cache.files.policy
    assert isinstance(policy, CursorDistancePolicy)
    rankings = [LedgerRanking(ledger.cache, policy._order, 0) for ledger in cache.ledgers()]
    return min(ranking.key[:3] for ranking in rankings if ranking.advance())


@pytest.mark.parametrize("seed", range(5))
def test_each_evicted_range_is_the_first_of_all_ledgers(seed: int) -> None:
    """The model ranks all ledgers anew before each eviction."""
    dice, clock = random.Random(seed), HandClock()
    cache = cached(clock, 100_000)
    policy = cache.files.policy
    assert isinstance(policy, CursorDistancePolicy)

    def remove(span: CachedRange) -> int:
        ranking = policy._first_ranking()
        assert ranking is None or (ranking.first is span and ranking.key[:3] == first_key(cache))
        return cache._remove(span)

    for _ in range(400):
        name, reader, entry = f"log{dice.randrange(6)}", dice.choice("abc"), dice.randrange(60)
        clock.pass_ms(dice.randrange(5))
        with cache.moving(name) as readers:
            match dice.randrange(5):
                case 0:
                    readers.follow(reader, Position(1, entry), LATER)
                case 1:
                    readers.served(reader, 1, entry, entry + dice.randrange(1, 20))
                case 2:
                    readers.commit(reader, Position(1, entry))
                case 3:
                    readers.reset(reader, Position(1, entry))
                case _:
                    readers.leave(reader, clock())
        for _ in range(2):
            cache.append(name, block(entry, entry + dice.randrange(1, 6)))
        if dice.random() < 0.3:
            policy.free(dice.randrange(1, 200), clock(), remove)
        check_cache(cache)
    assert sum(ledger.counts.evicted for ledger in cache.ledgers()) > 300
