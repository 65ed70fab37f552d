"""Set-up for tests of the cache: blocks with entries of one size, a clock that the test sets, a count of released
blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.cache.block import BlockReference, CachedBlock
from pyspark_ledger.ledger.cache.cache import EntryCache
from pyspark_ledger.ledger.cache.eviction.policy import CacheLimits, EvictionPolicy, Remove
from pyspark_ledger.ledger.cache.expected_reads import LedgerReaders
from pyspark_ledger.ledger.cache.range_cache import CachedRange, RangeCache
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.settings.cache import EvictionSettings


class HandClock:
    """Clock in milliseconds that only `pass_ms` moves."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def pass_ms(self, milliseconds: int) -> None:
        self.now_ms += milliseconds


def cache_limits(size: int, local_file_size: int | None = None, **settings: int) -> CacheLimits:
    """Return limits at which eviction stops as in Pulsar. Local files have the same limit by default."""
    eviction = EvictionSettings(**{"managedLedgerCacheEvictionWatermark": 90, **settings})  # type: ignore[arg-type]  # all values are numbers
    return CacheLimits(size, size if local_file_size is None else local_file_size, eviction)


def cache_of(policy_of: Callable[[CacheLimits], EvictionPolicy], limits: CacheLimits, clock: Clock) -> EntryCache:
    """Return a cache that does not limit the reads in flight."""
    return EntryCache(policy_of, limits, clock)


class CountedHome:
    """Storage that counts its releases."""

    def __init__(self) -> None:
        self.released = 0

    @property
    def frames(self) -> pa.Buffer:
        raise AssertionError("these tests read no bytes")

    def acquire(self) -> BlockReference:
        return self

    def is_pinned(self) -> bool:
        return False

    def is_referenced(self) -> bool:
        return False

    def release(self) -> None:
        self.released += 1


def block(
    first: int, end: int, *, size: int = 10, ledger_id: int = 1, storage: CountedHome | None = None
) -> CachedBlock:
    """Return a block of the entries `[first, end)` of `size` bytes each."""
    return CachedBlock(
        ledger_id,
        first,
        end,
        (end - first) * size,
        lambda first, end: np.arange(end - first + 1, dtype=np.int64) * size,
        storage,
    )


def insert(cache: EntryCache, name: str, cached: CachedBlock) -> list[CachedRange]:
    """Cache a block as a read of storage does. Return the ranges of the block that are still cached."""
    with cache.still():
        return cache._put(cache.ledger(name), cached)


def put_one(
    cache: RangeCache,
    entry: int,
    size: int,
    now_ms: int,
    *,
    expected: int = 0,
    accessed: bool = False,
) -> CachedRange:
    """Cache one entry of `size` bytes that `expected` readers will read. Return its cached range."""
    (span,) = cache.put(block(entry, entry + 1, size=size), now_ms)
    if expected:
        span.readers = LedgerReaders()
    for number in range(expected):
        span.readers.follow(f"reader {number}", EARLIEST, 2**62)
    span.accessed = accessed
    return span


def removing(spans: list[CachedRange], policy: EvictionPolicy | None = None) -> Remove:
    """Return a function that removes a range: it appends the range to `spans`, and informs the policy."""

    def remove(span: CachedRange) -> int:
        spans.append(span)
        freed = 0 if span.cache is None else span.cache.remove(span)
        if policy is not None:
            policy.removed(span)
        return freed

    return remove
