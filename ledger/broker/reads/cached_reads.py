"""Read path of the broker: serves blocks from the cache or from storage, registers readers, and counts reads.

    count_local counts blocks of local files, whose locations a reader on this host gets
    share       copies blocks into shared memory, and returns their locations to a reader on this host
    read        returns the frames (entries with headers) of a block that is sent to a reader
    direct      counts blocks in object storage that a reader fetches by itself
    follow …    records the start, the acknowledgements and the end of a reader

The cache copies no bytes of a local file. It only records that a block of the file was read or written recently. Then
the system's page cache probably has the bytes. To *account for* a block is to make such a record.

Rules
- If the cache does not have a block, its read counts as a read from storage. This rule also applies to a block that the
  reader maps itself.
- After that read, the eviction policy decides whether the block is cached. Usually a block is cached if another reader
  still has to read it.
- A range counts as read when the broker has sent the locations of its blocks, or the last of its frames.
- Appended entries are cached while the ledger has readers, and for a grace time after that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import compress

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.broker.reads.offloaded_reads import LOCAL_FILE, OffloadedReads, ReaderId
from pyspark_ledger.ledger.broker.reads.prefetch_planner import PrefetchPlanner
from pyspark_ledger.ledger.broker.reads.shared_memory_reads import SharedReads
from pyspark_ledger.ledger.cache.block import CachedBlock
from pyspark_ledger.ledger.cache.cache import EntryCache
from pyspark_ledger.ledger.cache.eviction.registry import limits_of, policy_of
from pyspark_ledger.ledger.cache.expected_reads import LedgerReaders
from pyspark_ledger.ledger.cache.metrics import CacheSums, cache_report
from pyspark_ledger.ledger.cache.shared_memory import SharedBlocks
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import LedgerError, NotFound
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.cache import CacheMetrics
from pyspark_ledger.ledger.protocol.reads import BlockPlace, PrefetchReply, PrefetchRequest
from pyspark_ledger.ledger.segment.format import FRAME_BYTES
from pyspark_ledger.ledger.segment.index import EntryIndex, Integers
from pyspark_ledger.ledger.segment.reader import FrameSource, SegmentBlock
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.settings.setting import MIB
from pyspark_ledger.ledger.transport.mapped_block import read_block

_EVICTION_SECONDS = 0.1
_APPENDED_BYTES = 4 * MIB
_RANGES_MAX = 1024
_LEFT_MS_MAX = 2_000  # appends stay cached for a reader that comes back within this time
_log = logging.getLogger(__name__)


class CachedReads:
    """Reads of a broker through its cache. Any thread may call any method."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        snapshot_of: Callable[[str], LogSnapshot],
        leased: Callable[[str], Iterable[tuple[str, Position, int]]] = lambda _ledger: (),
        shared: SharedBlocks | None = None,
    ) -> None:
        self._leased = leased
        self._registered: set[str] = set()
        self._settings = settings
        self._clock = clock
        self._snapshot_of = snapshot_of
        self.cache = EntryCache(policy_of(settings), limits_of(settings), clock, self._readers_of)
        self.cache.permits.change(settings.managedLedgerMaxReadsInFlightSizeInMB * MIB)
        self.sums = CacheSums(self.cache, clock)
        if shared is not None:
            self.cache.inherit(CachedBlock(0, 0, 0, storage.size, _no_bounds, storage) for storage in shared.left)
        self._blocks = shared
        self._offloaded = OffloadedReads(self.cache, shared)
        self._shared = SharedReads(self._offloaded, shared, self.copied, clock) if shared is not None else None
        self.prefetch_planner = PrefetchPlanner(self.cache, self._offloaded, lambda: self._settings, clock, snapshot_of)
        self._active_ledgers: set[str] = set()
        # The newest state (segments, end) of each ledger. Reason: a call under the cache's lock must not open a ledger.
        # The call could wait for ever for a ledger that is being closed.
        self._snapshots: dict[str, LogSnapshot] = {}
        self.on_moved: Callable[[str], None] = lambda _: None
        """Function that gets the name of each log that has moved, after the cache has its new entries."""
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the thread that evicts old blocks until `stop`."""
        threading.Thread(target=self._run, name="cache", daemon=True).start()

    def stop(self) -> None:
        """Stop the eviction thread. Free all shared memory except the blocks that readers have mapped."""
        self._stopped.set()
        if self._blocks is not None:
            self._blocks.close()

    def change(self, settings: Settings) -> None:
        before, self._settings = self._settings, settings
        self.cache.permits.change(settings.managedLedgerMaxReadsInFlightSizeInMB * MIB)
        if limits_of(before) != limits_of(settings):
            self.cache.change(policy_of(settings), limits_of(settings))

    def count_local(self, blocks: Sequence[SegmentBlock], reading: ReaderId) -> None:
        """Count blocks of local files whose locations a reader on this host gets. The reader maps the files itself."""
        self._refresh(reading.ledger)
        self._register_leased(reading.ledger)
        for block in blocks:
            self._account(block, reading)
        with self.cache.still():
            counts = self.cache.ledger(reading.ledger).counts
            counts.mapped += sum(block.entries for block in blocks)
            counts.mapped_bytes += sum(block.length for block in blocks)
        self.served(blocks, reading)

    def share(self, blocks: Sequence[SegmentBlock], reading: ReaderId) -> list[BlockPlace]:
        """Return shared-memory locations of the first of `blocks`, for a reader on this host.

        The list is empty if shared memory has no room. The broker must then send the blocks.
        """
        if self._shared is None or not blocks:
            return []
        self.begins(list(blocks), reading)
        places, count = self._shared.places(blocks, reading)
        with self.cache.still():
            counts = self.cache.ledger(reading.ledger).counts
            counts.mapped += sum(place.entries for place in places)
            counts.mapped_bytes += sum(place.length for place in places)
        self.served(blocks[:count], reading)
        for place in places[-1:]:
            self.prefetch_planner.prefetcher.passed(
                reading, Position(place.ledger_id, place.first_entry + place.entries)
            )
        return places

    def direct(self, blocks: Sequence[SegmentBlock], reading: ReaderId, *, maps: bool) -> list[bool]:
        """Return for each block whether its reader fetches it from object storage by itself. Count these reads."""
        self._refresh(reading.ledger)
        self._register_leased(reading.ledger)
        found = self._offloaded.bypassing(blocks, reading, maps=maps)
        for block in compress(blocks, found):
            self.cache.bypassed(reading.ledger, block.entries, block.length)
            self.served([block], reading)
        return found

    @property
    def group_bytes(self) -> int:
        """Maximum bytes of blocks outside of the cache that the broker has in memory for one reader."""
        return self.cache.limits.size // 16

    def copied(self, block: SegmentBlock) -> FrameSource | None:
        """Return the source of a block whose bytes the cache keeps; None for a block that is mapped from its file."""
        if block.source is not None and not block.source.mappable:
            return block.source
        return LOCAL_FILE if self._settings.managedLedgerCacheCopyEntries else None

    def read(self, block: SegmentBlock, reading: ReaderId) -> pa.Buffer:
        """Return exactly the frames of the block. The bytes are valid while the returned buffer exists."""
        self._refresh(reading.ledger)
        self._register_leased(reading.ledger)
        source = self.copied(block)
        if source is not None:
            frames = self._offloaded.read(block, source, reading)
            self.prefetch_planner.prefetcher.passed(
                reading, Position(block.ledger_id, block.first_entry + block.entries)
            )
            return frames
        with self.cache.permits.held(block.length) if self._account(block, reading) else nullcontext():
            return read_block(block)

    def begins(self, blocks: list[SegmentBlock], reading: ReaderId) -> None:
        """Record that the broker will send these blocks to a reader in this order."""
        self._refresh(reading.ledger)
        self._register_leased(reading.ledger)
        self.prefetch_planner.begins(reading, blocks)

    def prefetch(self, request: PrefetchRequest) -> PrefetchReply:
        for wanted in request.ranges:
            if self._shared is not None:
                self._shared.finished(ReaderId(canonical_name(wanted.name), request.reader))
            with suppress(NotFound):
                self._refresh(canonical_name(wanted.name))
        return self.prefetch_planner.plan(request)

    def served(self, blocks: Iterable[SegmentBlock], reading: ReaderId) -> None:
        """Record that the reader has read these blocks completely."""
        if reading.reader and reading.ledger in self._active_ledgers:
            with self.cache.moving(reading.ledger) as readers:
                readers.keep(reading.reader, self._clock())
                for block in blocks:
                    readers.served(
                        reading.reader, block.ledger_id, block.first_entry, block.first_entry + block.entries
                    )

    def follow(self, ledger: str, reader: str, position: Position, ttl_ms: int) -> None:
        """Register a reader at `position`. The registration expires after `ttl_ms` unless the call is repeated."""
        self._refresh(ledger)
        self._follow(ledger, reader, position, ttl_ms)

    def commit(self, ledger: str, reader: str, position: Position) -> None:
        """Record that a reader has acknowledged every entry before `position`."""
        if ledger in self._active_ledgers:
            with self.cache.moving(ledger) as readers:
                readers.commit(reader, position)

    def reset(self, ledger: str, reader: str, position: Position) -> None:
        if ledger in self._active_ledgers:
            self.prefetch_planner.forget(ReaderId(ledger, reader))
            with self.cache.moving(ledger) as readers:
                readers.reset(reader, position)

    def leave(self, ledger: str, reader: str) -> None:
        if ledger in self._active_ledgers:
            with self.cache.moving(ledger) as readers:
                readers.leave(reader, self._clock())
            self.prefetch_planner.forget(ReaderId(ledger, reader))

    def again(self, ledger: str, reader: str, positions: PositionSet) -> None:
        """Record that a reader will read entries again, because of a negative acknowledgement or a time-out."""
        if ledger not in self._active_ledgers:
            return
        with self.cache.moving(ledger) as readers:
            for range_ in _entry_ranges(positions):
                readers.again(reader, range_)

    def moved(self, before: LogSnapshot, now: LogSnapshot) -> None:
        """Cache newly appended entries if the ledger has active readers. Called by the writer thread; never raises."""
        try:
            self._snapshots[now.name] = now
            self._register_leased(now.name)
            if now.name in self._active_ledgers and self._is_followed(now.name):
                self._appended(before, now)
        except (LedgerError, OSError) as error:
            _log.warning("%s: cannot cache appended entries: %s", now.name, error)
        except Exception:  # noqa: BLE001 — a cache error must not fail a durable append
            _log.exception("%s: cannot cache appended entries, unexpected error", now.name)
        self.on_moved(now.name)

    def forget(self, ledger_ids: Collection[int]) -> None:
        self.cache.forget(ledger_ids)

    def drop(self, name: str) -> None:
        """Remove a deleted ledger from the cache, with all its partitions."""
        for ledger in self.cache.ledgers():
            if ledger.cache.name == name or ledger.cache.name.startswith(f"{name}-partition-"):
                self._active_ledgers.discard(ledger.cache.name)
                self._registered.discard(ledger.cache.name)
                self.cache.drop(ledger.cache.name)

    def metrics(self) -> CacheMetrics:
        """Return the metrics of the cache."""
        return cache_report(self.cache, self._settings.cacheEvictionPolicy)

    def _refresh(self, ledger: str) -> None:
        self._snapshots[ledger] = self._snapshot_of(ledger)

    def _follow(self, ledger: str, reader: str, position: Position, ttl_ms: int) -> None:
        with self.cache.moving(ledger) as readers:
            readers.follow(reader, position, self._clock() + ttl_ms)
        self._active_ledgers.add(ledger)

    def _register_leased(self, ledger: str) -> None:
        """Register the readers that have a lease on a subscription of a ledger. Done at the first use of the ledger.

        Reason: a query that acquired its lease before this broker started does not register again.
        """
        if ledger in self._registered:
            return
        self._registered.add(ledger)
        for reader, position, ttl_ms in self._leased(ledger):
            self._follow(ledger, reader, position, ttl_ms)

    def _account(self, block: SegmentBlock, reading: ReaderId) -> bool:
        """Count the read of a block of a local file, and account for the block if the policy caches it.

        Return whether any part of the block counts as read from storage.
        """
        index, missed = self._index_of(reading.ledger, block.ledger_id), list[int]()

        def load(first: int, end: int) -> CachedBlock:
            missed.append(first)
            return _block(index, first, end)

        first, end = block.first_entry, block.first_entry + block.entries
        self.cache.fetch(reading.ledger, reading.reader, block.ledger_id, first, end, load)
        return bool(missed)

    def _appended(self, before: LogSnapshot, now: LogSnapshot) -> None:
        start = before.end
        for segment in now.segments[-2:]:
            first = start.entry_id if segment.ledger_id == start.ledger_id else 0
            if segment.ledger_id < start.ledger_id or first >= segment.entries:
                continue
            if segment.offloaded is not None:
                continue  # a direct segment: no local file has its entries
            if not self._settings.managedLedgerCacheCopyEntries:
                self.cache.append(now.name, _block(segment.index(), first, segment.entries))
                continue
            for block in segment.blocks(first, segment.entries, _APPENDED_BYTES):
                self._offloaded.append(block, now.name)

    def _index_of(self, ledger: str, ledger_id: int) -> EntryIndex:
        segment = self._snapshots[ledger].segments.find(ledger_id)
        if segment is None:
            raise NotFound(f"segment {ledger_id} of {ledger!r} was deleted by retention", hint="Plan the read again")
        return segment.index()

    def _is_followed(self, ledger: str) -> bool:
        readers = self.cache.ledger(ledger).readers
        if len(readers):
            return True
        return readers.left_ms is not None and self._clock() - readers.left_ms < _LEFT_MS_MAX

    def _readers_of(self, ledger: str) -> LedgerReaders:
        def number(position: Position) -> int:
            return self._snapshots[ledger].entries_before(position)

        return LedgerReaders(number, lambda: self._snapshots[ledger].end)

    def _run(self) -> None:
        while not self._stopped.wait(_EVICTION_SECONDS):
            try:
                self._expire()
            except Exception:  # noqa: BLE001 — without this thread, expired blocks would stay
                _log.exception("the cache's eviction by time failed with an unexpected error")

    def _expire(self) -> None:
        if self._active_ledgers or any(pool.size for pool in self.cache.pools):
            self.cache.expire()
            self.prefetch_planner.expire()
        if self._shared is not None:
            self._shared.expire()


def _entry_ranges(positions: PositionSet) -> Iterator[PositionRange]:
    """Yield ranges of the entries that have at least one row in the set.

    A segment has at most `_RANGES_MAX` ranges: ranges with the smallest gaps between them are joined.
    """
    entries = positions.copy()
    for ledger_id in positions.ledgers():
        entries.add_entries(ledger_id, positions.rows(ledger_id).entries)
    for ledger_id, starts, ends in entries.runs():
        gaps = starts[1:] - ends[:-1]
        apart = np.sort(np.argsort(gaps)[-(_RANGES_MAX - 1) :])
        firsts, stops = np.append(starts[0], starts[1:][apart]), np.append(ends[:-1][apart], ends[-1])
        for first, end in zip(firsts.tolist(), stops.tolist(), strict=True):
            yield PositionRange(Position(ledger_id, first), Position(ledger_id, end))


def _no_bounds(first: int, end: int) -> Integers:
    raise AssertionError(f"entries {first} to {end} of a block of an earlier broker are never requested")


def _block(index: EntryIndex, first: int, end: int) -> CachedBlock:
    """Return a cached block that accounts for entries of a local file. It has no copy of their bytes."""

    def edges(first: int, end: int) -> Integers:
        return np.concatenate(([0], np.cumsum(index.lengths[first:end] + FRAME_BYTES)))

    size = int(index.lengths[first:end].sum()) + FRAME_BYTES * (end - first)
    return CachedBlock(index.ledger_id, first, end, size, edges)
