"""Goal: the totals of the cache are the sums of its ledgers', and progress tells the same of them. Method: two ledgers
whose counts are all different, and spans that readers have still to come to.
"""

from __future__ import annotations

from dataclasses import asdict

import msgspec

from benchmarks.cache_yardsticks import LruPolicy
from pyspark_ledger.ledger.cache.cache import EntryCache
from pyspark_ledger.ledger.cache.eviction.cursor_distance import CursorDistancePolicy
from pyspark_ledger.ledger.cache.ledger_cache import CacheCounts
from pyspark_ledger.ledger.cache.metrics import CacheSums, cache_report
from pyspark_ledger.ledger.position import Position
from tests.rigs.cache import HandClock, block, cache_limits, cache_of

_SAID = {"mapped": "mapped_entries", "direct": "direct_entries"}


def test_totals_are_the_sums_of_the_ledgers_and_progress_tells_the_same() -> None:
    cache = EntryCache(LruPolicy, cache_limits(10_000, 2**28), HandClock())
    for number, name in enumerate(("orders", "bills"), 1):
        with cache.moving(name) as readers:
            for reader in range(number):
                readers.follow(f"r{reader}", Position(1, 0), 10**12)
        cache.append(name, block(0, 10 * number))
        cache.ledger(name).counts = CacheCounts(*(number * 100 + place for place in range(16)))
    report = cache_report(cache, "lru")
    for place, name in enumerate(asdict(CacheCounts())):
        assert getattr(report, _SAID.get(name, name)) == 300 + 2 * place, name
    assert (report.entries, report.expected_reads, report.non_evictable_bytes) == (30, 50, 300)
    assert [ledger.expected_reads for ledger in report.ledgers] == [10, 40]
    told = msgspec.structs.asdict(CacheSums(cache, HandClock()).now())
    assert told == {name: value for name, value in msgspec.structs.asdict(report).items() if name in told}


def test_each_decision_of_a_policy_is_counted_in_entries() -> None:
    clock = HandClock()
    cache = cache_of(CursorDistancePolicy, cache_limits(10_000, 100), clock)
    with cache.moving("orders") as readers:
        readers.follow("slow", Position(1, 5), 10**12)
    name = cache.limits.settings.cacheEvictionPolicy
    for first in (0, 5, 10):
        cache.fetch("orders", "fast", 1, first, first + 5, lambda first, end: block(first, end, size=6))
    assert cache.decisions() == {(name, "decline"): 5, (name, "admit"): 10}
    cache.append("orders", block(15, 20, size=8))  # the pool of 100 bytes is full
    clock.pass_ms(10**9)
    with cache.moving("orders") as readers:
        readers.follow("slow", Position(2, 0), 10**12)
    cache.expire()
    found = {decision: entries for (_, decision), entries in cache.decisions().items()}
    assert found.pop("decline") + found.pop("admit") == 15
    assert sum(found.values()) == cache_report(cache, name).evicted == 15
    assert set(found) <= {"size", "time"}
    assert found["time"] > 0
