"""What a cache counted: entries and bytes, per ledger; the totals are their sums.

A *hit* is an entry that was served from the cache, a *miss* one that was read from storage, a file or an object, for
whoever asked; an entry that several waited for is one miss and hits for the others. What was read ahead counts in
`ahead_bytes`, and as a miss for the first who gets it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CacheCounts:
    """Since the broker started."""

    hits: int = 0
    misses: int = 0
    hit_bytes: int = 0
    miss_bytes: int = 0
    inserted: int = 0
    evicted: int = 0
    mapped: int = 0
    mapped_bytes: int = 0
    ahead_bytes: int = 0
    waited_ms: int = 0

    def add(self, other: CacheCounts) -> None:
        """Count what another counted, too."""
        self.hits += other.hits
        self.misses += other.misses
        self.hit_bytes += other.hit_bytes
        self.miss_bytes += other.miss_bytes
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
    requeues: int = 0
    not_kept: int = 0
