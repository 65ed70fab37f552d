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
        "How much the cache may hold in memory: blocks of all ledgers from object storage, and of local files if these "
        "are copied. 0: nothing is held.",
        AT_ONCE,
    )
    managedLedgerCacheLocalFilesSizeMB: int = whole(
        256,
        "MiB",
        0,
        1024 * 1024,
        "How much of local files the cache accounts for, beside what it holds: blocks that were read or written a "
        "short while before and that readers have still to come to, so that the system's page cache should have them. "
        "An account takes about a kilobyte, whatever its block's size. 0: there are no accounts, and each read of a "
        "local file counts as a read of storage.",
        AT_ONCE,
    )
    cacheEvictionPolicy: str = text(
        "one of " + ", ".join(CACHE_POLICIES),
        "Which blocks the cache evicts when it is full. `slowest-reader` is Pulsar's "
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
        "Eviction by size goes down to this part of the cache. Pulsar has 90; a pass costs little here, idle space "
        "costs reads.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionTriggerThresholdPercent: int = whole(
        99, "percent", 1, 100, "Eviction by size begins above this part of the cache; Pulsar has 98.", AT_ONCE
    )
    managedLedgerCacheEvictionTimeThresholdMillis: int = whole(
        1_000,
        "milliseconds",
        0,
        INT_MAX,
        "What was cached for so long may be evicted by time alone; under `cursor-distance` only if no reader is going "
        "to read it.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionTimeThresholdMillisMax: int = whole(
        5_000,
        "milliseconds",
        0,
        INT_MAX,
        "The same for what is expected to be read, under the policy `expected-reads-stash` alone.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionTimeThresholdMillisOffloaded: int = whole(
        60_000,
        "milliseconds",
        0,
        INT_MAX,
        "The same for what came from object storage, since it was last read, under `cursor-distance`: a reader that "
        "comes a little later finds it. It is evicted first when room is needed.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionExtendTTLOfEntriesWithRemainingExpectedReadsMaxTimes: int = whole(
        5,
        "times",
        0,
        INT_MAX,
        "How often the life of what is expected to be read is extended, under `expected-reads`.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed: int = switch(
        0,
        "1: reading extends a life, under `expected-reads` and `slowest-reader`. PIP-430 and Pulsar 4 have 1, Pulsar 5 "
        "has 0: what all its readers have read takes room from what is expected.",
        AT_ONCE,
    )
    cacheEvictionByMarkDeletedPosition: int = switch(
        0, "1: under `slowest-reader` what is read is kept until it is acknowledged.", AT_ONCE
    )
    managedLedgerCursorBackloggedThreshold: int = whole(
        1_000,
        "entries",
        0,
        INT_MAX,
        "Under `slowest-reader`: nothing is kept for a reader that is farther behind than this.",
        AT_ONCE,
    )
    managedLedgerMinimumBacklogCursorsForCaching: int = whole(
        0,
        "readers",
        0,
        INT_MAX,
        "Under `slowest-reader`: what a reader reads from storage is cached if so many other readers are near. 0: "
        "never.",
        AT_ONCE,
    )
    managedLedgerMinimumBacklogEntriesForCaching: int = whole(
        1_000,
        "entries",
        0,
        INT_MAX,
        "Under `slowest-reader`: the setting above counts for a reader that is at least so far behind.",
        AT_ONCE,
    )
    managedLedgerMaxBacklogBetweenCursorsForCaching: int = whole(
        1_000,
        "entries",
        0,
        INT_MAX,
        "Under `slowest-reader`: other readers are near within so many entries.",
        AT_ONCE,
    )


@dataclass(frozen=True)
class CacheSettings:
    """The cache: copying, reading ahead, and reads in flight."""

    managedLedgerCacheCopyEntries: int = switch(
        0,
        "1: blocks of local files are copied into the cache, too, instead of being mapped from the system's page "
        "cache: what is cached is in memory whatever else the host does. With the policy `segmented`, the copying mode "
        "of the circular buffer.",
        AT_ONCE,
    )
    managedLedgerCacheEvictionIntervalMs: int = whole(
        100,
        "milliseconds",
        10,
        60_000,
        "How often the cache looks for old blocks, while anything is cached. Pulsar looks every 10.",
        AT_ONCE,
    )
    managedLedgerCacheReadAheadPercent: int = whole(
        25,
        "percent",
        0,
        50,
        "The part of the cache that may hold what was read from object storage ahead of readers. 0: nothing is read "
        "ahead of a call.",
        AT_ONCE,
    )
    managedLedgerCachePacingPercent: int = whole(
        20,
        "percent",
        0,
        100,
        "A query that would read from object storage waits for readers close behind it, at most this part of the time "
        "that its catching up takes. 0: no query waits.",
        AT_ONCE,
    )
    managedLedgerContinueCachingAddedEntriesAfterLastActiveCursorLeavesMillis: int = whole(
        2_000,
        "milliseconds",
        0,
        INT_MAX,
        "What is appended is cached for so long after the last reader of a ledger left: the reader may be back at "
        "once. Pulsar's default is twice the time threshold.",
        AT_ONCE,
    )
    managedLedgerMaxReadsInFlightSizeInMB: int = whole(
        0,
        "MiB",
        0,
        1024 * 1024,
        "How much may be on its way from storage at once, beside what is cached. 0: no limit.",
        AT_ONCE,
    )
    managedLedgerMaxReadsInFlightPermitsAcquireTimeoutMillis: int = whole(
        60_000,
        "milliseconds",
        0,
        3_600_000,
        "How long a read waits for room under that limit before it fails.",
        AT_ONCE,
    )
    managedLedgerMaxReadsInFlightPermitsAcquireQueueSize: int = whole(
        50_000, "reads", 0, INT_MAX, "How many reads may wait; one more fails at once.", AT_ONCE
    )
