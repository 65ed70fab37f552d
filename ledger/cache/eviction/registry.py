"""Eviction policies by their names in the setting `cacheEvictionPolicy`, and the cache's limits from the settings."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_ledger.ledger.cache.eviction.cursor_distance import CursorDistancePolicy
from pyspark_ledger.ledger.cache.eviction.expected_reads import ExpectedReadsPolicy, StashPolicy
from pyspark_ledger.ledger.cache.eviction.policy import CacheLimits, EvictionPolicy
from pyspark_ledger.ledger.cache.eviction.segmented import SegmentedPolicy
from pyspark_ledger.ledger.cache.eviction.slowest_reader import SlowestReaderPolicy
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.settings.cache import EvictionSettings
from pyspark_ledger.ledger.settings.setting import MIB

DEFAULT_POLICY = "cursor-distance"
POLICIES: dict[str, Callable[[CacheLimits], EvictionPolicy]] = {
    "cursor-distance": CursorDistancePolicy,
    "expected-reads": ExpectedReadsPolicy,
    "expected-reads-stash": StashPolicy,
    "slowest-reader": SlowestReaderPolicy,
    "segmented": SegmentedPolicy,
}


def limits_of(settings: Settings) -> CacheLimits:
    return CacheLimits(
        settings.managedLedgerCacheSizeMB * MIB,
        settings.managedLedgerCacheLocalFilesSizeMB * MIB,
        settings.part(EvictionSettings),
    )


def policy_of(settings: Settings) -> Callable[[CacheLimits], EvictionPolicy]:
    return POLICIES[settings.cacheEvictionPolicy or DEFAULT_POLICY]
