"""Pool of the cache: blocks of one kind, with a limit and an eviction policy of their own.

A cache has two pools. Blocks in memory take their bytes. Blocks of local files are accounts of the system's page cache,
and take no memory. Neither pool makes room for the other. All calls hold the lock of the whole cache.

Invariants
- `held` is the size of the blocks with a cached range. `size` adds evicted blocks that are still referenced; accounts
  have none of those.
- `size` is at most the limit after each call, except for blocks that find no room and are served all the same.
- Eviction starts above `trigger` of the limit and stops at `watermark`. Evicting a referenced block frees nothing, so a
  pass continues until enough is free, or nothing is cached. One pass runs at a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from pyspark_ledger.ledger.cache.block import CachedBlock
from pyspark_ledger.ledger.cache.block_storage import PinnedBlocks
from pyspark_ledger.ledger.cache.eviction.policy import CacheLimits, EvictionPolicy, Remove
from pyspark_ledger.ledger.cache.ledger_cache import EvictionCounts
from pyspark_ledger.ledger.cache.range_cache import CachedRange
from pyspark_ledger.ledger.clock import Clock


class BlockPool:
    """Blocks of one kind. `remove` removes a range from its range cache and notifies this pool."""

    def __init__(self, policy: EvictionPolicy, clock: Clock, evictions: EvictionCounts, remove: Remove) -> None:
        self.policy = policy
        self.held = 0
        self.pinned = PinnedBlocks()
        self._clock = clock
        self._evictions = evictions
        self._remove = remove
        self._remove_for_size, self._remove_for_age = self._removal("size"), self._removal("time")
        self._remove_unneeded, self._remove_replaced = self._removal("unneeded"), self._removal("replaced")
        self._remove_newest = self._removal("no room")

    @property
    def limits(self) -> CacheLimits:
        return self.policy.limits

    @property
    def size(self) -> int:
        """Bytes in use, by cached blocks and by evicted ones that are still referenced."""
        return self.held + self.pinned.size

    def has_room_for(self, block: CachedBlock) -> bool:
        """Return whether a block fits after evicting everything evictable."""
        if block.size > self.limits.size - self.pinned.size:
            self.pinned.refresh()
        return block.size <= self.limits.size - self.pinned.size

    def has_spare(self, size: int) -> bool:
        """Return whether there is unneeded room, after evicting blocks without expected reads."""
        room = self.limits.trigger - size
        if self._exceeds(room):
            self.policy.free_unneeded(int(self.size - room) + 1, self._remove_unneeded)
        return self.size <= room

    def added(self, block: CachedBlock, spans: Sequence[CachedRange]) -> None:
        """Make room for a block that was cached as these ranges, or evict it if there is none."""
        self.held += block.size
        for span in spans:
            self.policy.added(span)
        self.make_room(spans)

    def grown(self, span: CachedRange, size: int) -> None:
        """Make room after a range and its block grew by this many bytes."""
        self.held += size
        self.make_room([span])

    def removed(self, span: CachedRange, released: int) -> int:
        """Account for a removed range and `released` bytes of its block. Return the bytes that became free."""
        self.held -= released
        self.policy.removed(span)
        return released - self.pinned.add(span.block) if released else 0

    def make_room(self, newest: Sequence[CachedRange]) -> None:
        """Evict down to the limit; the newest themselves if the policy keeps everything else."""
        self.evict_when_needed()
        if self.size > self.limits.size:
            self._evictions.not_kept += 1
            for span in newest:
                self._remove_newest(span)

    def expire(self) -> None:
        """Run the time pass, then the check of the size."""
        self.pinned.refresh()
        self.policy.expire(self._clock(), self._remove_for_age)
        self.evict_when_needed()

    def evict_when_needed(self) -> None:
        """Run the size pass if more than `trigger` is in use."""
        while self.policy.due:
            self._remove_replaced(self.policy.due.pop())
        limits = self.limits
        if not self._exceeds(limits.trigger):
            return
        began, now_ms = time.perf_counter_ns(), self._clock()
        while self.held and self.size > limits.watermark:
            wanted = max(int(self.size - limits.watermark), 1)
            if self.policy.free(wanted, now_ms, self._remove_for_size) <= 0:
                break
        self._evictions.passes += 1
        self._evictions.nanoseconds += time.perf_counter_ns() - began

    def decided(self, decision: str, entries: int) -> None:
        """Count a decision of the policy: see `EvictionCounts`."""
        self._evictions.decisions[self.policy.settings.cacheEvictionPolicy, decision] += entries

    def _removal(self, decision: str) -> Remove:
        """Return a function that removes a range, and counts its entries under a decision."""

        def remove(span: CachedRange) -> int:
            if span.cache is not None:
                self.decided(decision, span.entries)
            return self._remove(span)

        return remove

    def _exceeds(self, size: float) -> bool:
        """Return whether memory in use exceeds `size`. References to evicted blocks are re-counted only if the answer
        depends on them.
        """
        if self.size > size:
            self.pinned.refresh()
        return self.size > size
