"""Reference caches: a policy of the broker's cache, two caches over blocks of one size, and the optimum.

`LruPolicy` evicts the least recently read range first. `S3Fifo` and `Sieve` are the published algorithms in their plain
form. `optimum` is Belady's algorithm, which knows all future requests. It evicts the block that is needed last or
never. It does not cache a block that is needed later than all cached blocks. No cache of the same size needs fewer
reads.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from typing import Protocol

from benchmarks.cache_traces import Trace
from pyspark_ledger.ledger.cache.eviction.policy import (
    UNLIMITED,
    CacheLimits,
    EvictionPolicy,
    Remove,
    WantedRead,
    require_positive,
)
from pyspark_ledger.ledger.cache.range_cache import CachedRange

Key = tuple[int, int]
_NEVER = 2**62


class Yardstick(Protocol):
    """Cache of a fixed number of blocks."""

    def __contains__(self, key: Key) -> bool: ...

    def touch(self, key: Key) -> None:
        """Record a read of a cached block."""
        ...

    def put(self, key: Key) -> None:
        """Insert a block that was read from storage or written."""
        ...

    def clear(self, ledger: int) -> None:
        """Forget a ledger."""
        ...


class S3Fifo:
    """Cache with a small queue of new blocks, a main queue, and a ghost queue of blocks that were evicted unread."""

    def __init__(self, blocks: int) -> None:
        self._small_max = max(blocks // 10, 1)
        self._main_max = max(blocks - self._small_max, 1)
        self._small: deque[Key] = deque()
        self._main: deque[Key] = deque()
        self._ghost: OrderedDict[Key, None] = OrderedDict()
        self._reads: dict[Key, int] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._reads

    def touch(self, key: Key) -> None:
        """Count a read, up to 3."""
        self._reads[key] = min(self._reads[key] + 1, 3)

    def put(self, key: Key) -> None:
        """Insert a block into the small queue, or into the main queue if the ghost queue has it."""
        if key in self._ghost:
            del self._ghost[key]
            self._main.append(key)
        else:
            self._small.append(key)
        self._reads[key] = 0
        while len(self._small) > self._small_max:
            self._leave_small()
        while len(self._main) > self._main_max:
            self._leave_main()

    def clear(self, ledger: int) -> None:
        """Forget a ledger."""
        self._small = deque(key for key in self._small if key[0] != ledger)
        self._main = deque(key for key in self._main if key[0] != ledger)
        self._reads = {key: reads for key, reads in self._reads.items() if key[0] != ledger}

    def _leave_small(self) -> None:
        key = self._small.popleft()
        if self._reads[key] > 1:
            self._reads[key] = 0
            self._main.append(key)
            return
        del self._reads[key]
        self._ghost[key] = None
        if len(self._ghost) > self._main_max:
            self._ghost.popitem(last=False)

    def _leave_main(self) -> None:
        key = self._main.popleft()
        if self._reads[key]:
            self._reads[key] -= 1
            self._main.append(key)
        else:
            del self._reads[key]


class Sieve:
    """Cache with one queue in the order of insertion. A hand moves from the oldest block and spares read blocks."""

    def __init__(self, blocks: int) -> None:
        self._max = blocks
        self._visited: dict[Key, bool] = {}
        self._order: list[Key] = []  # oldest first
        self._hand = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._visited

    def touch(self, key: Key) -> None:
        """Mark the block: the hand spares it once."""
        self._visited[key] = True

    def put(self, key: Key) -> None:
        """Insert a block as the youngest."""
        if len(self._order) >= self._max:
            self._evict()
        self._order.append(key)
        self._visited[key] = False

    def clear(self, ledger: int) -> None:
        """Forget a ledger."""
        self._order = [key for key in self._order if key[0] != ledger]
        self._visited = {key: seen for key, seen in self._visited.items() if key[0] != ledger}
        self._hand = 0

    def _evict(self) -> None:
        while True:
            if self._hand >= len(self._order):
                self._hand = 0
            key = self._order[self._hand]
            if not self._visited[key]:
                del self._order[self._hand], self._visited[key]
                return
            self._visited[key] = False
            self._hand += 1


def reads_of(cache: Yardstick, trace: Trace) -> int:
    """Return the number of blocks that are read from storage."""
    misses = 0
    for step in trace.steps:
        key = (step.ledger, step.block)
        if step.kind == "clear":
            cache.clear(step.ledger)
        elif step.kind == "append" and key not in cache:
            cache.put(key)
        elif step.kind == "read":
            if key in cache:
                cache.touch(key)
            else:
                misses += 1
                cache.put(key)
    return misses


def optimum(trace: Trace) -> int:
    """Return the minimum number of blocks that any cache of that size reads."""
    needed = _needed(trace)
    held: dict[Key, int] = {}
    farthest: list[tuple[int, Key]] = []
    misses = 0
    for number, step in enumerate(trace.steps):
        key = (step.ledger, step.block)
        if step.kind == "clear":
            held = {key: at for key, at in held.items() if key[0] != step.ledger}
        if step.kind not in ("append", "read"):
            continue
        misses += step.kind == "read" and key not in held
        held[key] = needed[number]
        heapq.heappush(farthest, (-needed[number], key))
        while len(held) > trace.cache_blocks:
            at, last = heapq.heappop(farthest)
            if held.get(last) == -at:
                del held[last]
    return misses


def _needed(trace: Trace) -> list[int]:
    """Return for each step when its block is read next, unless the block is cleared before."""
    following: dict[Key, int] = {}
    needed = [_NEVER] * len(trace.steps)
    for number in range(len(trace.steps) - 1, -1, -1):
        step = trace.steps[number]
        key = (step.ledger, step.block)
        if step.kind == "clear":
            following = {key: at for key, at in following.items() if key[0] != step.ledger}
        elif step.kind in ("append", "read"):
            needed[number] = following.get(key, _NEVER)
            if step.kind == "read":
                following[key] = number
    return needed


class LruPolicy(EvictionPolicy):
    """Policy that evicts the least recently read range first, without a maximum age."""

    def __init__(self, limits: CacheLimits) -> None:
        super().__init__(limits)
        self._order: OrderedDict[CachedRange, None] = OrderedDict()

    def admits(self, _wanted: WantedRead) -> bool:
        return True

    def added(self, span: CachedRange) -> None:
        self._order[span] = None

    def read(self, span: CachedRange) -> None:
        self._order.move_to_end(span)

    def removed(self, span: CachedRange) -> None:
        self._order.pop(span, None)

    def free(self, size: int, _now_ms: int, remove: Remove, most: int = UNLIMITED, at_least: int = 0) -> int:
        """Evict ranges, the least recently read first, until enough is free."""
        require_positive(size)
        freed = evicted = 0
        while self._order and (freed < at_least or (freed < size and evicted < most)):
            freed += remove(self._order.popitem(last=False)[0])
            evicted += 1
        return freed
