"""Settings of the broker's cache: sizes, eviction, prefetch, and reads in flight."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.settings.setting import AT_ONCE, INT_MAX, switch, text, whole

CACHE_POLICIES = ("cursor-distance", "expected-reads", "expected-reads-stash", "slowest-reader", "segmented", "lru")

_NETTY = "Python has no buffers of Netty: nothing here is allocated by that"
CACHE_ELSEWHERE: dict[str, str] = {
    "cacheEvictionByExpectedReadCount": "Set 'cacheEvictionPolicy': 'expected-reads' is its true, 'slowest-reader' its "
    "false",
    "managedLedgerCacheEvictionFrequency": "Set 'managedLedgerCacheEvictionIntervalMs'",
    "brokerAdaptiveRecvByteBufAllocatorMinimumSize": _NETTY,
    "brokerAdaptiveRecvByteBufAllocatorInitialSize": _NETTY,
    "brokerAdaptiveRecvByteBufAllocatorMaximumSize": _NETTY,
}
"""Names of Pulsar's that are no settings here, and what to do instead."""


@dataclass(frozen=True)
class EvictionSettings:
    """The cache: sizes and eviction."""

    managedLedgerCacheSizeMB: int = whole(
        64,
        "MiB",
        0,
        1024 * 1024,
        "Limit of the cache's memory: blocks of all ledgers from object storage, and of local files if these are "
        "copied. 0: nothing is cached.",
        AT_ONCE,
    )
    managedLedgerCacheLocalFilesSizeMB: int = whole(
        256,
        "MiB",
        0,
        1024 * 1024,
        "Limit of the local files that the cache accounts for, beside its memory. These are recently read or "
        "written blocks with expected reads, which the system's page cache should have. An account takes about a "
        "kilobyte. 0: there are no accounts, and each read of a local file counts as a read of storage.",
        AT_ONCE,
    )
    cacheEvictionPolicy: str = text(
        "one of " + ", ".join(CACHE_POLICIES),
        "Policy that selects the blocks to evict from a full cache. `slowest-reader` is Pulsar's "
        "cacheEvictionByExpectedReadCount=false, `expected-reads` its true.",
        AT_ONCE,
        default="cursor-distance",
        choices=CACHE_POLICIES,
    )
    managedLedgerCacheEvictionWatermark: int = whole(
        95,
        "percent",
        1,
        100,
        "Eviction by size stops at this part of the cache. Pulsar has 90; a pass is cheap here, and unused space "
        "costs reads.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionTriggerThresholdPercent: int = whole(
        99, "percent", 1, 100, "Eviction by size starts above this part of the cache; Pulsar has 98.", AT_ONCE
    )
    managedLedgerCacheEvictionTimeThresholdMillis: int = whole(
        1_000,
        "milliseconds",
        0,
        INT_MAX,
        "Age at which blocks may be evicted by time alone; under `cursor-distance` only without expected reads.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionTimeThresholdMillisMax: int = whole(
        5_000,
        "milliseconds",
        0,
        INT_MAX,
        "The same age for blocks with expected reads, under the policy `expected-reads-stash` alone.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionTimeThresholdMillisOffloaded: int = whole(
        60_000,
        "milliseconds",
        0,
        INT_MAX,
        "The same age for blocks from object storage since their last read, under `cursor-distance`: a slightly "
        "later reader finds them. They are evicted first when room is needed.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionExtendTTLOfEntriesWithRemainingExpectedReadsMaxTimes: int = whole(
        5,
        "times",
        0,
        INT_MAX,
        "Number of extensions of the life of blocks with expected reads, under `expected-reads`.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed: int = switch(
        0,
        "1: a read extends a block's life, under `expected-reads` and `slowest-reader`. PIP-430 and Pulsar 4 have"
        " 1, Pulsar 5 has 0: blocks that all readers have read take room from expected ones.",
        AT_ONCE,
    )
    cacheEvictionByMarkDeletedPosition: int = switch(
        0, "1: under `slowest-reader` read blocks are kept until they are acknowledged.", AT_ONCE
    )
    managedLedgerCursorBackloggedThreshold: int = whole(
        1_000,
        "entries",
        0,
        INT_MAX,
        "Under `slowest-reader`: nothing is cached for a reader with a larger backlog.",
        AT_ONCE,
    )
    managedLedgerMinimumBacklogCursorsForCaching: int = whole(
        0,
        "readers",
        0,
        INT_MAX,
        "Under `slowest-reader`: reads from storage are cached if this many other readers are near. 0: never.",
        AT_ONCE,
    )
    managedLedgerMinimumBacklogEntriesForCaching: int = whole(
        1_000,
        "entries",
        0,
        INT_MAX,
        "Under `slowest-reader`: the setting above applies to a reader with at least this backlog.",
        AT_ONCE,
    )
    managedLedgerMaxBacklogBetweenCursorsForCaching: int = whole(
        1_000,
        "entries",
        0,
        INT_MAX,
        "Under `slowest-reader`: other readers are near within this many entries.",
        AT_ONCE,
    )


@dataclass(frozen=True)
class CacheSettings:
    """The cache: copying, reading ahead, and reads in flight."""

    managedLedgerCacheCopyEntries: int = switch(
        0,
        "1: blocks of local files are also copied into the cache instead of being mapped from the system's page "
        "cache, so they stay in memory. With the policy `segmented`, this is the copying mode of the circular "
        "buffer.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionIntervalMs: int = whole(
        100,
        "milliseconds",
        10,
        60_000,
        "Interval at which the cache evicts old blocks, while anything is cached. Pulsar's is 10.",
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
        "Part of a query's catch-up time for which it may be throttled, so that close readers behind it share its"
        " reads from object storage. 0: no throttling.",
        AT_ONCE,
    )
    managedLedgerContinueCachingAddedEntriesAfterLastActiveCursorLeavesMillis: int = whole(
        2_000,
        "milliseconds",
        0,
        INT_MAX,
        "Time for which appended entries are cached after the last reader of a ledger left, because the reader "
        "may return. Pulsar's default is twice the time threshold.",
        AT_ONCE,
    )
    managedLedgerMaxReadsInFlightSizeInMB: int = whole(
        0,
        "MiB",
        0,
        1024 * 1024,
        "Limit of the bytes in flight from storage, beside the cache. 0: no limit.",
        AT_ONCE,
    )
    managedLedgerMaxReadsInFlightPermitsAcquireTimeoutMillis: int = whole(
        60_000,
        "milliseconds",
        0,
        3_600_000,
        "Time for which a read waits for room under that limit before it fails.",
        AT_ONCE,
    )
    managedLedgerMaxReadsInFlightPermitsAcquireQueueSize: int = whole(
        50_000, "reads", 0, INT_MAX, "Number of reads that may wait; a further one fails at once.", AT_ONCE
    )
