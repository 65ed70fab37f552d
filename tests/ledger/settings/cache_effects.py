"""Effects of the cache's settings: what stays cached, who waits and for how long, what is prefetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark_ledger.ledger.broker.reads import prefetch_planner
from pyspark_ledger.ledger.broker.reads.offloaded_reads import UNIT_LEAST, ReaderId
from pyspark_ledger.ledger.cache.eviction.policy import WantedRead
from pyspark_ledger.ledger.cache.range_cache import RangeCache
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import PrefetchRange, PrefetchRequest
from tests.rigs.cache import CountedHome, block, insert
from tests.rigs.driven_broker import Drive, DrivenBroker, Drives, Value, WaitRecorder
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


def freed_when_full(broker: DrivenBroker) -> object:
    """Return which of two old blocks, of which the first is expected, stays when the stash must evict one."""
    emptied(broker)
    expected(broker)
    for name in "abc":
        insert(broker.cache, name, block(0, 1, size=400_000, storage=CountedHome()))
        broker.pass_ms(500)
    return [name for name in "abc" if broker.cache.ledger(name).cache.entries]


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


def admitted(broker: DrivenBroker) -> object:
    return broker.cache.memory.policy.admits(WantedRead(behind(a=10, b=40).readers, "a", 1, 10, 20))


def kept_from(broker: DrivenBroker) -> object:
    return broker.cache.memory.policy.keeps_from(behind(far=10, near=60).readers)


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


def seconds_between_passes(broker: DrivenBroker) -> object:
    wait = WaitRecorder()
    with broker.patch.context() as patch:
        patch.setattr(broker.source, "_stopped", wait)
        broker.source._run()
    return wait.seconds[0]


def still_cached(broker: DrivenBroker) -> object:
    """Whether what is appended three seconds after the last reader left is cached."""
    log = broker.log()
    broker.source.follow(log.name, "a", EARLIEST, 10**6)
    broker.source.leave(log.name, "a")
    broker.pass_ms(3_000)
    log.append([entry(b"x")]).result(60)
    return bool(broker.cache.ledger(log.name).cache.entries)


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
            {"lru": ["LruPolicy", "LruPolicy", "lru"]},
        )
    ],
    f"{PREFIX}Watermark": [Drive(lambda b: held(b, 11), 9, {50: 5}, SMALL)],
    f"{PREFIX}TriggerThresholdPercent": [
        Drive(lambda b: held(b, 10), 10, {50: 2}, {**SMALL, f"{PREFIX}Watermark": 20})
    ],
    f"{PREFIX}TimeThresholdMillis": [
        Drive(AGE, [False] * 4, {5_000: [True] * 4}),
        Drive(under("expected-reads-stash", pass_ms=500), [True], {200: [False]}),
    ],
    f"{PREFIX}TimeThresholdMillisMax": [
        Drive(under("expected-reads-stash", wanted=True), [True], {1_500: [False]}),
        Drive(freed_when_full, ["a", "c"], {100: ["b", "c"]}, {**SMALL, "cacheEvictionPolicy": "expected-reads-stash"}),
    ],
    f"{PREFIX}TimeThresholdMillisOffloaded": [Drive(lambda b: old(b, offloaded=True), True, {1_500: False})],
    f"{PREFIX}ExtendTTLOfEntriesWithRemainingExpectedReadsMaxTimes": [
        Drive(under("expected-reads", wanted=True), [True], {0: [False]})
    ],
    f"{PREFIX}ExtendTTLOfRecentlyAccessed": [
        Drive(under("expected-reads", "slowest-reader", again=True), [False, False], {1: [True, True]})
    ],
    "cacheEvictionByMarkDeletedPosition": [
        Drive(kept_of_what_was_read, Position(1, 30), {1: Position(1, 10)}, SLOWEST)
    ],
    "managedLedgerCursorBackloggedThreshold": [
        Drive(kept_from, Position(1, 10), {50: Position(1, 60), 10: None}, SLOWEST)
    ],
    "managedLedgerMinimumBacklogCursorsForCaching": [
        Drive(admitted, False, {1: True}, {**SLOWEST, "managedLedgerMinimumBacklogEntriesForCaching": 10})
    ],
    "managedLedgerMinimumBacklogEntriesForCaching": [
        Drive(admitted, False, {90: True}, {**SLOWEST, "managedLedgerMinimumBacklogCursorsForCaching": 1})
    ],
    "managedLedgerMaxBacklogBetweenCursorsForCaching": [
        Drive(
            admitted,
            True,
            {29: False},
            {
                **SLOWEST,
                "managedLedgerMinimumBacklogCursorsForCaching": 1,
                "managedLedgerMinimumBacklogEntriesForCaching": 10,
            },
        )
    ],
    "managedLedgerCacheCopyEntries": [Drive(copied, (False, [False]), {1: (True, [True])})],
    f"{PREFIX}IntervalMs": [Drive(seconds_between_passes, 0.1, {70: 0.07})],
    "managedLedgerCacheReadAheadPercent": [
        Drive(read_ahead, (16 << 20, 48 << 20, 1), {50: (32 << 20, 32 << 20, 1), 0: (0, 64 << 20, 0)}, FOLDER)
    ],
    "managedLedgerCachePacingPercent": [Drive(paced, (50, [0.2]), {50: (50, [0.5]), 0: (0, [])}, FOLDER)],
    "managedLedgerContinueCachingAddedEntriesAfterLastActiveCursorLeavesMillis": [
        Drive(still_cached, False, {5_000: True})
    ],
    "managedLedgerMaxReadsInFlightSizeInMB": [Drive(second_read, "read", {1: [60.0]})],
    "managedLedgerMaxReadsInFlightPermitsAcquireTimeoutMillis": [
        Drive(second_read, [60.0], {7: [0.007]}, {"managedLedgerMaxReadsInFlightSizeInMB": 1})
    ],
    "managedLedgerMaxReadsInFlightPermitsAcquireQueueSize": [
        Drive(second_read, [60.0], {0: "0 reads wait for storage,"}, {"managedLedgerMaxReadsInFlightSizeInMB": 1})
    ],
}
