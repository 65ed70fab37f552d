"""Prefetching of the ranges that queries announce, and throttling of readers that are ahead of other readers.

The Spark driver of a query is the process that plans the query. It announces the ranges of the query's next batch. The
broker either prefetches these ranges, or tells the driver to wait. While the first of several readers, the *leader*,
waits, the readers behind it catch up. Then all of them share one read of object storage.

Rules
- The broker prefetches nothing for a reader that waits.
- The broker computes a waiting time for each ledger of a query. The query waits once, for the longest of these times.
- A query waits only if its ranges must be read from object storage. It never waits because of local files. Reason: the
  system's page cache probably has their bytes, so a second read is cheap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyspark_ledger.ledger.broker.reads.offloaded_reads import OffloadedReads, ReaderId
from pyspark_ledger.ledger.broker.reads.prefetcher import BrokerPrefetcher
from pyspark_ledger.ledger.cache.cache import EntryCache
from pyspark_ledger.ledger.cache.reader_throttle import LaggingReader, ReaderThrottle, wait_ms
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import DataLoss, NotFound
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol.reads import PrefetchRange, PrefetchReply, PrefetchRequest
from pyspark_ledger.ledger.segment.reader import SegmentBlock
from pyspark_ledger.ledger.settings.broker import Settings

_THREADS_MAX = 4
_LOCAL_UNIT = 4 * 1024 * 1024
_UNITS_MAX = 4096
_NEW_MS = 4_000


class PrefetchPlanner:
    """Planner of the prefetches of all readers. Any thread may call its methods."""

    def __init__(
        self,
        cache: EntryCache,
        reads: OffloadedReads,
        settings: Callable[[], Settings],
        clock: Clock,
        snapshot_of: Callable[[str], LogSnapshot],
    ) -> None:
        self._cache = cache
        self._reads = reads
        self._settings = settings
        self._clock = clock
        self._snapshot_of = snapshot_of
        self._throttles: dict[ReaderId, ReaderThrottle] = {}
        self._lock = threading.Lock()
        self.prefetcher = BrokerPrefetcher(
            reads,
            lambda: self._cache.limits.size * settings().managedLedgerCacheReadAheadPercent // 100,
            _THREADS_MAX,
        )

    def plan(self, request: PrefetchRequest) -> PrefetchReply:
        """Prefetch the announced ranges, or return the time for which the reader must wait first."""
        self._reads.mapped = self._reads.mapped or request.mapping
        planned = list[tuple[ReaderId, list[SegmentBlock]]]()
        wait = 0
        for wanted in request.ranges:
            reading = ReaderId(canonical_name(wanted.name), request.reader)
            try:
                snapshot = self._snapshot_of(reading.ledger)
                blocks = snapshot.blocks(wanted.range, self._reads.unit_bytes or _LOCAL_UNIT)[:_UNITS_MAX]
            except (NotFound, DataLoss):
                continue  # the read itself raises the error
            planned.append((reading, blocks))
            if request.paced and self._settings().managedLedgerCachePacingPercent:
                wait = max(wait, self._wait(reading, wanted, blocks, snapshot))
        for reading, blocks in planned:
            throttle = self._throttles.get(reading)
            if throttle is not None:
                throttle.waits(self._clock(), wait)
            if not wait and self._settings().managedLedgerCacheReadAheadPercent:
                self.prefetcher.plan(reading, self._served(blocks, reading, request) if request.direct else blocks)
        if wait:
            with self._cache.still():
                self._cache.ledger(planned[0][0].ledger).counts.waited_ms += wait
        return PrefetchReply(wait)

    def begins(self, reading: ReaderId, blocks: list[SegmentBlock]) -> None:
        """Prefetch the blocks of a reader's request that are in object storage, except the first of them.

        The broker will send the blocks to the reader in the order of `blocks`.
        """
        remote = [block for block in blocks if block.source is not None and not block.source.mappable]
        if len(remote) > 1 and self._reads.is_known(reading) and not self.prefetcher.covers(reading, remote):
            self.prefetcher.plan(reading, remote[1:])

    def forget(self, reading: ReaderId) -> None:
        self.prefetcher.forget(reading)
        with self._lock:
            self._throttles.pop(reading, None)

    def expire(self) -> None:
        """Stop throttling and prefetching for readers that have left."""
        for reading in {*list(self._throttles), *self.prefetcher.readings()}:
            if not self._cache.has_reader(reading.ledger, reading.reader):
                self.forget(reading)

    def _served(self, blocks: list[SegmentBlock], reading: ReaderId, request: PrefetchRequest) -> list[SegmentBlock]:
        """Return the blocks that the reader does not fetch from object storage by itself."""
        stored = [block for block in blocks if _is_stored(block)]
        own = iter(self._reads.bypassing(stored, reading, maps=request.mapping))
        return [block for block in blocks if not (_is_stored(block) and next(own))]

    def _wait(self, reading: ReaderId, wanted: PrefetchRange, blocks: list[SegmentBlock], snapshot: LogSnapshot) -> int:
        remote = [block for block in blocks if block.source is not None and not block.source.mappable]
        readers = self._cache.ledger(reading.ledger).readers
        if not remote or reading.reader not in readers or not self._reads.unit_bytes:
            with self._lock:
                self._throttles.pop(reading, None)
            return 0
        now, mean = self._clock(), _mean_bytes(snapshot)
        with self._cache.still(), self._lock:
            places = {name: int(readers.number(readers.place(name)) * mean) for name in readers.names()}
            here, end = places.pop(reading.reader), int(readers.number(wanted.range.end) * mean)
            mine = self._throttles.setdefault(reading, ReaderThrottle(now))
            self._record_positions(reading.ledger, now, {**places, reading.reader: here})
            if mine.asked_ms is None:
                mine.begins_batch(now, here)
            followers = [
                self._follower(ReaderId(reading.ledger, name), place, mine, now)
                for name, place in places.items()
                if place < end
            ]
        if not any(self._reads.is_missing(block, reading.ledger) for block in remote):
            return 0
        part = self._settings().managedLedgerCachePacingPercent / 100
        return wait_ms(
            end, followers, self._lag_bytes(), mine.may_wait_ms(now, wanted.left_bytes, part), mine.own_speed()
        )

    def _record_positions(self, ledger: str, now: int, places: dict[str, int]) -> None:
        for name, place in places.items():
            throttle = self._throttles.get(ReaderId(ledger, name))
            if throttle is not None:
                throttle.at(now, place)

    def _follower(self, reading: ReaderId, place: int, leader: ReaderThrottle, now: int) -> LaggingReader:
        throttle = self._throttles.get(reading)
        if throttle is None:
            return LaggingReader(place, 0.0)
        speed, own = throttle.speed(now), throttle.own_speed()
        if not own and now - throttle.began_ms < _NEW_MS:  # the reader is new, and may be as fast as the leader
            speed, own = max(speed, leader.own_speed() / 2), leader.own_speed()
        return LaggingReader(place, speed, own)

    def _lag_bytes(self) -> int:
        """Return how many bytes a reader may be behind the leader and still find the leader's blocks in the cache."""
        settings = self._settings()
        ledgers = {reading.ledger for reading in list(self._throttles)}
        kept = 100 - settings.managedLedgerCacheReadAheadPercent
        return self._cache.limits.size * kept // 100 // max(len(ledgers), 1)


def _is_stored(block: SegmentBlock) -> bool:
    """Return whether a reader can fetch a block from object storage by itself."""
    return block.source is not None and not block.source.mappable and block.source.stored is not None


def _mean_bytes(snapshot: LogSnapshot) -> float:
    segments, count = snapshot.segments, len(snapshot.segments)
    return segments.size_bytes(0, count) / max(segments.entries(0, count), 1)
