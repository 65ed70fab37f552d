"""Settings of the broker's cache: sizes, eviction, prefetch, and unfinished reads.

A *reader* is a subscription, or a query without a subscription. The *expected reads* of a cached block are the readers
that will read the block later. docs/cache.md explains the eviction policies.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.settings.setting import AT_ONCE, INT_MAX, switch, text, whole

CACHE_POLICIES = ("cursor-distance", "expected-reads", "expected-reads-stash", "slowest-reader", "segmented")


@dataclass(frozen=True)
class EvictionSettings:
    """The cache: sizes and eviction."""

    managedLedgerCacheSizeMB: int = whole(
        64,
        "MiB",
        0,
        1024 * 1024,
        "Limit of the cache's memory, for blocks from object storage, and with managedLedgerCacheCopyEntries also of "
        "local files. 0: nothing is cached.",
        AT_ONCE,
        user="operators of a host with little or much memory",
    )
    managedLedgerCacheLocalFilesSizeMB: int = whole(
        256,
        "MiB",
        0,
        1024 * 1024,
        "Limit of the bytes of local files that count as cached, because the page cache probably has them. Each block "
        "takes about a kilobyte of the broker's memory. 0: each read of a local file counts as a read of storage.",
        AT_ONCE,
        user="operators of a host with a large page cache",
    )
    cacheEvictionPolicy: str = text(
        "one of " + ", ".join(CACHE_POLICIES),
        "Policy that selects the blocks to evict from a full cache: docs/cache.md. Pulsar has `slowest-reader` "
        "(cacheEvictionByExpectedReadCount=false) and `expected-reads` (true).",
        AT_ONCE,
        default="cursor-distance",
        choices=CACHE_POLICIES,
        user="operators who compare policies, or keep Pulsar's",
    )
    managedLedgerCacheEvictionWatermark: int = whole(
        95,
        "percent",
        1,
        100,
        "Eviction starts above 99 percent, and stops when the cache is filled to this part. Pulsar's default is 90.",
        AT_ONCE,
        user="operators who keep Pulsar's value",
    )
    managedLedgerCacheEvictionTimeThresholdMillis: int = whole(
        1_000,
        "milliseconds",
        0,
        INT_MAX,
        "Age at which a block is evicted even if the cache is not full. `cursor-distance` then evicts only blocks "
        "that every reader has read.",
        AT_ONCE,
        user="operators of readers that lag by more than a second",
    )
    managedLedgerCacheEvictionExtendTTLOfEntriesWithRemainingExpectedReadsMaxTimes: int = whole(
        5,
        "times",
        0,
        INT_MAX,
        "With `expected-reads`: how many times a block with expected reads is kept at the age "
        "managedLedgerCacheEvictionTimeThresholdMillis.",
        AT_ONCE,
        user="users of `expected-reads` with slow readers",
    )
    managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed: int = switch(
        0,
        "1: a block that was read since the last check is kept longer, with `expected-reads` and `slowest-reader`. "
        "PIP-430 and Pulsar 4 have 1, Pulsar 5 has 0.",
        AT_ONCE,
        user="users of Pulsar's policies whose readers repeat reads",
    )
    cacheEvictionByMarkDeletedPosition: int = switch(
        0,
        "1: the policy `slowest-reader` keeps read blocks until they are acknowledged.",
        AT_ONCE,
        user="users of `slowest-reader` whose readers repeat reads",
    )


@dataclass(frozen=True)
class CacheSettings:
    """The cache: copies of local files, prefetch, and reads in flight."""

    managedLedgerCacheCopyEntries: int = switch(
        0,
        "1: the cache also copies blocks of local files to its memory. 0: readers map them from the page cache.",
        AT_ONCE,
        user="operators whose page cache is taken by other programs",
    )
    managedLedgerCacheReadAheadPercent: int = whole(
        25,
        "percent",
        0,
        50,
        "Part of the cache for data that is prefetched from object storage. 0: no prefetch.",
        AT_ONCE,
        user="operators of a slow or expensive object storage",
    )
    managedLedgerCachePacingPercent: int = whole(
        20,
        "percent",
        0,
        100,
        "Throttling of a query that reads its backlog ahead of others: it waits for at most this part of its time, so "
        "that they share one read of object storage. 0: no throttling.",
        AT_ONCE,
        user="operators of several queries over one backlog",
    )
    managedLedgerMaxReadsInFlightSizeInMB: int = whole(
        0,
        "MiB",
        0,
        1024 * 1024,
        "Limit of the bytes that reads from storage hold in memory in addition to the cache. 0: no limit.",
        AT_ONCE,
        user="operators of a host with little memory",
    )
