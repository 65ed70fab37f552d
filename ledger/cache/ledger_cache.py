"""Part of the cache for one managed ledger: cached ranges, counters, reads in flight.

A *hit* is an entry that was cached when a reader requested it. There are two kinds. A *memory hit* is in a block in
memory. A *page cache hit* is in a block of a local file that was read or written shortly before. So it is probably in
the system's page cache. A *miss* is an entry that was read from object storage or from a local file.

Rules of the counters
- Entries and bytes are counted for each ledger. The totals are the sums over the ledgers.
- Only the system knows whether a read of a local file comes from the disk or from the page cache.
- If several readers wait for the same entry, it counts as one miss, and as a hit for each other reader.
- Entries that a reader fetches from object storage by itself are misses. They also count in `direct`.
- Prefetched entries count in `ahead_bytes`. They also count as a miss for the first reader that gets them.
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
    """Counters of one ledger since the start of the broker."""

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
    direct: int = 0
    direct_bytes: int = 0
    ahead_bytes: int = 0
    waited_ms: int = 0

    @property
    def hits(self) -> int:
        """The number of entries that were cached when they were requested."""
        return self.memory_hits + self.page_cache_hits

    @property
    def hit_bytes(self) -> int:
        return self.memory_hit_bytes + self.page_cache_hit_bytes

    @property
    def misses(self) -> int:
        """The number of entries that were read from object storage or a local file."""
        return self.object_misses + self.file_misses

    @property
    def miss_bytes(self) -> int:
        return self.object_miss_bytes + self.file_miss_bytes

    def served(self, entries: int, size: int, *, in_memory: bool) -> None:
        """Count entries that were cached, in memory or in a local file."""
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
        """Add the counters of another ledger."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class EvictionCounts:
    """Counters of the evictions, and of the decisions of the policies.

    `passes` is the number of evictions by size, `nanoseconds` their duration. `not_kept` counts blocks that did not
    fit. `decisions` counts entries by the policy's name and its decision:

        admit      read from storage and cached, because another reader needs them
        spare      read from storage and cached, because memory is unused
        decline    read from storage and not cached
        size       evicted because memory was needed
        time       evicted because of their age
        unneeded   evicted because memory was needed, and no reader needs them
        replaced   evicted by the policy when other entries were cached
        no room    cached and evicted at once, because the policy evicts none of the other entries for them
    """

    passes: int = 0
    nanoseconds: int = 0
    not_kept: int = 0
    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)


Load = Callable[[int, int], CachedBlock]
"""Reads entries `[first, end)` of the requested segment from storage, as one block."""


class BlockPart(NamedTuple):
    """Entries `[first, end)` of a block.

    `held` is a reference to the block's bytes, None if they are in a segment file.
    """

    block: CachedBlock
    first: int
    end: int
    held: BlockReference | None


class Loaded(NamedTuple):
    """Block that was read. `held` keeps its bytes until the waiting readers have them, even if the block is evicted."""

    block: CachedBlock
    held: BlockReference | None


class LedgerCache:
    """Cache, counters and reads in flight of one ledger. The caller of every method holds the cache's lock."""

    def __init__(self, cache: RangeCache) -> None:
        self.cache = cache
        self.counts = CacheCounts()
        self.pending: PendingReads[Loaded] = PendingReads()
        self.tail: CachedRange | None = None

    @property
    def readers(self) -> LedgerReaders:
        return self.cache.readers
