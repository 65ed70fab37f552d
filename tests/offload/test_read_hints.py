"""Goal: prefetched entries are cached once, in a bounded part of the cache, before a driver's tasks request them.
A leading reader waits for readers close behind it.

Method: segments in object storage only, prefetch requests as drivers send them, counted fetches, and a manual clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pyspark_ledger.ledger.broker.reads import prefetch_planner
from pyspark_ledger.ledger.broker.reads.cached_reads import CachedReads
from pyspark_ledger.ledger.broker.reads.offloaded_reads import ReaderId
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import PrefetchRange, PrefetchRequest
from pyspark_ledger.ledger.segment.reader import SegmentBlock, iter_frames
from pyspark_ledger.ledger.settings.broker import Settings
from tests.rigs.cache_invariants import check_cache
from tests.rigs.deadline import wait_until
from tests.rigs.offload import HOUR, OffloadRig

NAME = "public/default/persistent/log"
ALIVE_MS = 10**6
SIZE = 60


class HintedLog:
    """Four segments of eight entries in object storage only, and one open segment."""

    def __init__(self, rig: OffloadRig, **settings: int | str) -> None:
        self.payloads = rig.fill(4, entries=8, size=SIZE)
        rig.offload()
        rig.now += 5 * HOUR
        rig.store.ledger("log").trim()
        self.now = 0
        self.rig, self.ids = rig, rig.ids()
        self.reads = CachedReads(
            Settings.of({"managedLedgerCacheEvictionTimeThresholdMillis": ALIVE_MS, **settings}),
            lambda: self.now,
            lambda name: rig.store.ledger(name).snapshot,
        )
        self.fetched: list[tuple[int, int]] = []
        self._watch()

    def _watch(self) -> None:
        windows, lock = self.rig.copies.windows, threading.Lock()
        fetch = windows._fetch

        def watched(source: object, start: int, length: int) -> object:
            with lock:
                self.fetched.append((start, length))
            return fetch(source, start, length)  # type: ignore[arg-type]

        windows._fetch = watched  # type: ignore[method-assign, assignment]

    def position(self, number: int) -> Position:
        return Position(self.ids[number // 8], number % 8)

    def range(self, first: int, end: int) -> PositionRange:
        return PositionRange(self.position(first), self.position(end))

    def follow(self, reader: str, number: int = 0) -> None:
        self.reads.follow(NAME, reader, self.position(number), ALIVE_MS)

    def hint(self, reader: str, first: int, end: int, *, paced: bool = True, left: int = 0) -> int:
        wanted = PrefetchRange(NAME, self.range(first, end), left)
        return self.reads.prefetch(PrefetchRequest(reader, [wanted], paced)).wait_ms

    def blocks(self, first: int, end: int) -> list[SegmentBlock]:
        return self.rig.store.ledger("log").blocks(self.range(first, end), 10_000)

    def read(self, reader: str, first: int, end: int) -> None:
        """Read as `DoGet` does and compare every byte."""
        reading, found = ReaderId(NAME, reader), list[bytes]()
        blocks = self.blocks(first, end)
        self.reads.begins(blocks, reading)
        for block in blocks:
            frames = self.reads.read(block, reading)
            for entry_id, frame in iter_frames(frames, block.ledger_id, block.first_entry, block.entries):
                found.append(bytes(parse_entry(frame, f"{block.ledger_id}:{entry_id}").payload))
            self.reads.served([block], reading)
        assert found == self.payloads[first:end]

    def entries(self) -> int:
        return self.reads.cache.ledger(NAME).cache.entries

    def settled(self) -> None:
        """Wait until no prefetch is in flight."""
        wait_until(lambda: self.reads.prefetch_planner.prefetcher._threads == 0)


@pytest.fixture
def make(rig: OffloadRig, monkeypatch: pytest.MonkeyPatch) -> Callable[..., HintedLog]:
    monkeypatch.setattr("pyspark_ledger.ledger.broker.reads.offloaded_reads.UNIT_LEAST", 1)
    return lambda **settings: HintedLog(rig, **settings)


def test_what_is_hinted_is_there_when_it_is_asked_for(make: Callable[..., HintedLog]) -> None:
    log = make()
    log.follow("a")
    assert log.hint("a", 0, 32) == 0
    wait_until(lambda: log.entries() == 32)
    counted = log.reads.metrics()
    assert (counted.hits, counted.misses) == (0, 0)  # no reader has received an entry
    assert log.reads.cache.ledger(NAME).counts.ahead_bytes == counted.size_bytes
    requests = len(log.fetched)
    log.read("a", 0, 32)
    assert len(log.fetched) == requests
    counted = log.reads.metrics()
    assert (counted.hits, counted.misses) == (0, 32)  # fetched from storage, for the first reader
    log.follow("b")
    log.read("b", 0, 32)
    assert (log.reads.metrics().hits, log.reads.metrics().misses) == (32, 32)
    assert len(log.fetched) == requests


def test_nothing_is_fetched_but_what_was_hinted_and_that_once(make: Callable[..., HintedLog]) -> None:
    log = make()
    for name in "abc":
        log.follow(name, 4)
        log.hint(name, 4, 20)
    log.settled()
    wait_until(lambda: log.entries() == 16)
    assert sum(length for _, length in log.fetched) == sum(block.length for block in log.blocks(4, 20))
    for name in "abc":
        log.read(name, 4, 20)
    assert sum(length for _, length in log.fetched) == sum(block.length for block in log.blocks(4, 20))


def test_a_reader_that_hints_nothing_is_read_ahead_for_when_it_asks(make: Callable[..., HintedLog]) -> None:
    log = make()
    log.follow("a")
    blocks = log.blocks(0, 32)
    log.reads.begins(blocks, ReaderId(NAME, "a"))
    wait_until(
        lambda: log.entries() == 32 - blocks[0].entries
    )  # all except the first block, which the reader fetches itself
    log.read("a", 0, 32)
    assert log.reads.metrics().misses == 32


def test_what_is_ahead_is_bounded_and_goes_on_when_it_is_read(
    make: Callable[..., HintedLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_ledger.ledger.cache.eviction.registry.MIB", 4000)
    monkeypatch.setattr(prefetch_planner, "_THREADS_MAX", 1)
    log = make(managedLedgerCacheSizeMB=1)
    log.follow("a")
    log.hint("a", 0, 32)
    log.settled()
    ahead, unit = log.reads.cache.ledger(NAME).counts.ahead_bytes, log.blocks(0, 32)[0].length
    assert 1000 <= ahead < 1000 + unit  # a quarter of 4000, and at most one unit more
    log.read("a", 0, 8)
    log.settled()
    assert log.reads.cache.ledger(NAME).counts.ahead_bytes > ahead
    log.read("a", 8, 32)
    assert log.reads.metrics().misses == 32
    check_cache(log.reads.cache)


def test_what_was_planned_is_forgotten_with_its_reader(make: Callable[..., HintedLog]) -> None:
    log = make(managedLedgerCacheReadAheadPercent=0)
    log.follow("a")
    log.hint("a", 0, 32)
    assert not log.reads.prefetch_planner.prefetcher._plans
    log = make()
    log.follow("a")
    log.reads.prefetch_planner.prefetcher.plan(ReaderId(NAME, "a"), log.blocks(0, 32))
    log.settled()
    assert log.reads.prefetch_planner.prefetcher._plans
    log.reads.leave(NAME, "a")
    assert not log.reads.prefetch_planner.prefetcher._plans


def test_what_was_read_ahead_for_a_query_that_died_stands_in_nobodys_way(make: Callable[..., HintedLog]) -> None:
    log = make()
    log.reads.follow(NAME, "dead", log.position(0), 1000)
    log.hint("dead", 0, 32)
    log.settled()
    assert log.reads.prefetch_planner.prefetcher.readings()
    log.now += 2000
    log.reads.cache.expire()
    log.reads.prefetch_planner.expire()
    assert not log.reads.prefetch_planner.prefetcher.readings()
    log.follow("a")
    log.hint("a", 0, 32)
    log.reads.drop(NAME)
    log.reads.prefetch_planner.expire()
    assert not log.reads.prefetch_planner.prefetcher.readings()
    assert not log.reads.cache.ledgers()  # and the ledger is not created again


def test_a_failure_is_told_to_who_asks_and_to_nobody_else(make: Callable[..., HintedLog]) -> None:
    log = make()
    log.follow("a")
    real, log.rig.copies.windows._fetch = log.rig.copies.windows._fetch, _failing  # type: ignore[method-assign]
    assert log.hint("a", 0, 32) == 0
    log.settled()
    with pytest.raises(Unavailable, match="the bucket is away"):
        log.read("a", 0, 32)
    log.rig.copies.windows._fetch = real  # type: ignore[method-assign]
    log.read("a", 0, 32)


def _failing(*_: object) -> object:
    raise Unavailable("the bucket is away")


def test_what_is_here_is_not_fetched(make: Callable[..., HintedLog]) -> None:
    log = make()
    log.follow("a", 32)
    assert log.hint("a", 32, 32) == 0
    end = Position(log.ids[-1], 1)
    wanted = PrefetchRange(NAME, PositionRange(log.position(32), end))
    assert log.reads.prefetch(PrefetchRequest("a", [wanted])).wait_ms == 0
    log.settled()
    assert (log.entries(), log.fetched) == (0, [])


def test_a_ledger_that_is_gone_is_passed_over(make: Callable[..., HintedLog]) -> None:
    log = make()
    log.follow("a")
    gone = PrefetchRange("public/default/persistent/gone", log.range(0, 8))
    assert log.reads.prefetch(PrefetchRequest("a", [gone, PrefetchRange(NAME, log.range(0, 8))])).wait_ms == 0
    wait_until(lambda: log.entries() == 8)


@pytest.mark.parametrize("paced", [True, False])
def test_who_runs_away_waits_for_those_close_behind(
    make: Callable[..., HintedLog], monkeypatch: pytest.MonkeyPatch, *, paced: bool
) -> None:
    """Half of the data fits into the cache. The leader is at 20 of 32 when the other starts, at the same speed."""
    monkeypatch.setattr("pyspark_ledger.ledger.cache.eviction.registry.MIB", 1600)
    log = make(managedLedgerCacheSizeMB=1)
    log.follow("first")
    left = sum(block.length for block in log.blocks(0, 32))
    waits = 0
    for number in range(0, 32, 4):
        if number == 16:
            log.follow("second")
        while wait := log.hint("first", number, number + 4, paced=paced, left=left * (32 - number) // 32 * 20):
            waits += wait
            log.now += wait
            assert number >= 16
        log.read("first", number, number + 4)
        log.reads.follow(NAME, "first", log.position(min(number + 4, 31)), ALIVE_MS)
        if number >= 16:
            at = number - 16
            assert log.hint("second", at, at + 4, paced=paced, left=left * (32 - at) // 32) == 0
            log.read("second", at, at + 4)
        log.now += 100
    assert bool(waits) == paced


def test_who_waits_reads_nothing_ahead_and_a_setting_turns_it_off(
    make: Callable[..., HintedLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_ledger.ledger.broker.reads.prefetch_planner.wait_ms", lambda *_: 50)
    log = make()
    log.follow("a")
    assert log.hint("a", 0, 32) == 50
    log.settled()
    assert log.entries() == 0
    log.reads.change(Settings.of({"managedLedgerCachePacingPercent": 0}))
    assert log.hint("a", 0, 32) == 0
    wait_until(lambda: log.entries() == 32)
