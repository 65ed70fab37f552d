"""Eviction policies by their names in `cacheEvictionPolicy`, and the cache limits that the broker's settings state."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_ledger.ledger.cache.eviction.cursor_distance import CursorDistancePolicy
from pyspark_ledger.ledger.cache.eviction.expected_reads import ExpectedReadsPolicy, StashPolicy
from pyspark_ledger.ledger.cache.eviction.lru import LruPolicy
from pyspark_ledger.ledger.cache.eviction.policy import CacheLimits, EvictionPolicy
from pyspark_ledger.ledger.cache.eviction.segmented import SegmentedPolicy
from pyspark_ledger.ledger.cache.eviction.slowest_reader import SlowestReaderPolicy
from pyspark_ledger.ledger.settings.broker import Settings

DEFAULT_POLICY = "cursor-distance"
POLICIES: dict[str, Callable[[CacheLimits], EvictionPolicy]] = {
    "cursor-distance": CursorDistancePolicy,
    "expected-reads": ExpectedReadsPolicy,
    "expected-reads-stash": StashPolicy,
    "slowest-reader": SlowestReaderPolicy,
    "segmented": SegmentedPolicy,
    "lru": LruPolicy,
}


_MB = 1024 * 1024


def limits_of(settings: Settings) -> CacheLimits:
    """The limits that the settings state."""
    return CacheLimits(
        size=settings.managedLedgerCacheSizeMB * _MB,
        local_file_size=settings.managedLedgerCacheLocalFilesSizeMB * _MB,
        watermark=settings.managedLedgerCacheEvictionWatermark / 100,
        trigger=settings.managedLedgerCacheEvictionTriggerThresholdPercent / 100,
        time_threshold_ms=settings.managedLedgerCacheEvictionTimeThresholdMillis,
        time_threshold_expected_ms=settings.managedLedgerCacheEvictionTimeThresholdMillisMax,
        time_threshold_offloaded_ms=settings.managedLedgerCacheEvictionTimeThresholdMillisOffloaded,
        extensions_max=settings.managedLedgerCacheEvictionExtendTTLOfEntriesWithRemainingExpectedReadsMaxTimes,
        extend_accessed=bool(settings.managedLedgerCacheEvictionExtendTTLOfRecentlyAccessed),
        by_mark_delete=bool(settings.cacheEvictionByMarkDeletedPosition),
        backlogged_threshold=settings.managedLedgerCursorBackloggedThreshold,
        minimum_backlog_cursors=settings.managedLedgerMinimumBacklogCursorsForCaching,
        minimum_backlog_entries=settings.managedLedgerMinimumBacklogEntriesForCaching,
        maximum_backlog_between=settings.managedLedgerMaxBacklogBetweenCursorsForCaching,
    )


def policy_of(settings: Settings) -> Callable[[CacheLimits], EvictionPolicy]:
    """The policy that the settings name."""
    return POLICIES[settings.cacheEvictionPolicy or DEFAULT_POLICY]
