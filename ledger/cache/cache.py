"""The cache of a broker: the range caches of all its ledgers, over two pools of blocks, each with a limit of its own.

    memory   blocks that the cache holds: read from object storage, or copied from local files
    files    blocks of local files, mapped by whoever reads them: accounts of what the system's page cache holds

    fetch    what of a range is cached, and the rest from storage: each entry once, however many ask at the same time
    append   what was written just now, for those who follow closely
    ahead    what somebody is going to ask for

Invariants
- One lock over all; storage is read outside of it.
- An entry is cached once, in one of the pools. Each pool keeps to its limit (`block_pool`) by a policy of its own, all
  of one kind. Nobody is refused for want of room: what finds none is handed out and not kept.
- `size` is the memory that is taken. Accounts are not part of it.
- A read that fails fails for the one who made it; whoever waited for it reads its own range, once.
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
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange

GROWN_BYTES_MAX = 1024 * 1024


class EntryCache:
    """All of it. Any thread may call any method."""

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

    @property
    def limits(self) -> CacheLimits:
        return self.memory.limits

    @property
    def size(self) -> int:
        """Bytes of memory that are taken, by cached blocks and by evicted ones that somebody references still."""
        return self.memory.size

    @property
    def pools(self) -> tuple[BlockPool, BlockPool]:
        return self.memory, self.files

    def ledger(self, name: str) -> LedgerCache:
        """A ledger's part, made when it is first asked for."""
        with self._lock:
            found = self._ledgers.get(name)
            if found is None:
                found = self._ledgers[name] = LedgerCache(RangeCache(name, self._readers_of(name)))
            return found

    def ledgers(self) -> list[LedgerCache]:
        with self._lock:
            return list(self._ledgers.values())

    def fetch(self, name: str, reader: str, ledger_id: int, first: int, end: int, load: Load) -> list[BlockPart]:
        """Entries `[first, end)` in order, from the cache and, once for all who want them now, from storage."""
        ledger = self.ledger(name)
        with self._lock:
            hit = self._hit(ledger, ledger_id, first, end)
            claimed = [part for gap in hit.missing for part in ledger.pending.claim(ledger_id, *gap)]
            parts = [BlockPart(p.span.block, p.first, p.end, p.span.block.hold()) for p in hit.found]
        try:
            parts += self._read(ledger, reader, claimed, load)
        except LedgerError:
            if len(claimed) + len(hit.found) <= 1 and all(part.own for part in claimed):
                raise
            block = self._load(ledger, ledger_id, first, end, load)
            return [BlockPart(block, first, end, block.hold())]
        return sorted(parts, key=lambda part: part.first)

    def ahead(self, name: str, ledger_id: int, first: int, end: int, load: Load) -> int:
        """Read what of `[first, end)` is neither cached nor on its way, for who is going to ask; the bytes read."""
        ledger, read_bytes = self.ledger(name), 0
        with self._lock:
            gaps = ledger.cache.missing(ledger_id, first, end)
            claimed = [part for gap in gaps for part in ledger.pending.claim(ledger_id, *gap)]
        own = deque(part.read for part in claimed if part.own)
        with self._telling(ledger, own):
            while own:
                block = load(own[0].first, own[0].end)
                loaded = Loaded(block, block.hold())
                block.ahead = block.first
                read_bytes += block.size
                with self._lock:
                    ledger.counts.ahead_bytes += block.size
                    self._put(ledger, block)
                    self.let_go(block)
                    ledger.pending.settle(own[0])
                own.popleft().future.set_result(loaded)
        return read_bytes

    def append(self, name: str, block: CachedBlock) -> list[CachedRange]:
        """Cache what was appended just now, as a part of the block before it where that is small; the new spans."""
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
        with self._lock:
            ledger = self.ledger(name)
            before = ledger.cache.entries
            removed, parts = ledger.cache.invalidate(range_)
            for span, released in removed:
                self._pool(span.block).removed(span, released)
            for part in parts:
                self._pool(part.block).policy.added(part)
            ledger.counts.evicted += before - ledger.cache.entries

    def forget(self, ledger_ids: Collection[int]) -> None:
        for ledger in self.ledgers():
            for ledger_id in {span.ledger_id for span in ledger.cache} & set(ledger_ids):
                whole = PositionRange(Position(ledger_id, 0), Position(ledger_id + 1, 0))
                self.invalidate(ledger.cache.name, whole)

    def inherit(self, blocks: Iterable[CachedBlock]) -> None:
        """Blocks of a cache before this one, let go of, that readers have still."""
        with self._lock:
            for block in blocks:
                self._pool(block).lingering.add(block)

    def drop(self, name: str) -> None:
        """Remove a ledger that is gone, with its readers and counts."""
        with self._lock:
            ledger = self._ledgers.pop(name, None)
            if ledger is not None:
                for span in ledger.cache:
                    self._remove_from(ledger, span)

    def expire(self) -> None:
        """The time pass, then the check of the size; readers that were not heard of leave."""
        now = self._clock()
        with self._lock:
            for ledger in self._ledgers.values():
                ledger.readers.expire(now)
            for pool in self.pools:
                pool.expire()

    def change(self, policy_of: Callable[[CacheLimits], EvictionPolicy], limits: CacheLimits) -> None:
        """Go by another policy, or other limits, from now on; what is cached is handed over in the order of its age."""
        with self._lock:
            spans = [span for ledger in self._ledgers.values() for span in ledger.cache]
            self.memory.policy, self.files.policy = policy_of(limits), policy_of(limits.of_local_files())
            for span in sorted(spans, key=lambda span: span.timestamp_ms):
                self._pool(span.block).policy.added(span)
            for pool in self.pools:
                pool.evict_when_needed()

    @contextmanager
    def still(self) -> Iterator[None]:
        """Nothing changes within."""
        with self._lock:
            yield

    @contextmanager
    def moving(self, name: str) -> Iterator[LedgerReaders]:
        """The readers of a ledger, to be changed within; what nobody needs afterwards may go at once."""
        with self._lock:
            ledger = self.ledger(name)
            yield ledger.readers
            keeps = self.memory.policy.keeps_from(ledger.readers)
            if keeps is not None and ledger.cache:
                self.invalidate(name, PositionRange(EARLIEST, keeps))

    def in_hands(self) -> int:
        """Bytes of the memory that readers have, as far as it can be told: of what they mapped, cached or not."""
        with self._lock:
            self.memory.lingering.look()
            homes = {block.home: block.size for block in self._blocks() if block.home is not None}
            return self.memory.lingering.size + sum(size for home, size in homes.items() if home.in_hands())

    def _blocks(self) -> set[CachedBlock]:
        return {span.block for ledger in self._ledgers.values() for span in ledger.cache}

    def _pool(self, block: CachedBlock) -> BlockPool:
        return self.files if block.home is None else self.memory

    def _hit(self, ledger: LedgerCache, ledger_id: int, first: int, end: int) -> RangeHit:
        hit = ledger.cache.get(ledger_id, first, end)
        counts = ledger.counts
        for span, start, stop in hit.found:
            whole = start == span.first and stop == span.end
            _count(counts, span.block, start, stop, span.size if whole else span.block.cut(start, stop)[1])
            self._pool(span.block).policy.read(span)
        return hit

    def _read(self, ledger: LedgerCache, reader: str, claimed: list[ReadPart[Loaded]], load: Load) -> list[BlockPart]:
        """Do the own reads first, so that nobody waits for somebody who waits; tell whoever waits of a failure."""
        own = deque(part.read for part in claimed if part.own)
        parts = list[BlockPart]()
        with self._telling(ledger, own):
            while own:
                parts.append(self._read_own(ledger, reader, own[0], load))
                own.popleft()
        for part in claimed:
            if not part.own:
                block, held = part.read.future.result()
                with self._lock:
                    _count(ledger.counts, block, part.first, part.end, block.cut(part.first, part.end)[1])
                parts.append(BlockPart(block, part.first, part.end, held))
        return parts

    @contextmanager
    def _telling(self, ledger: LedgerCache, own: deque[PendingRead[Loaded]]) -> Iterator[None]:
        """Whoever waits for a read that is still in `own` is told of a failure within."""
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
        loaded = Loaded(block, block.hold())
        with self._lock:
            wanted = WantedRead(ledger.readers, reader, read.ledger_id, read.first, read.end)
            # What came from object storage costs more to read again than to keep where nobody needs the room.
            pool = self._pool(block)
            if pool.policy.admits(wanted) or (pool is self.memory and pool.has_spare(block.size)):
                self._put(ledger, block)
            self.let_go(block)
            ledger.pending.settle(read)
        read.future.set_result(loaded)
        return BlockPart(block, read.first, read.end, loaded.held)

    def let_go(self, block: CachedBlock) -> None:
        """A block that is not cached is in somebody's hands: its memory counts until they let go of it."""
        with self._lock:
            if block.home is not None and not block.spans:
                block.home.release()
                self.memory.lingering.add(block)

    def _load(self, ledger: LedgerCache, ledger_id: int, first: int, end: int, load: Load) -> CachedBlock:
        block = load(first, end)
        assert block.ledger_id == ledger_id  # noqa: S101 — the caller's own
        with self._lock:
            ledger.counts.read(end - first, block.size, offloaded=block.offloaded)
        return block

    def _may_grow(self, cache: RangeCache, tail: CachedRange, block: CachedBlock) -> bool:
        follows = tail.cache is not None and tail.ledger_id == block.ledger_id and tail.end == block.first
        most = min(GROWN_BYTES_MAX, self.files.limits.size // 16)
        fits = tail.block.size + block.size <= most and tail.block.end == tail.end
        if not (follows and fits and self.files.policy.grows and block.home is None and tail.block.home is None):
            return False
        # Somebody may have read it already, between its becoming readable and this.
        return not cache.overlapping(block.ledger_id, block.first, block.end)

    def _put(self, ledger: LedgerCache, block: CachedBlock) -> list[CachedRange]:
        pool = self._pool(block)
        if not pool.has_room_for(block):
            self.evictions.not_kept += 1
            return []
        spans = ledger.cache.put(block, self._clock())
        if not spans:
            return []
        ledger.counts.inserted += sum(span.entries for span in spans)
        pool.added(block, spans)
        return [span for span in spans if span.cache is not None]

    def _remove(self, span: CachedRange) -> int:
        cache = span.cache
        return 0 if cache is None else self._remove_from(self._ledgers[cache.name], span)

    def _remove_from(self, ledger: LedgerCache, span: CachedRange) -> int:
        """Let a span go; the bytes that are free because of it."""
        released = ledger.cache.remove(span)
        ledger.counts.evicted += span.entries
        return self._pool(span.block).removed(span, released)


def _count(counts: CacheCounts, block: CachedBlock, first: int, end: int, size: int) -> None:
    """Entries of a cached block are handed out; for the first who gets what was read ahead it is a read of storage."""
    entries, entry_bytes = block.given(first, end)
    counts.read(entries, entry_bytes, offloaded=block.offloaded)
    counts.served(end - first - entries, size - entry_bytes, in_memory=block.home is not None)
