"""The policies by name, as the setting `cacheEvictionPolicy` gives them."""

from __future__ import annotations

from collections.abc import Callable

from ledger.cache.cursor_distance_policy import CursorDistancePolicy
from ledger.cache.eviction_policy import CacheLimits, EvictionPolicy
from ledger.cache.expected_reads_policy import ExpectedReadsPolicy
from ledger.cache.lru_policy import LruPolicy
from ledger.cache.segmented_policy import SegmentedPolicy
from ledger.cache.slowest_reader_policy import SlowestReaderPolicy
from ledger.cache.stash_policy import StashPolicy

DEFAULT_POLICY = "cursor-distance"
POLICIES: dict[str, Callable[[CacheLimits], EvictionPolicy]] = {
    "cursor-distance": CursorDistancePolicy,
    "expected-reads": ExpectedReadsPolicy,
    "expected-reads-stash": StashPolicy,
    "slowest-reader": SlowestReaderPolicy,
    "segmented": SegmentedPolicy,
    "lru": LruPolicy,
}
