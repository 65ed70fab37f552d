"""The part of the cache that belongs to one managed ledger: cached ranges, counters, reads in flight.

A *hit* is an entry that was cached when it was asked for. It is *served from memory* if the cache holds its block. It
is *served by the page cache* if the cache accounts for a block of a local file that was read or written shortly before.
A *miss* is an entry that was read *from object storage* or *from a local file*.

Rules of the counters
- Entries and bytes are counted per ledger. The totals are the sums over the ledgers.
- Only the system knows whether a local file is read from the disk or the page cache.
- An entry that several readers waited for is one miss, and hits for the others.
- Prefetched entries count in `ahead_bytes`, and as a miss for the first reader that gets them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark_ledger.ledger.cache.block import BlockReference, CachedBlock
from pyspark_ledger.ledger.cache.expected_reads import LedgerReaders
from pyspark_ledger.ledger.cache.range_cache import CachedRange, RangeCache
from pyspark_ledger.ledger.cache.reads_in_flight import PendingReads


@dataclass(slots=True)
class CacheCounts:
    """Counters since the broker started."""

    memory_hits: int = 0
    memory_hit_bytes: int = 0
    page_cache_hits: int = 0
    page_cache_hit_bytes: int = 0
    object_misses: int = 0
    object_miss_bytes: int = 0
    file_misses: int = 0
    file_miss_bytes: int = 0
    inserted: int = 0
    evicted: int = 0
    mapped: int = 0
    mapped_bytes: int = 0
    ahead_bytes: int = 0
    waited_ms: int = 0

    @property
    def hits(self) -> int:
        """Entries that were cached."""
        return self.memory_hits + self.page_cache_hits

    @property
    def hit_bytes(self) -> int:
        return self.memory_hit_bytes + self.page_cache_hit_bytes

    @property
    def misses(self) -> int:
        """Entries that were read from storage, a file or an object."""
        return self.object_misses + self.file_misses

    @property
    def miss_bytes(self) -> int:
        return self.object_miss_bytes + self.file_miss_bytes

    def served(self, entries: int, size: int, *, in_memory: bool) -> None:
        """Count entries that were cached, in memory or as the account of a local file."""
        if in_memory:
            self.memory_hits += entries
            self.memory_hit_bytes += size
        else:
            self.page_cache_hits += entries
            self.page_cache_hit_bytes += size

    def read(self, entries: int, size: int, *, offloaded: bool) -> None:
        """Count entries that were read from object storage or from a local file."""
        if offloaded:
            self.object_misses += entries
            self.object_miss_bytes += size
        else:
            self.file_misses += entries
            self.file_miss_bytes += size

    def add(self, other: CacheCounts) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class EvictionCounts:
    """Cost of evictions, and the decisions of the policies. `passes` counts size passes; times are in nanoseconds.

    `decisions` counts entries by the policy's name and its decision:

        admit      read from storage and cached, because another reader needs them
        spare      read from storage and cached, because there is unneeded room
        decline    read from storage and not cached
        size       evicted for their room
        time       evicted for their age
        unneeded   evicted for their room, because no reader needs them
        replaced   evicted by the policy when other entries were cached
        no room    cached, and evicted at once, because the policy keeps all others
    """

    passes: int = 0
    nanoseconds: int = 0
    not_kept: int = 0
    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)


Load = Callable[[int, int], CachedBlock]
"""Reads entries `[first, end)` of the ledger in question from storage, as one block."""


class BlockPart(NamedTuple):
    """Entries `[first, end)` of a block, with a reference to its bytes if they are not in the segment file."""

    block: CachedBlock
    first: int
    end: int
    held: BlockReference | None


class Loaded(NamedTuple):
    """Block that was read, referenced for its waiting readers: it may be evicted before they use it."""

    block: CachedBlock
    held: BlockReference | None


class LedgerCache:
    """Cache, counters and reads in flight of one ledger. Used with the lock of the whole cache held."""

    def __init__(self, cache: RangeCache) -> None:
        self.cache = cache
        self.counts = CacheCounts()
        self.pending: PendingReads[Loaded] = PendingReads()
        self.tail: CachedRange | None = None

    @property
    def readers(self) -> LedgerReaders:
        return self.cache.readers
