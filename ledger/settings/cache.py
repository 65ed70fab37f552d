"""The settings of the broker's cache: a part of `ledger.settings.broker`, whose rules they follow."""

from __future__ import annotations

from pyspark_ledger.ledger.settings.setting import Setting, TextSetting

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

CACHE_SETTINGS: dict[str, Setting] = {
    "managedLedgerCacheSizeMB": Setting(
        "MiB",
        0,
        1024 * 1024,
        "What the cache may hold in memory: blocks of all ledgers from object storage, and of local files where those "
        "are copied. 0: none is held.",
        live=True,
    ),
    "managedLedgerCacheLocalFilesSizeMB": Setting(
        "MiB",
        0,
        1024 * 1024,
        "How much of local files the cache accounts for, beside what it holds: blocks that were read or written a "
        "short while before and that readers have still to come to, so that the system's page cache should have them. "
        "An account takes about a kilobyte, whatever its block's size. 0: there are none, and each read of a local "
        "file counts as a read of storage.",
        live=True,
    ),
    "managedLedgerCacheCopyEntries": Setting(
        "switch",
        0,
        1,
        "1: blocks of local files are copied into the cache, too, instead of being mapped from the system's page "
        "cache: what is cached is in memory whatever else the host does. With the policy `segmented`, the copying mode "
        "of the circular buffer.",
        live=True,
    ),
    "managedLedgerCacheEvictionWatermark": Setting(
        "percent",
        1,
        100,
        "Eviction by size goes down to this part of the cache. Pulsar has 90; a pass costs little here, idle space "
        "costs reads.",
        live=True,
    ),
    "managedLedgerCacheEvictionTriggerThresholdPercent": Setting(
        "percent",
        1,
        100,
        "Eviction by size begins above this part of the cache; Pulsar has 98.",
        live=True,
    ),
    "managedLedgerCacheEvictionIntervalMs": Setting(
        "milliseconds",
        10,
        60_000,
        "How often what is old is looked for, while anything is cached. Pulsar looks every 10.",
        live=True,
    ),
    "managedLedgerCacheEvictionTimeThresholdMillis": Setting(
        "milliseconds",
        0,
        2**31 - 1,
        "What was cached for so long may go by time alone; under `cursor-distance` only if nobody is going to read it.",
        live=True,
    ),
    "managedLedgerCacheEvictionTimeThresholdMillisMax": Setting(
        "milliseconds",
        0,
        2**31 - 1,
        "The same for what is expected to be read, under the policy `expected-reads-stash` alone.",
        live=True,
    ),
    "managedLedgerCacheEvictionTimeThresholdMillisOffloaded": Setting(
        "milliseconds",
        0,
        2**31 - 1,
        "The same for what came from object storage, since it was last read, under `cursor-distance`: who comes a "
        "little later finds it. It goes first when room is needed.",
        live=True,
    ),
    "managedLedgerCacheReadAheadPercent": Setting(
        "percent",
        0,
        50,
        "The part of the cache that may hold what was read from object storage ahead of those who are going to ask. 0: "
        "nothing is read ahead of a call.",
        live=True,
    ),
    "managedLedgerCachePacingPercent": Setting(
        "percent",
        0,
        100,
        "A query that would read from object storage waits for those close behind it, at most this part of the time "
        "that its catching up takes. 0: nobody waits.",
        live=True,
    ),
    "managedLedgerCacheEvictionExtendTTLOfEntriesWithRemainingExpectedReadsMaxTimes": Setting(
        "times",
        0,
        2**31 - 1,
        "How often the life of what is expected to be read is extended, under `expected-reads`.",
        live=True,
    ),
    "managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed": Setting(
        "switch",
        0,
        1,
        "1: reading extends a life, under `expected-reads` and `slowest-reader`. PIP-430 and Pulsar 4 have 1, Pulsar 5 "
        "has 0: what all its readers have read takes room from what is expected.",
        live=True,
    ),
    "managedLedgerContinueCachingAddedEntriesAfterLastActiveCursorLeavesMillis": Setting(
        "milliseconds",
        0,
        2**31 - 1,
        "For so long after the last reader of a ledger left what is appended is still cached: it may be back at once. "
        "Pulsar's default is twice the time threshold.",
        live=True,
    ),
    "managedLedgerMaxReadsInFlightSizeInMB": Setting(
        "MiB",
        0,
        1024 * 1024,
        "What may be on its way from storage at once, beside what is cached. 0: no limit.",
        live=True,
    ),
    "managedLedgerMaxReadsInFlightPermitsAcquireTimeoutMillis": Setting(
        "milliseconds",
        0,
        3_600_000,
        "How long a read waits for that before it fails.",
        live=True,
    ),
    "managedLedgerMaxReadsInFlightPermitsAcquireQueueSize": Setting(
        "reads",
        0,
        2**31 - 1,
        "How many may wait.",
        live=True,
    ),
    "cacheEvictionByMarkDeletedPosition": Setting(
        "switch",
        0,
        1,
        "1: under `slowest-reader` what is read is kept until it is acknowledged.",
        live=True,
    ),
    "managedLedgerCursorBackloggedThreshold": Setting(
        "entries",
        0,
        2**31 - 1,
        "Under `slowest-reader`: a reader so far behind keeps nothing for itself.",
        live=True,
    ),
    "managedLedgerMinimumBacklogCursorsForCaching": Setting(
        "readers",
        0,
        2**31 - 1,
        "Under `slowest-reader`: what is read from storage is cached when so many others are near. 0: never.",
        live=True,
    ),
    "managedLedgerMinimumBacklogEntriesForCaching": Setting(
        "entries",
        0,
        2**31 - 1,
        "Under `slowest-reader`: and the reader is so far behind,",
        live=True,
    ),
    "managedLedgerMaxBacklogBetweenCursorsForCaching": Setting(
        "entries",
        0,
        2**31 - 1,
        "Under `slowest-reader`: and near means within so many entries.",
        live=True,
    ),
}

CACHE_TEXT_SETTINGS: dict[str, TextSetting] = {
    "cacheEvictionPolicy": TextSetting(
        "one of " + ", ".join(CACHE_POLICIES),
        "What the cache lets go of when full. `slowest-reader` is Pulsar's cacheEvictionByExpectedReadCount=false, "
        "`expected-reads` its true.",
        live=True,
        choices=CACHE_POLICIES,
    ),
}
