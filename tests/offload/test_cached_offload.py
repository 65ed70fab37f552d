"""Goal: offloaded data is fetched from object storage once for all readers, byte for byte.

Method: a real store without local copies. Threads read overlapping blocks through a broker cache that is too small.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyspark_ledger.ledger.broker.reads.cached_reads import CachedReads
from pyspark_ledger.ledger.broker.reads.offloaded_reads import ReaderId
from pyspark_ledger.ledger.cache.eviction.registry import POLICIES
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.segment.reader import iter_frames
from pyspark_ledger.ledger.settings.broker import Settings
from tests.rigs.cache_invariants import check_cache
from tests.rigs.offload import HOUR, OffloadRig

NAME = "public/default/persistent/log"
TAIL = "public/default/persistent/tail"


class CachedLog:
    """Offloaded segments, read by registered readers."""

    def __init__(self, rig: OffloadRig, **settings: int | str) -> None:
        self.payloads = rig.fill(4, entries=8, size=60)
        rig.offload()
        rig.now += 5 * HOUR
        rig.store.ledger("log").trim()
        assert rig.local() == {rig.ids()[-1]}
        self.rig = rig
        self.ids = rig.ids()
        self.reads = CachedReads(
            Settings.of({"managedLedgerCacheEvictionTimeThresholdMillis": 10**6, **settings}),
            lambda: 0,
            lambda name: rig.store.ledger(name).snapshot,
        )

    def position(self, number: int) -> Position:
        return Position(self.ids[number // 8], number % 8)

    def read(self, reader: str, first: int, end: int, block_bytes: int = 300) -> list[bytes]:
        reading, found = ReaderId(NAME, reader), list[bytes]()
        range_ = PositionRange(self.position(first), self.position(end))
        for block in self.rig.store.ledger("log").blocks(range_, block_bytes):
            frames = self.reads.read(block, reading)
            for entry_id, frame in iter_frames(frames, block.ledger_id, block.first_entry, block.entries):
                found.append(bytes(parse_entry(frame, f"{block.ledger_id}:{entry_id}").payload))
            self.reads.served([block], reading)
        return found

    def map_tail(self, reader: str) -> int:
        """Map another log in local files, as a reader on this host does. Return its bytes."""
        blocks = self.rig.store.ledger("tail").blocks(PositionRange(EARLIEST, LATEST), 300)
        self.reads.count_local(blocks, ReaderId(TAIL, reader))
        return sum(block.length for block in blocks)


@pytest.fixture
def make(rig: OffloadRig) -> Iterator[Callable[..., CachedLog]]:
    return lambda **settings: CachedLog(rig, **settings)  # type: ignore[return-value]


def test_every_reader_reads_and_storage_is_read_once(make: Callable[..., CachedLog]) -> None:
    log = make()
    for name in "abc":
        log.reads.follow(NAME, name, EARLIEST, 10**6)
    for name, block_bytes in zip("abc", (300, 200, 5000), strict=True):
        assert log.read(name, 0, 32, block_bytes) == log.payloads[:32]
    counted = log.reads.metrics()
    assert (counted.misses, counted.hits) == (32, 64)
    assert counted.size_bytes > 32 * 60
    assert counted.expected_reads == 0


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "slowest-reader"])
def test_local_and_offloaded_blocks_do_not_evict_each_other(
    make: Callable[..., CachedLog], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two readers of a tail three times the cache, between two readers of a backlog that fits."""
    monkeypatch.setattr("pyspark_ledger.ledger.cache.eviction.registry.MIB", 8000)
    log = make(managedLedgerCacheSizeMB=1, managedLedgerCacheLocalFilesSizeMB=4, cacheEvictionPolicy=policy)
    log.rig.fill(20, entries=8, size=60, name="tail")
    for ledger, readers in ((NAME, "ab"), (TAIL, "tu")):
        for name in readers:
            log.reads.follow(ledger, name, EARLIEST, 10**6)
    log.read("a", 0, 32)
    tail_bytes = log.map_tail("t")
    counted = log.reads.metrics()
    assert counted.size_bytes < 8000 < counted.local_file_bytes == tail_bytes
    log.read("b", 0, 32)
    assert log.map_tail("u") == tail_bytes
    counted = log.reads.metrics()
    assert (counted.object_misses, counted.memory_hits) == (32, 32)
    assert (counted.file_misses, counted.page_cache_hits) == (161, 161)
    assert (counted.object_miss_bytes, counted.page_cache_hit_bytes) == (counted.memory_hit_bytes, tail_bytes)
    assert counted.evictions == 0
    check_cache(log.reads.cache)


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "slowest-reader"])
def test_what_a_reader_alone_read_is_kept_where_nobody_needs_the_room(
    make: Callable[..., CachedLog], policy: str
) -> None:
    log = make(cacheEvictionPolicy=policy)
    log.reads.follow(NAME, "a", EARLIEST, 10**6)
    assert log.read("a", 0, 32) == log.payloads[:32]
    assert log.reads.metrics().misses == 32
    log.reads.follow(NAME, "late", EARLIEST, 10**6)
    assert log.read("late", 0, 32) == log.payloads[:32]
    assert (log.reads.metrics().misses, log.reads.metrics().hits) == (32, 32)


def test_read_permits_return_after_the_read_and_memory_after_the_last_use(
    make: Callable[..., CachedLog],
) -> None:
    """Pulsar's testReadPermitsReleasedOnlyAfterLastEntryReference is otherwise: see the table in docs/cache.md."""
    log = make(managedLedgerCacheSizeMB=0, managedLedgerMaxReadsInFlightSizeInMB=1)
    block = log.rig.store.ledger("log").blocks(PositionRange(log.position(0), log.position(8)), 10_000)[0]
    frames = log.reads.read(block, ReaderId(NAME, "a"))
    part = frames.slice(3, 5)
    del frames
    counted = log.reads.metrics()
    assert (counted.inflight_read_bytes, counted.size_bytes, counted.lingering_bytes) == (0, block.length, block.length)
    del part
    counted = log.reads.metrics()
    assert (counted.size_bytes, counted.lingering_bytes) == (0, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_threads_read_every_byte_through_a_cache_that_is_too_small(
    make: Callable[..., CachedLog], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of the data fits into the cache. Ranges overlap; readers start, acknowledge, are reset and end.

    The excess over the limit is what each reader reads at the moment: at most 2,000 bytes.
    """
    monkeypatch.setattr("pyspark_ledger.ledger.cache.eviction.registry.MIB", 600)
    log = make(managedLedgerCacheSizeMB=1, cacheEvictionPolicy=policy, managedLedgerMaxReadsInFlightSizeInMB=1)

    def work(seed: int) -> None:
        dice, name = random.Random(seed), f"r{seed}"
        for _ in range(40):
            first = dice.randrange(31)
            end = first + dice.randrange(1, 33 - first)
            log.reads.follow(NAME, name, log.position(dice.randrange(first + 1)), 10**6)
            assert log.read(name, first, end, dice.choice([100, 300, 2000])) == log.payloads[first:end]
            assert log.reads.metrics().size_bytes <= 600 + 4 * 2000
            match dice.randrange(4):
                case 0:
                    log.reads.commit(NAME, name, log.position(end))
                case 1:
                    log.reads.reset(NAME, name, log.position(first))
                case 2:
                    log.reads.leave(NAME, name)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, seed) for seed in range(4)]:
            done.result(60)
    check_cache(log.reads.cache)
    counted = log.reads.metrics()
    assert (counted.inflight_read_bytes, counted.lingering_bytes) == (0, 0)
    assert counted.size_bytes <= 600
