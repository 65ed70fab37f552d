"""One part of the cache: blocks of one kind, a limit of their own, and a policy that decides which of their spans go.

A cache has two. Blocks in memory take the bytes that they hold. Blocks of local files are accounts of what the system's
page cache holds, and take no memory. Neither part makes room for the other. Under the lock of the whole cache.

Invariants
- `held` is the size of the blocks of which anything is cached. `size` adds the blocks that were evicted and that
  somebody references still; accounts have none of those.
- `size` is at most the limit after each call, but for what finds no room and is handed out all the same.
- Eviction begins above `trigger` of the limit and goes down to `watermark`. Evicting what a reader references frees
  nothing, so a pass goes on until enough is free, or nothing is cached. One pass runs at a time.
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
    """Blocks of one kind. `remove` removes a span from its range cache and tells this pool so."""

    def __init__(self, policy: EvictionPolicy, clock: Clock, evictions: EvictionCounts, remove: Remove) -> None:
        self.policy = policy
        self.held = 0
        self.lingering = PinnedBlocks()
        self._clock = clock
        self._evictions = evictions
        self._remove = remove

    @property
    def limits(self) -> CacheLimits:
        return self.policy.limits

    @property
    def size(self) -> int:
        """Bytes that are taken, by cached blocks and by evicted ones that somebody references still."""
        return self.held + self.lingering.size

    def has_room_for(self, block: CachedBlock) -> bool:
        """Whether a block fits when everything that can go has gone."""
        if block.size > self.limits.size - self.lingering.size:
            self.lingering.look()
        return block.size <= self.limits.size - self.lingering.size

    def has_spare(self, size: int) -> bool:
        """Whether there is room that nobody needs, made if need be by evicting what nobody needs."""
        room = self.limits.trigger - size
        if self._exceeds(room):
            self.policy.free_unneeded(int(self.size - room) + 1, self._remove)
        return self.size <= room

    def added(self, block: CachedBlock, spans: Sequence[CachedRange]) -> None:
        """A block was cached as these spans: make room for it, or evict it where there is none."""
        self.held += block.size
        for span in spans:
            self.policy.added(span)
        self.make_room(spans)

    def grown(self, span: CachedRange, size: int) -> None:
        """A span and its block grew by so many bytes: make room for them."""
        self.held += size
        self.make_room([span])

    def removed(self, span: CachedRange, released: int) -> int:
        """A span was removed, and with it `released` bytes of its block; the bytes that are free because of it."""
        self.held -= released
        self.policy.removed(span)
        return released - self.lingering.add(span.block) if released else 0

    def make_room(self, newest: Sequence[CachedRange]) -> None:
        """Evict down to the limit; the newest themselves where the policy keeps everything else."""
        self.evict_when_needed()
        if self.size > self.limits.size:
            self._evictions.not_kept += 1
            for span in newest:
                self._remove(span)

    def expire(self) -> None:
        """The time pass, then the check of the size."""
        self.lingering.look()
        self.policy.expire(self._clock(), self._remove)
        self.evict_when_needed()

    def evict_when_needed(self) -> None:
        """The size pass, where more than `trigger` is taken."""
        while self.policy.due:
            self._remove(self.policy.due.pop())
        limits = self.limits
        if not self._exceeds(limits.trigger):
            return
        began, now_ms = time.perf_counter_ns(), self._clock()
        while self.held and self.size > limits.watermark:
            wanted = max(int(self.size - limits.watermark), 1)
            if self.policy.free(wanted, now_ms, self._remove) <= 0:
                break
        self._evictions.passes += 1
        self._evictions.nanoseconds += time.perf_counter_ns() - began

    def _exceeds(self, size: float) -> bool:
        """Whether more is taken. Who references what was evicted is asked only where it matters."""
        if self.size > size:
            self.lingering.look()
        return self.size > size
