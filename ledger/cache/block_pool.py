"""Pool of the cache: blocks of one kind, with their own limit and eviction policy.

A cache has two pools. Blocks in memory use memory of the broker. Blocks of local files use none: the cache only counts
the bytes that they probably have in the system's page cache. Each pool evicts only its own blocks. The caller of every
method holds the cache's lock.

Invariants
- `held` is the size of the blocks with a cached range. `size` also includes evicted blocks that readers still
  reference. Only blocks in memory can be referenced.
- After each call, `size` is at most the limit. Exception: a block that does not fit is served to its reader, and its
  memory counts until the reader releases it.
- Eviction starts when more than `trigger` bytes are in use, and stops at `watermark` bytes. It runs in steps. A call
  that adds a block makes one step, and the cache's thread makes the other steps. A step evicts at most `STEP_RANGES`
  ranges. Exception: a step continues until the limit is met.
- The eviction of a referenced block frees no memory. So an eviction continues until enough memory is free or no range
  is cached. Only one eviction runs at a time.
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

STEP_RANGES = 32


class BlockPool:
    """Pool of blocks of one kind. `remove` removes a range from the cache of its ledger, and then calls `removed`."""

    def __init__(self, policy: EvictionPolicy, clock: Clock, evictions: EvictionCounts, remove: Remove) -> None:
        self.policy = policy
        self.held = 0
        self.blocks: dict[CachedBlock, None] = {}
        """The blocks with a cached range."""
        self.pinned = PinnedBlocks()
        self._evicting = False
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
        """The bytes in use, by cached blocks and by evicted blocks that readers still reference."""
        return self.held + self.pinned.size

    @property
    def unused(self) -> int:
        """The bytes that can be added before the eviction by size starts."""
        self.pinned.refresh()
        return max(int(self.limits.trigger) - self.size, 0)

    def has_room_for(self, block: CachedBlock) -> bool:
        """Return whether a block would fit if all cached ranges were evicted."""
        if block.size > self.limits.size - self.pinned.size:
            self.pinned.refresh()
        return block.size <= self.limits.size - self.pinned.size

    def has_spare(self, size: int) -> bool:
        """Evict ranges that no reader needs, and return whether `size` bytes then fit without further eviction."""
        room = self.limits.trigger - size
        if self._exceeds(room):
            self.policy.free_unneeded(int(self.size - room) + 1, self._remove_unneeded)
        return self.size <= room

    def added(self, block: CachedBlock, spans: Sequence[CachedRange]) -> None:
        """Add a block that was cached as these ranges.

        Evict other ranges to make room. If the policy keeps them, evict the ranges of this block.
        """
        self.held += block.size
        self.blocks[block] = None
        for span in spans:
            self.policy.added(span)
        self.make_room(spans)

    def grown(self, span: CachedRange, size: int) -> None:
        """Add `size` bytes by which a range and its block have grown. Evict ranges to make room."""
        self.held += size
        if span.cache is not None:
            self.policy.changed(span.cache)
        self.make_room([span])

    def removed(self, span: CachedRange, released: int) -> int:
        """Subtract a removed range. `released` is the size of its block if the block has no other range, otherwise 0.

        Return the bytes that became free.
        """
        self.held -= released
        if not span.block.spans:
            self.blocks.pop(span.block, None)
        self.policy.removed(span)
        return released - self.pinned.add(span.block) if released else 0

    def make_room(self, newest: Sequence[CachedRange]) -> None:
        """Evict ranges until the limit is met. If the policy keeps all other ranges, evict the `newest` ranges."""
        self.evict_when_needed()
        if self.size > self.limits.size:
            self._evictions.not_kept += 1
            for span in newest:
                self._remove_newest(span)

    def expire(self, now_ms: int) -> bool:
        """Evict ranges by age, then by size if necessary. Return whether another step may evict more."""
        self.pinned.refresh()
        old = self.policy.expire(now_ms, self._remove_for_age, STEP_RANGES)
        return self.evict_when_needed() or old

    def evict_when_needed(self) -> bool:
        """Make a step of an eviction by size, if one runs or must start. Return whether another step may free more."""
        while self.policy.due:
            self._remove_replaced(self.policy.due.pop())
        limits, freed = self.limits, 0
        if not self._exceeds(limits.watermark if self._evicting else limits.trigger):
            self._evicting = False
            return False
        began, now_ms = time.perf_counter_ns(), self._clock()
        while self.held:
            wanted, needed = max(int(self.size - limits.watermark), 1), self.size - limits.size
            freed = self.policy.free(wanted, now_ms, self._remove_for_size, STEP_RANGES, needed)
            if freed <= 0 or self.size <= limits.size:
                break
        self._evicting = self.size > limits.watermark
        self._evictions.passes += 1
        self._evictions.nanoseconds += time.perf_counter_ns() - began
        return self._evicting and freed > 0

    def decided(self, decision: str, entries: int) -> None:
        """Count a decision of the policy. `EvictionCounts` explains the decisions."""
        self._evictions.decisions[self.policy.settings.cacheEvictionPolicy, decision] += entries

    def _removal(self, decision: str) -> Remove:
        """Return a function that removes a range, and counts its entries for a decision."""

        def remove(span: CachedRange) -> int:
            if span.cache is not None:
                self.decided(decision, span.entries)
            return self._remove(span)

        return remove

    def _exceeds(self, size: float) -> bool:
        """Return whether memory in use exceeds `size`. Counts the references to evicted blocks again if necessary."""
        if self.size > size:
            self.pinned.refresh()
        return self.size > size
