"""CPU time for one entry in the cache (put, read once, evicted), over a plain LRU cache of a dictionary and a deque.

Entries of 1 KiB are requested in blocks of 256 KiB, as readers do. Ours is the broker's cache with its default policy,
all metrics and two registered readers, one of which reads. The base stores each entry by itself: a dictionary by
position, and a deque in the order of use. Both caches have 16 MiB, and 64 MiB of entries pass through them.
"""

from __future__ import annotations

import time
from collections import deque

import numpy as np

from benchmarks.harness import compare
from pyspark_ledger.ledger.cache.block import CachedBlock
from pyspark_ledger.ledger.cache.cache import EntryCache
from pyspark_ledger.ledger.cache.eviction.policy import CacheLimits
from pyspark_ledger.ledger.cache.eviction.registry import DEFAULT_POLICY, POLICIES
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.segment.index import Integers
from pyspark_ledger.ledger.settings.cache import EvictionSettings

ENTRY_BYTES = 1024
BATCH = 256
HELD = 16 * 1024
SEEN = 64 * 1024


def _edges(first: int, end: int) -> Integers:
    return np.arange(end - first + 1, dtype=np.int64) * ENTRY_BYTES


def _load(first: int, end: int) -> CachedBlock:
    return CachedBlock(0, first, end, (end - first) * ENTRY_BYTES, _edges)


def ours() -> float:
    """Return the CPU seconds for all entries through the cache."""
    cache = EntryCache(POLICIES[DEFAULT_POLICY], CacheLimits(0, HELD * ENTRY_BYTES, EvictionSettings()), lambda: 0)
    with cache.moving("log") as readers:
        readers.follow("a", Position(0, 0), 1)
        readers.follow("b", Position(0, 0), 1)
    began = time.process_time()
    for first in range(0, SEEN, BATCH):
        cache.append("log", _load(first, first + BATCH))
        cache.fetch("log", "a", 0, first, first + BATCH, _load)
        with cache.moving("log") as readers:
            readers.served("a", 0, first, first + BATCH)
            readers.commit("a", Position(0, first + BATCH))
    return time.process_time() - began


def base() -> float:
    """Return the CPU seconds for all entries through a plain LRU."""
    held: dict[tuple[int, int], bytes] = {}
    order: deque[tuple[int, int]] = deque()
    entry = bytes(ENTRY_BYTES)
    began = time.process_time()
    for first in range(0, SEEN, BATCH):
        keys = [(0, number) for number in range(first, first + BATCH)]
        for key in keys:
            held[key] = entry
            order.append(key)
        for key in keys:
            if key in held:
                held[key]
        while len(held) > HELD:
            del held[order.popleft()]
    return time.process_time() - began


def main() -> None:
    """Compare the times."""
    compare("cache_cpu", ours, base, 9, of_time=True)


if __name__ == "__main__":
    main()
