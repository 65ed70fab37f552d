"""Cost of the cache with 10,000 ledgers, over its cost with 10 ledgers, and over a broker without touched ledgers.

- `time_pass`: each ledger has two readers, and ten ranges are due. Ours has 10,000 ledgers, the base 10.
- `size_pass`: the pool is full of 10,000 ranges that two readers expect. Ours has one range in each of 10,000 ledgers,
  the base has 1,000 in each of 10. Appends to all ledgers in turn cause the passes. Both passes are compared by their
  processor time.
- `append_p99`: the 99th percentile of durable appends of 1 KiB, one at a time. Both sides are brokers of stores with
  10,000 ledgers. Ours has a reader at each of them, the base has none.

Ratios are of times, and less is better. The result is the larger ratio of the two passes.

    CACHE_LEDGERS=10000     number of ledgers
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import numpy as np

from benchmarks.ack_latency import MESSAGE_BYTES
from benchmarks.append import entry_of
from benchmarks.growth import made
from benchmarks.harness import compare
from benchmarks.raw_disk import bench_dir
from benchmarks.recording_broker import connected
from pyspark_ledger.ledger.cache.block import CachedBlock
from pyspark_ledger.ledger.cache.block_pool import BlockPool
from pyspark_ledger.ledger.cache.cache import EntryCache
from pyspark_ledger.ledger.cache.eviction.policy import CacheLimits
from pyspark_ledger.ledger.cache.eviction.registry import DEFAULT_POLICY, POLICIES
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.protocol.cache import RegisterReader, RegisterReaders
from pyspark_ledger.ledger.segment.index import Integers
from pyspark_ledger.ledger.settings.cache import EvictionSettings

MANY, FEW = int(os.environ.get("CACHE_LEDGERS", "10000")), 10
RANGE_BYTES = 1024
_PASSES, _APPENDS = 20, 2_000
_BATCHES, _BATCH = 400, 10
_TTL_MS = 3_600_000


class Ledgers:
    """Cache with two readers at each of `number` ledgers, and room for `MANY` ranges. Its time is set by hand."""

    def __init__(self, number: int) -> None:
        self.names = [f"ledger-{place}" for place in range(number)]
        self.now_ms = 0
        limits = CacheLimits(0, MANY * RANGE_BYTES, EvictionSettings())
        self.cache = EntryCache(POLICIES[DEFAULT_POLICY], limits, lambda: self.now_ms)
        self.cache.files.evict_when_needed = self._timed_pass  # type: ignore[method-assign]
        self.seconds = 0.0
        self._entries = count(step=2)  # with gaps, so that no range grows
        for name in self.names:
            with self.cache.moving(name) as readers:
                for reader in "ab":
                    readers.follow(reader, Position(0, 0), _TTL_MS)

    def append(self, name: str) -> int:
        """Append an entry as a range of its own. Return its number."""
        entry = next(self._entries)
        self.cache.append(name, CachedBlock(0, entry, entry + 1, RANGE_BYTES, _edges))
        return entry

    def time_passes(self) -> float:
        """Return the processor time of some time passes. Each evicts ten ranges that all readers have read."""
        seconds = 0.0
        for _ in range(_PASSES):
            for name in self.names[:FEW]:
                entry = self.append(name)
                with self.cache.moving(name) as readers:
                    for reader in "ab":
                        readers.commit(reader, Position(0, entry + 1))
            self.now_ms += 1_001
            began = time.thread_time()
            self.cache.expire()
            seconds += time.thread_time() - began
        return seconds

    def fill(self) -> None:
        """Append to all ledgers in turn until the pool is full."""
        for place in range(MANY):
            self.append(self.names[place % len(self.names)])

    def size_passes(self) -> float:
        """Return the processor time of the size passes that some appends cause."""
        self.seconds = 0.0
        for place in range(_APPENDS):
            self.append(self.names[place % len(self.names)])
        return self.seconds

    def _timed_pass(self) -> bool:
        began = time.thread_time()
        try:
            return BlockPool.evict_when_needed(self.cache.files)
        finally:
            self.seconds += time.thread_time() - began


def _edges(first: int, end: int) -> Integers:
    return np.arange(end - first + 1, dtype=np.int64) * RANGE_BYTES


def passes() -> float:
    """Compare both passes, and return the larger ratio."""
    many, few = Ledgers(MANY), Ledgers(FEW)
    timed = compare("cache_ledgers_time_pass", many.time_passes, few.time_passes, of_time=True)
    many, few = Ledgers(MANY), Ledgers(FEW)
    many.fill()
    few.fill()
    sized = compare("cache_ledgers_size_pass", many.size_passes, few.size_passes, of_time=True)
    return max(timed.ratio, sized.ratio)


class Side:
    """Broker of a store with many ledgers."""

    def __init__(self, path: Path, running: ExitStack) -> None:
        command = [sys.executable, "-m", "pyspark_ledger.offload.broker", "--store", str(path), "--idle", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        running.callback(self._end)
        self.client = connected(path, self.process)
        self.producer = running.enter_context(self.client.producer("log"))

    def touch(self) -> None:
        """Register a reader at each ledger."""
        for first in range(0, MANY, 500):
            names = [canonical_name(f"ledger-{number}") for number in range(first, min(first + 500, MANY))]
            self.client.ask(RegisterReaders([RegisterReader(name, "a", EARLIEST, _TTL_MS) for name in names]))

    def append(self) -> float:
        """Append once, and return the seconds."""
        entry = entry_of(os.urandom(MESSAGE_BYTES), 0)
        began = time.perf_counter()
        self.producer.append(*entry).result()
        return time.perf_counter() - began

    def _end(self) -> None:
        self.process.terminate()
        self.process.wait()


def append_p99(folder: Path) -> None:
    """Compare the latency of appends, in short batches in turns, so that other load affects both sides."""
    paths = [made(folder / side, "ledgers", MANY) for side in ("ours", "base")]
    with ExitStack() as running:
        ours, base = (Side(path, running) for path in paths)
        began = time.perf_counter()
        ours.touch()
        print(f"\n{MANY:,} ledgers touched in {time.perf_counter() - began:.0f} s", flush=True)
        latencies: tuple[list[float], list[float]] = ([], [])
        for _ in range(_BATCHES):
            for side, took in zip((ours, base), latencies, strict=True):
                took += [side.append() for _ in range(_BATCH)]
    slow, base_slow = (statistics.quantiles(took[_BATCH:], n=100)[98] for took in latencies)
    print(f"  99th percentile {slow * 1000:.2f} ms, of the base {base_slow * 1000:.2f} ms")
    print(f"ratio cache_ledgers_append_p99 {slow / base_slow:.3f}", flush=True)


def main() -> None:
    """Compare passes and appends."""
    with tempfile.TemporaryDirectory(dir=bench_dir(), ignore_cleanup_errors=True) as folder:
        append_p99(Path(folder).resolve())
    print(f"ratio cache_ledgers {passes():.3f}")


if __name__ == "__main__":
    main()
