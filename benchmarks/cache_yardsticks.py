"""Caches that know nothing of readers, and the one that knows the future, over blocks of one size.

`S3Fifo` and `Sieve` are the published algorithms in their plain form. `optimum` is Belady's: what is needed last, or
never, goes first, and what is needed later than everything there is not put at all. It sees the order of the
requests as they came; no cache can do with fewer reads.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from typing import Protocol

from benchmarks.cache_traces import Trace

Key = tuple[int, int]
_NEVER = 2**62


class Yardstick(Protocol):
    """A cache of so many blocks."""

    def __contains__(self, key: Key) -> bool: ...

    def touch(self, key: Key) -> None:
        """It was there and is read."""
        ...

    def put(self, key: Key) -> None:
        """It was not there, and was read or written."""
        ...

    def clear(self, ledger: int) -> None:
        """Forget a ledger."""
        ...


class S3Fifo:
    """A small queue for what is new, a main queue, and a ghost of what left the small one unread."""

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
        """Counted up to 3."""
        self._reads[key] = min(self._reads[key] + 1, 3)

    def put(self, key: Key) -> None:
        """To the main queue when the ghost knows it."""
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
    """One queue in the order of coming, and a hand that goes from the oldest on and spares what was read."""

    def __init__(self, blocks: int) -> None:
        self._max = blocks
        self._visited: dict[Key, bool] = {}
        self._order: list[Key] = []  # oldest first
        self._hand = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._visited

    def touch(self, key: Key) -> None:
        """Spared once."""
        self._visited[key] = True

    def put(self, key: Key) -> None:
        """The youngest."""
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
    """How many blocks are read from storage."""
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
    """The least number of blocks that any cache of that size reads."""
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
    """For each step, when its block is read next, unless it is cleared before."""
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
