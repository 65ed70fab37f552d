"""What a cache counted: entries and bytes, per ledger; the totals are their sums.

A *hit* is an entry that was cached when it was asked for: *served from memory* where the cache holds its block, *served
by the page cache* where it accounts for a block of a local file that was read or written a short while before. A *miss*
is an entry that was read *from object storage* or *from a local file*, for whoever asked. Whether a local file is read
from the disk or the page cache has it, only the system knows. An entry that several waited for is one miss and hits for
the others. What was read ahead counts in `ahead_bytes`, and as a miss for the first who gets it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CacheCounts:
    """Since the broker started."""

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
        """Their bytes."""
        return self.memory_hit_bytes + self.page_cache_hit_bytes

    @property
    def misses(self) -> int:
        """Entries that were read from storage, a file or an object."""
        return self.object_misses + self.file_misses

    @property
    def miss_bytes(self) -> int:
        """Their bytes."""
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
        """Count what another counted, too."""
        self.memory_hits += other.memory_hits
        self.memory_hit_bytes += other.memory_hit_bytes
        self.page_cache_hits += other.page_cache_hits
        self.page_cache_hit_bytes += other.page_cache_hit_bytes
        self.object_misses += other.object_misses
        self.object_miss_bytes += other.object_miss_bytes
        self.file_misses += other.file_misses
        self.file_miss_bytes += other.file_miss_bytes
        self.inserted += other.inserted
        self.evicted += other.evicted
        self.mapped += other.mapped
        self.mapped_bytes += other.mapped_bytes
        self.ahead_bytes += other.ahead_bytes
        self.waited_ms += other.waited_ms


@dataclass(slots=True)
class EvictionCounts:
    """What evictions took. `passes` counts those by size; times are in nanoseconds."""

    passes: int = 0
    nanoseconds: int = 0
    not_kept: int = 0
