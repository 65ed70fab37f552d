"""Cache of a broker: the cached ranges of all its ledgers, in two pools of blocks. Each pool has its own limit.

    pool `memory`    blocks in memory: read from object storage, or copied from local files
    pool `files`     blocks of local files, which readers map. The cache only counts their bytes in the page cache.

    call `fetch`     returns a range, from the cache and from storage; concurrent readers share one read
    call `append`    caches new entries, for readers at the end of a log
    call `bypasses`  returns whether a reader may read a range from object storage by itself
    call `unused`    returns the memory that a reader may fill with ranges that only later readers need
    call `ahead`     reads entries before a reader requests them (prefetch)

Invariants
- One lock protects the whole cache. Storage is read without the lock.
- An entry is cached at most once, in one of the pools. Each pool keeps its limit (`block_pool`). Both pools use the
  same kind of eviction policy. A block that does not fit is served and not cached, so no read is refused.
- `size` is the memory in use. Blocks of local files do not count.
- If a read of storage fails, its reader gets the error. Another reader that waited for this read repeats it once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from pyspark_ledger.ledger.cache.block import CachedBlock
from pyspark_ledger.ledger.cache.block_pool import BlockPool
from pyspark_ledger.ledger.cache.eviction.policy import CacheLimits, EvictionPolicy, WantedRead
from pyspark_ledger.ledger.cache.expected_reads import LedgerReaders
from pyspark_ledger.ledger.cache.ledger_cache import BlockPart, CacheCounts, EvictionCounts, LedgerCache, Load, Loaded
from pyspark_ledger.ledger.cache.range_cache import CachedRange, RangeCache, RangeHit
from pyspark_ledger.ledger.cache.reads_in_flight import PendingRead, ReadPart, ReadPermits
from pyspark_ledger.ledger.clock import Clock, DueTimes, pause
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange

GROWN_BYTES_MAX = 1024 * 1024


class EntryCache:
    """Cache of all ledgers. Any thread may call any method."""

    def __init__(
        self,
        policy_of: Callable[[CacheLimits], EvictionPolicy],
        limits: CacheLimits,
        clock: Clock,
        readers_of: Callable[[str], LedgerReaders] = lambda _name: LedgerReaders(),
    ) -> None:
        self._readers_of = readers_of
        self.permits = ReadPermits()
        self.evictions = EvictionCounts()
        self.memory = BlockPool(policy_of(limits), clock, self.evictions, self._remove)
        self.files = BlockPool(policy_of(limits.of_local_files()), clock, self.evictions, self._remove)
        self._clock = clock
        self._lock = threading.RLock()
        self._ledgers: dict[str, LedgerCache] = {}
        self._with_ranges: dict[str, LedgerCache] = {}
        self._deadlines = DueTimes()

    @property
    def limits(self) -> CacheLimits:
        return self.memory.limits

    @property
    def size(self) -> int:
        """The bytes of memory in use, by cached blocks and by evicted blocks that are still referenced."""
        return self.memory.size

    @property
    def pools(self) -> tuple[BlockPool, BlockPool]:
        return self.memory, self.files

    def ledger(self, name: str) -> LedgerCache:
        """Return the cache of one ledger, and create it if necessary."""
        with self._lock:
            found = self._ledgers.get(name)
            if found is None:
                found = self._ledgers[name] = LedgerCache(RangeCache(name, self._readers_of(name)))
            return found

    def ledgers(self) -> list[LedgerCache]:
        with self._lock:
            return list(self._ledgers.values())

    def ledgers_with_ranges(self) -> list[LedgerCache]:
        with self._lock:
            return list(self._with_ranges.values())

    def decisions(self) -> dict[tuple[str, str], int]:
        """Return the number of entries by policy and decision. `EvictionCounts` explains the decisions."""
        with self._lock:
            return dict(self.evictions.decisions)

    def fetch(self, name: str, reader: str, ledger_id: int, first: int, end: int, load: Load) -> list[BlockPart]:
        """Return entries `[first, end)` in order. Entries that are not cached are read from storage.

        Concurrent readers of an entry share one read.
        """
        ledger = self.ledger(name)
        with self._lock:
            hit = self._hit(ledger, ledger_id, first, end)
            claimed = [part for gap in hit.missing for part in ledger.pending.claim(ledger_id, *gap)]
            parts = [BlockPart(p.span.block, p.first, p.end, p.span.block.acquire()) for p in hit.found]
        try:
            parts += self._read(ledger, reader, claimed, load)
        except LedgerError:
            if len(claimed) + len(hit.found) <= 1 and all(part.own for part in claimed):
                raise
            block = self._load(ledger, ledger_id, first, end, load)
            return [BlockPart(block, first, end, block.acquire())]
        return sorted(parts, key=lambda part: part.first)

    def bypasses(self, name: str, reader: str, ledger_id: int, first: int, end: int) -> bool:
        """Return whether a reader may read entries `[first, end)` from object storage without the cache.

        False if one of these entries is cached or being read, or if the policy would cache them for another reader.
        """
        with self._lock:
            ledger = self.ledger(name)
            if ledger.cache.missing(ledger_id, first, end) != [(first, end)]:
                return False
            if ledger.pending.overlaps(ledger_id, first, end):
                return False
            return not self.memory.policy.admits(WantedRead(ledger.readers, reader, ledger_id, first, end))

    def unused(self, name: str, reader: str) -> int:
        """Return the bytes of unused memory for ranges that no other reader needs yet.

        Reason: queries over one backlog are often started one after another, and the next query finds these ranges. No
        range is evicted for them. Returns 0 for a reader that is not registered, or if the policy does not keep such
        ranges.
        """
        with self._lock:
            keeps = self.memory.policy.keeps_read and reader in self.ledger(name).readers
            return self.memory.unused if keeps else 0

    def bypassed(self, name: str, entries: int, size: int) -> None:
        """Count entries that a reader reads from object storage without the cache."""
        with self._lock:
            counts = self.ledger(name).counts
            counts.read(entries, size, offloaded=True)
            counts.direct += entries
            counts.direct_bytes += size
            self.memory.decided("decline", entries)

    def ahead(self, name: str, ledger_id: int, first: int, end: int, load: Load) -> int:
        """Prefetch the entries of `[first, end)` that are neither cached nor being read. Return the bytes read."""
        ledger, read_bytes = self.ledger(name), 0
        with self._lock:
            gaps = ledger.cache.missing(ledger_id, first, end)
            claimed = [part for gap in gaps for part in ledger.pending.claim(ledger_id, *gap)]
        own = deque(part.read for part in claimed if part.own)
        with self._failing_waiters(ledger, own):
            while own:
                block = load(own[0].first, own[0].end)
                loaded = Loaded(block, block.acquire())
                block.ahead = block.first
                read_bytes += block.size
                with self._lock:
                    ledger.counts.ahead_bytes += block.size
                    self._put(ledger, block)
                    self.release_uncached(block)
                    ledger.pending.settle(own[0])
                own.popleft().future.set_result(loaded)
        return read_bytes

    def append(self, name: str, block: CachedBlock) -> list[CachedRange]:
        """Cache new entries of a log. If the previous block is small, extend that block. Return the new ranges."""
        with self._lock:
            ledger = self.ledger(name)
            tail = ledger.tail
            if tail is not None and self._may_grow(ledger.cache, tail, block):
                ledger.cache.grow(tail, block.end, block.size)
                ledger.counts.inserted += block.end - block.first
                self.files.grown(tail, block.size)
                return []
            spans = self._put(ledger, block)
            ledger.tail = spans[-1] if spans and spans[-1].cache is not None else None
            return spans

    def invalidate(self, name: str, range_: PositionRange) -> None:
        """Remove the entries of a range from the cache."""
        with self._lock:
            ledger = self.ledger(name)
            before = ledger.cache.entries
            removed, parts = ledger.cache.invalidate(range_)
            for span, released in removed:
                self._pool(span.block).removed(span, released)
            for part in parts:
                self._pool(part.block).policy.added(part)
            ledger.counts.evicted += before - ledger.cache.entries
            self._index_ranges(ledger)

    def forget(self, ledger_ids: Collection[int]) -> None:
        """Remove the entries of deleted segments (files of ledgers)."""
        with self._lock:
            for ledger in self.ledgers_with_ranges():
                for ledger_id in {span.ledger_id for span in ledger.cache} & set(ledger_ids):
                    whole = PositionRange(Position(ledger_id, 0), Position(ledger_id + 1, 0))
                    self.invalidate(ledger.cache.name, whole)

    def inherit(self, blocks: Iterable[CachedBlock]) -> None:
        """Add evicted blocks of an earlier broker that readers still reference."""
        with self._lock:
            for block in blocks:
                self._pool(block).pinned.add(block)

    def drop(self, name: str) -> None:
        """Remove a deleted ledger with its readers and counters."""
        with self._lock:
            ledger = self._ledgers.pop(name, None)
            if ledger is not None:
                for span in ledger.cache:
                    self._remove_from(ledger, span)

    def expire(self) -> None:
        """Remove readers that have not reported in time. Then evict ranges by age, and by size if necessary.

        The eviction runs in steps. The lock is free between two steps.
        """
        now = self._clock()
        with self._lock:
            for name in self._deadlines.take(now):
                ledger = self._ledgers.get(name)
                if ledger is not None:
                    ledger.readers.expire(now)
                    self._moved(ledger)
        for pool in self.pools:
            while self._expired(pool, now):
                pause(0)  # a thread that waits for the lock gets it between two steps

    def change(self, policy_of: Callable[[CacheLimits], EvictionPolicy], limits: CacheLimits) -> None:
        """Switch to another policy or other limits. The new policy gets the cached ranges in the order of their age."""
        with self._lock:
            spans = [span for ledger in self._with_ranges.values() for span in ledger.cache]
            self.memory.policy, self.files.policy = policy_of(limits), policy_of(limits.of_local_files())
            for span in sorted(spans, key=lambda span: span.timestamp_ms):
                self._pool(span.block).policy.added(span)
            for pool in self.pools:
                pool.evict_when_needed()

    @contextmanager
    def still(self) -> Iterator[None]:
        """Context in which the caller holds the cache's lock."""
        with self._lock:
            yield

    @contextmanager
    def moving(self, name: str) -> Iterator[LedgerReaders]:
        """Yield the readers of a ledger for a change.

        After the change, evict the entries that the policy does not keep.
        """
        with self._lock:
            ledger = self.ledger(name)
            try:
                yield ledger.readers
            finally:
                self._moved(ledger)
            keeps = self.memory.policy.keeps_from(ledger.readers)
            if keeps is not None and ledger.cache:
                self.invalidate(name, PositionRange(EARLIEST, keeps))

    def has_reader(self, name: str, reader: str) -> bool:
        with self._lock:
            ledger = self._ledgers.get(name)
            return ledger is not None and reader in ledger.readers

    def mapped_bytes(self) -> int:
        """Return the bytes of memory that readers have mapped, in cached and in evicted blocks."""
        with self._lock:
            self.memory.pinned.refresh()
            storages = {block.storage: block.size for block in self.memory.blocks if block.storage is not None}
            return self.memory.pinned.size + sum(size for storage, size in storages.items() if storage.is_referenced())

    def _moved(self, ledger: LedgerCache) -> None:
        """Record that the readers of a ledger have changed."""
        for pool in self.pools:
            pool.policy.changed(ledger.cache)
        due_ms = ledger.readers.due_ms
        if due_ms is not None:
            self._deadlines.put(ledger.cache.name, due_ms)

    def _expired(self, pool: BlockPool, now_ms: int) -> bool:
        """Make one step of a pool's evictions. Return whether another step may evict more."""
        with self._lock:
            return pool.expire(now_ms)

    def _index_ranges(self, ledger: LedgerCache) -> None:
        """Record whether a ledger has cached ranges."""
        if ledger.cache:
            self._with_ranges[ledger.cache.name] = ledger
        else:
            self._with_ranges.pop(ledger.cache.name, None)

    def _pool(self, block: CachedBlock) -> BlockPool:
        return self.files if block.storage is None else self.memory

    def _hit(self, ledger: LedgerCache, ledger_id: int, first: int, end: int) -> RangeHit:
        hit = ledger.cache.get(ledger_id, first, end)
        counts = ledger.counts
        for span, start, stop in hit.found:
            whole = start == span.first and stop == span.end
            _count(counts, span.block, start, stop, span.size if whole else span.block.cut(start, stop)[1])
            self._pool(span.block).policy.read(span)
        return hit

    def _read(self, ledger: LedgerCache, reader: str, claimed: list[ReadPart[Loaded]], load: Load) -> list[BlockPart]:
        """Perform this reader's own reads, then wait for the reads of other readers.

        Reason for the order: otherwise two readers could wait for each other.
        """
        own = deque(part.read for part in claimed if part.own)
        parts = list[BlockPart]()
        with self._failing_waiters(ledger, own):
            while own:
                parts.append(self._read_own(ledger, reader, own[0], load))
                own.popleft()
        for part in claimed:
            if not part.own:
                block, reference = part.read.future.result()
                with self._lock:
                    _count(ledger.counts, block, part.first, part.end, block.cut(part.first, part.end)[1])
                parts.append(BlockPart(block, part.first, part.end, reference))
        return parts

    @contextmanager
    def _failing_waiters(self, ledger: LedgerCache, own: deque[PendingRead[Loaded]]) -> Iterator[None]:
        """If the context raises, pass the error to the readers that wait for a read in `own`."""
        try:
            yield
        except BaseException as error:
            for read in own:
                with self._lock:
                    ledger.pending.settle(read)
                read.future.set_exception(error)
            raise

    def _read_own(self, ledger: LedgerCache, reader: str, read: PendingRead[Loaded], load: Load) -> BlockPart:
        block = self._load(ledger, read.ledger_id, read.first, read.end, load)
        loaded = Loaded(block, block.acquire())
        with self._lock:
            wanted = WantedRead(ledger.readers, reader, read.ledger_id, read.first, read.end)
            # A block that no other reader needs is cached only in unused memory. A later reader may need it.
            pool = self._pool(block)
            admitted = pool.policy.admits(wanted)
            spare = not admitted and pool is self.memory and pool.has_spare(block.size)
            pool.decided("admit" if admitted else "spare" if spare else "decline", block.end - block.first)
            if admitted or spare:
                self._put(ledger, block)
            self.release_uncached(block)
            ledger.pending.settle(read)
        read.future.set_result(loaded)
        return BlockPart(block, read.first, read.end, loaded.held)

    def release_uncached(self, block: CachedBlock) -> None:
        """Release a block that was not cached. Its memory counts until its last reference is released."""
        with self._lock:
            if block.storage is not None and not block.spans:
                block.storage.release()
                self.memory.pinned.add(block)

    def _load(self, ledger: LedgerCache, ledger_id: int, first: int, end: int, load: Load) -> CachedBlock:
        block = load(first, end)
        assert block.ledger_id == ledger_id  # noqa: S101 — `load` reads the requested segment
        with self._lock:
            ledger.counts.read(end - first, block.size, offloaded=block.offloaded)
        return block

    def _may_grow(self, cache: RangeCache, tail: CachedRange, block: CachedBlock) -> bool:
        """Return whether new entries can extend the ledger's last appended range."""
        follows = tail.cache is not None and tail.ledger_id == block.ledger_id and tail.end == block.first
        most = min(GROWN_BYTES_MAX, self.files.limits.size // 16)
        fits = tail.block.size + block.size <= most and tail.block.end == tail.end
        if not (follows and fits and self.files.policy.grows and block.storage is None and tail.block.storage is None):
            return False
        # A reader may have read and cached the new entries before this call.
        return not cache.overlapping(block.ledger_id, block.first, block.end)

    def _put(self, ledger: LedgerCache, block: CachedBlock) -> list[CachedRange]:
        """Cache the entries of a block that are not cached. Return the new ranges that were not evicted at once."""
        pool = self._pool(block)
        if not pool.has_room_for(block):
            self.evictions.not_kept += 1
            return []
        spans = ledger.cache.put(block, self._clock())
        if not spans:
            return []
        ledger.counts.inserted += sum(span.entries for span in spans)
        self._index_ranges(ledger)
        pool.added(block, spans)
        return [span for span in spans if span.cache is not None]

    def _remove(self, span: CachedRange) -> int:
        cache = span.cache
        return 0 if cache is None else self._remove_from(self._ledgers[cache.name], span)

    def _remove_from(self, ledger: LedgerCache, span: CachedRange) -> int:
        """Remove a range. Return the bytes that became free."""
        released = ledger.cache.remove(span)
        ledger.counts.evicted += span.entries
        self._index_ranges(ledger)
        return self._pool(span.block).removed(span, released)


def _count(counts: CacheCounts, block: CachedBlock, first: int, end: int, size: int) -> None:
    """Count served entries of a cached block. A prefetched entry counts as a miss when it is first served."""
    entries, entry_bytes = block.given(first, end)
    counts.read(entries, entry_bytes, offloaded=block.offloaded)
    counts.served(end - first - entries, size - entry_bytes, in_memory=block.storage is not None)
