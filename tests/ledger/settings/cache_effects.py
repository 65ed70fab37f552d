"""Effects of the cache's settings: what stays cached, who waits and for how long, what is prefetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark_ledger.ledger.broker.reads import prefetch_planner
from pyspark_ledger.ledger.broker.reads.offloaded_reads import UNIT_LEAST, ReaderId
from pyspark_ledger.ledger.cache.range_cache import RangeCache
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import PrefetchRange, PrefetchRequest
from tests.rigs.cache import CountedHome, block, insert
from tests.rigs.driven_broker import Drive, DrivenBroker, Drives, Value
from tests.rigs.entry import entry

LATER = 10**15
SMALL: dict[str, Value] = {"managedLedgerCacheSizeMB": 1}
FOLDER: dict[str, Value] = {"managedLedgerOffloadBucket": "{folder}"}
SLOWEST: dict[str, Value] = {"cacheEvictionPolicy": "slowest-reader"}


def emptied(broker: DrivenBroker) -> None:
    for ledger in broker.cache.ledgers():
        broker.cache.drop(ledger.cache.name)


def held(broker: DrivenBroker, blocks: int = 20, *, local: bool = False) -> int:
    """Return how many of so many blocks of 100,000 bytes the cache holds in the end."""
    emptied(broker)
    for number in range(blocks):
        storage = None if local else CountedHome()
        insert(broker.cache, "a", block(number, number + 1, size=100_000, storage=storage))
    return broker.cache.ledger("a").cache.entries


def expected(broker: DrivenBroker) -> None:
    """All of ledger `a` is going to be read."""
    with broker.cache.moving("a") as readers:
        readers.follow("x", Position(1, 0), LATER)


def old(
    broker: DrivenBroker, *, wanted: bool = False, again: bool = False, offloaded: bool = False, pass_ms: int = 2_000
) -> bool:
    """Whether a block stays for so long, wanted by a reader, read meanwhile, or from object storage."""
    emptied(broker)
    if wanted:
        expected(broker)
    cached = block(0, 1, storage=CountedHome() if offloaded else None)
    insert(broker.cache, "a", cached)
    if again:
        broker.cache.fetch("a", "x", 1, 0, 1, lambda *_: cached)
    broker.pass_ms(pass_ms)
    broker.cache.expire()
    return bool(broker.cache.ledger("a").cache.entries)


@contextmanager
def policy(broker: DrivenBroker, name: str) -> Iterator[None]:
    broker.set("cacheEvictionPolicy", name)
    yield
    broker.set("cacheEvictionPolicy", None)


def under(*names: str, **how: bool | int) -> Callable[[DrivenBroker], object]:
    """`old` by policy."""

    def observe(broker: DrivenBroker) -> object:
        found = []
        for name in names:
            with policy(broker, name):
                found.append(old(broker, **how))  # type: ignore[arg-type]
        return found

    return observe


def policies(broker: DrivenBroker) -> object:
    kinds = [type(pool.policy).__name__ for pool in broker.cache.pools]
    return [*kinds, broker.source.metrics().policy]


def behind(**readers: int) -> RangeCache:
    """A ledger whose end is at entry 100, with readers at these entries."""
    cache = RangeCache("a")
    cache.readers._end = lambda: Position(1, 100)
    for name, entry_id in readers.items():
        cache.readers.follow(name, Position(1, entry_id), LATER)
    return cache


def kept_of_what_was_read(broker: DrivenBroker) -> object:
    readers = behind(a=10).readers
    readers.served("a", 1, 10, 30)
    return broker.cache.memory.policy.keeps_from(readers)


def copied(broker: DrivenBroker) -> object:
    """Whether a local block is copied when it is read, and when it is appended before the eyes of a reader."""
    emptied(broker)
    log = broker.log()
    broker.source.follow(log.name, "a", EARLIEST, 10**6)
    log.append([entry(b"x")]).result(60)
    (found,) = log.blocks(PositionRange(EARLIEST, LATEST), 1000)
    spans = list(broker.cache.ledger(log.name).cache)
    return broker.source.copied(found) is not None, [span.block.storage is not None for span in spans]


def hinted(broker: DrivenBroker, seen: list[object]) -> int:
    """Return how long the broker throttles a reader of object storage with others close behind; `seen`: part of it."""
    log = broker.offloaded(gone=True)
    broker.source.follow(log.name, "a", EARLIEST, 10**6)
    pace = prefetch_planner.ReaderThrottle
    with broker.patch.context() as patch:
        patch.setattr(pace, "may_wait_ms", lambda _self, _now, _left, part: seen.append(part) or 0)
        patch.setattr(prefetch_planner, "wait_ms", lambda *_: 50)
        wanted = PrefetchRange(log.name, PositionRange(log.snapshot.start, log.snapshot.end))
        return broker.source.prefetch(PrefetchRequest("a", [wanted], paced=True)).wait_ms


def paced(broker: DrivenBroker) -> object:
    seen = list[object]()
    return hinted(broker, seen), seen


def read_ahead(broker: DrivenBroker) -> object:
    """Bytes that may be ahead, bytes that readers may lie apart, and whether anything is planned for a hint."""
    planned = list[ReaderId]()
    planner = broker.source.prefetch_planner
    log = broker.offloaded(gone=True)
    broker.source.follow(log.name, "a", EARLIEST, 10**6)
    with broker.patch.context() as patch:
        patch.setattr(planner.prefetcher, "plan", lambda reading, _: planned.append(reading))
        wanted = PrefetchRange(log.name, PositionRange(log.snapshot.start, log.snapshot.end))
        broker.source.prefetch(PrefetchRequest("a", [wanted], paced=False))
        planner._throttles.clear()
    return planner.prefetcher._room(), planner._lag_bytes(), len(planned)


def second_read(broker: DrivenBroker) -> object:
    """Return the result of a read of 700,000 bytes while another read is in flight, and how long it waits."""
    permits, waited = broker.cache.permits, list[float]()
    with broker.patch.context() as patch:
        patch.setattr(permits._changed, "wait_for", lambda _, seconds: waited.append(seconds))
        try:
            with permits.held(700_000), permits.held(700_000):
                return "read"
        except Unavailable as refused:
            return waited or refused.message[:25]


assert UNIT_LEAST <= (64 << 20) // 16, "else nothing is paced here"
PREFIX = "managedLedgerCacheEviction"
AGE = under("cursor-distance", "expected-reads", "expected-reads-stash", "slowest-reader")
DRIVES: Drives = {
    "managedLedgerCacheSizeMB": [Drive(held, 20, {1: 10, 0: 0})],
    "managedLedgerCacheLocalFilesSizeMB": [Drive(lambda b: held(b, local=True), 20, {1: 10, 0: 0})],
    "cacheEvictionPolicy": [
        Drive(
            policies,
            ["CursorDistancePolicy", "CursorDistancePolicy", "cursor-distance"],
            {"segmented": ["SegmentedPolicy", "SegmentedPolicy", "segmented"]},
        )
    ],
    f"{PREFIX}Watermark": [Drive(lambda b: held(b, 11), 9, {50: 5}, SMALL)],
    f"{PREFIX}TimeThresholdMillis": [
        Drive(AGE, [False] * 4, {5_000: [True] * 4}),
        Drive(under("expected-reads-stash", pass_ms=500), [True], {200: [False]}),
    ],
    f"{PREFIX}ExtendTTLOfEntriesWithRemainingExpectedReadsMaxTimes": [
        Drive(under("expected-reads", wanted=True), [True], {0: [False]})
    ],
    f"{PREFIX}ExtendTTLOfRecentlyAccessed": [
        Drive(under("expected-reads", "slowest-reader", again=True), [False, False], {1: [True, True]})
    ],
    "cacheEvictionByMarkDeletedPosition": [
        Drive(kept_of_what_was_read, Position(1, 30), {1: Position(1, 10)}, SLOWEST)
    ],
    "managedLedgerCacheCopyEntries": [Drive(copied, (False, [False]), {1: (True, [True])})],
    "managedLedgerCacheReadAheadPercent": [
        Drive(read_ahead, (16 << 20, 48 << 20, 1), {50: (32 << 20, 32 << 20, 1), 0: (0, 64 << 20, 0)}, FOLDER)
    ],
    "managedLedgerCachePacingPercent": [Drive(paced, (50, [0.2]), {50: (50, [0.5]), 0: (0, [])}, FOLDER)],
    "managedLedgerMaxReadsInFlightSizeInMB": [Drive(second_read, "read", {1: [60.0]})],
}
