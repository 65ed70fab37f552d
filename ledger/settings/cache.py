"""Settings of the broker's cache: sizes, eviction, prefetch, and unfinished reads.

A *reader* is a subscription, or a query without a subscription. The *expected reads* of a cached block are the readers
that will read the block later. docs/cache.md explains the eviction policies.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.settings.setting import AT_ONCE, INT_MAX, switch, text, whole

CACHE_POLICIES = ("cursor-distance", "expected-reads", "expected-reads-stash", "slowest-reader", "segmented", "lru")

_NETTY = "It sizes buffers of Netty, which this broker does not use: remove it"
CACHE_ELSEWHERE: dict[str, str] = {
    "cacheEvictionByExpectedReadCount": "Set 'cacheEvictionPolicy' to 'expected-reads' instead of true, or to "
    "'slowest-reader' instead of false",
    "managedLedgerCacheEvictionFrequency": "Set 'managedLedgerCacheEvictionIntervalMs' instead",
    "brokerAdaptiveRecvByteBufAllocatorMinimumSize": _NETTY,
    "brokerAdaptiveRecvByteBufAllocatorInitialSize": _NETTY,
    "brokerAdaptiveRecvByteBufAllocatorMaximumSize": _NETTY,
}
"""Settings of Pulsar that this broker does not have, and the hint for a user who sets them."""


@dataclass(frozen=True)
class EvictionSettings:
    """The cache: sizes and eviction."""

    managedLedgerCacheSizeMB: int = whole(
        64,
        "MiB",
        0,
        1024 * 1024,
        "Limit of the cache's memory. The memory contains blocks from object storage, and with "
        "managedLedgerCacheCopyEntries also blocks of local files. 0: nothing is cached.",
        AT_ONCE,
    )
    managedLedgerCacheLocalFilesSizeMB: int = whole(
        256,
        "MiB",
        0,
        1024 * 1024,
        "Limit of the bytes of local files that count as cached: blocks that were recently read or written, and that "
        "readers will read later. The operating system probably has these blocks in its page cache. The broker uses "
        "about a kilobyte of memory for each block. 0: each read of a local file counts as a read of storage.",
        AT_ONCE,
    )
    cacheEvictionPolicy: str = text(
        "one of " + ", ".join(CACHE_POLICIES),
        "Policy that selects the blocks to evict from a full cache; docs/cache.md describes each policy. Pulsar has "
        "the policies `slowest-reader` (cacheEvictionByExpectedReadCount=false) and `expected-reads` (true).",
        AT_ONCE,
        default="cursor-distance",
        choices=CACHE_POLICIES,
    )
    managedLedgerCacheEvictionWatermark: int = whole(
        95,
        "percent",
        1,
        100,
        "Eviction from a full cache stops when the cache is filled to this part. Pulsar's default is 90. The default "
        "here is higher, because eviction is cheap and unused memory causes reads of storage.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionTriggerThresholdPercent: int = whole(
        99,
        "percent",
        1,
        100,
        "Eviction starts when the cache is filled above this part. Pulsar's default is 98.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionTimeThresholdMillis: int = whole(
        1_000,
        "milliseconds",
        0,
        INT_MAX,
        "Age at which a block is evicted even if the cache is not full. The policy `cursor-distance` then evicts only "
        "blocks without expected reads, that is, blocks that every reader has read.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionTimeThresholdMillisMax: int = whole(
        5_000,
        "milliseconds",
        0,
        INT_MAX,
        "Age at which a block with expected reads is evicted even if the cache is not full. Only the policy "
        "`expected-reads-stash` uses it.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionTimeThresholdMillisOffloaded: int = whole(
        60_000,
        "milliseconds",
        0,
        INT_MAX,
        "With the policy `cursor-distance`: a block from object storage is evicted this long after its last read. "
        "Reason for the long time: a reader that comes a little later finds the block in the cache. A full cache "
        "evicts these blocks first.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionExtendTTLOfEntriesWithRemainingExpectedReadsMaxTimes: int = whole(
        5,
        "times",
        0,
        INT_MAX,
        "With the policy `expected-reads`: how many times a block with expected reads is kept although it has reached "
        "the age managedLedgerCacheEvictionTimeThresholdMillis.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed: int = switch(
        0,
        "1: a block that was read since the last check is kept longer, with the policies `expected-reads` and "
        "`slowest-reader`. PIP-430 and Pulsar 4 have 1. Pulsar 5 has 0. Reason for 0: otherwise blocks that all "
        "readers have read take room from blocks with expected reads.",
        AT_ONCE,
    )
    cacheEvictionByMarkDeletedPosition: int = switch(
        0, "1: the policy `slowest-reader` keeps read blocks until they are acknowledged.", AT_ONCE
    )
    managedLedgerCursorBackloggedThreshold: int = whole(
        1_000,
        "entries",
        0,
        INT_MAX,
        "With the policy `slowest-reader`: the cache keeps nothing for a reader with a larger backlog.",
        AT_ONCE,
    )
    managedLedgerMinimumBacklogCursorsForCaching: int = whole(
        0,
        "readers",
        0,
        INT_MAX,
        "With the policy `slowest-reader`: a read from storage is cached if this many other readers are near, as "
        "managedLedgerMaxBacklogBetweenCursorsForCaching defines. 0: such reads are not cached.",
        AT_ONCE,
    )
    managedLedgerMinimumBacklogEntriesForCaching: int = whole(
        1_000,
        "entries",
        0,
        INT_MAX,
        "With the policy `slowest-reader`: managedLedgerMinimumBacklogCursorsForCaching applies to a reader with at "
        "least this backlog.",
        AT_ONCE,
    )
    managedLedgerMaxBacklogBetweenCursorsForCaching: int = whole(
        1_000,
        "entries",
        0,
        INT_MAX,
        "With the policy `slowest-reader`: two readers are near if at most this many entries are between them.",
        AT_ONCE,
    )


@dataclass(frozen=True)
class CacheSettings:
    """The cache: copies of local files, prefetch, and reads in flight."""

    managedLedgerCacheCopyEntries: int = switch(
        0,
        "1: the cache also copies blocks of local files to its memory, so that they stay there. 0: readers map these "
        "blocks from the system's page cache.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionIntervalMs: int = whole(
        100,
        "milliseconds",
        10,
        60_000,
        "Interval at which the cache looks for blocks to evict by age. Pulsar's default is 10.",
        AT_ONCE,
    )
    managedLedgerCacheReadAheadPercent: int = whole(
        25,
        "percent",
        0,
        50,
        "Part of the cache for data that is prefetched from object storage. 0: no prefetch.",
        AT_ONCE,
    )
    managedLedgerCachePacingPercent: int = whole(
        20,
        "percent",
        0,
        100,
        "Throttling of a query that reads its backlog ahead of other readers: it waits for at most this part of its "
        "time. A reader close behind it then catches up, and both share one read of object storage. 0: no throttling.",
        AT_ONCE,
    )
    managedLedgerContinueCachingAddedEntriesAfterLastActiveCursorLeavesMillis: int = whole(
        2_000,
        "milliseconds",
        0,
        INT_MAX,
        "Time for which the broker still caches appended entries after the last reader of a ledger left. Reason: the "
        "reader may return. Pulsar's default is twice managedLedgerCacheEvictionTimeThresholdMillis.",
        AT_ONCE,
    )
    managedLedgerMaxReadsInFlightSizeInMB: int = whole(
        0,
        "MiB",
        0,
        1024 * 1024,
        "Limit of the bytes that reads from storage hold in memory in addition to the cache. 0: no limit.",
        AT_ONCE,
    )
    managedLedgerMaxReadsInFlightPermitsAcquireTimeoutMillis: int = whole(
        60_000,
        "milliseconds",
        0,
        3_600_000,
        "Time for which a read waits at the limit managedLedgerMaxReadsInFlightSizeInMB before it fails.",
        AT_ONCE,
    )
    managedLedgerMaxReadsInFlightPermitsAcquireQueueSize: int = whole(
        50_000,
        "reads",
        0,
        INT_MAX,
        "Maximum number of reads that wait at the limit managedLedgerMaxReadsInFlightSizeInMB. A further read fails at "
        "once.",
        AT_ONCE,
    )
