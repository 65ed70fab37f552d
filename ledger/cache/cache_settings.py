"""What the settings of the broker mean to its cache: limits as numbers, and the policy that goes by them."""

from __future__ import annotations

from collections.abc import Callable

from ledger.cache.eviction_policy import CacheLimits, EvictionPolicy
from ledger.cache.policies import DEFAULT_POLICY, POLICIES
from ledger.settings import Settings

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
