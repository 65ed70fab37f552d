"""Messages about the broker's cache. `ledger.protocol.actions` has the rules of all messages.

A *reader* is a subscription, or a query without a subscription that reports its position. The *expected reads* of a
cached entry are the number of readers that have not read the entry yet.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.names import Name
from pyspark_ledger.ledger.protocol.request import Empty, LedgerRequest, Request

LEASE_MS_MAX = 24 * 3600 * 1000


class RegisterReader(LedgerRequest[Empty], frozen=True, action="cache.follow", changes=False):
    """Report of a query without a subscription: the query will read no entry before `position` again.

    `reader` is the name of the query. The broker forgets a reader after `ttl_ms` without a report. 0 removes the reader
    at once.
    """

    reader: Name
    position: Position
    ttl_ms: Annotated[int, msgspec.Meta(ge=0, le=LEASE_MS_MAX)]


class RegisterReaders(
    Request[Empty], frozen=True, action="cache.follow.many", ledgers=("ledgers.name",), changes=False
):
    """Report of a query about many ledgers. The broker ignores deleted ledgers."""

    ledgers: list[RegisterReader]


class ReaderPlace(msgspec.Struct, frozen=True):
    """Live reader: the position up to which it has acknowledged, and the position that it reads next."""

    reader: str
    position: Position
    next_position: Position


class ReadSources(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of the entries served since the broker started, by source, in entries and bytes.

    The *page cache* is the operating system's memory for recently used parts of files. A memory hit is an entry in a
    block that the broker's cache has in memory. A page-cache hit is an entry of a local file in a block that was
    recently read or written. The page cache probably has this block; the broker does not check this. All other entries
    are misses: they are read from object storage or from local files.
    """

    hits: int = 0
    misses: int = 0
    hit_bytes: int = 0
    miss_bytes: int = 0
    memory_hits: int = 0
    memory_hit_bytes: int = 0
    page_cache_hits: int = 0
    page_cache_hit_bytes: int = 0
    object_misses: int = 0
    object_miss_bytes: int = 0
    file_misses: int = 0
    file_miss_bytes: int = 0


class CacheReads(ReadSources, frozen=True):
    """Sums of served entries since the broker's start, over all ledgers, and the present state of the cache.

    The progress of a streaming query shows these metrics. `expected_reads` and `non_evictable_bytes` are at most a
    second old. Reason: to compute them the broker visits every cached range.
    """

    mapped_entries: int = 0
    mapped_bytes: int = 0
    direct_entries: int = 0
    direct_bytes: int = 0
    inserted: int = 0
    evicted: int = 0
    evictions: int = 0
    eviction_nanos: int = 0
    requeues: int = 0
    size_bytes: int = 0
    lingering_bytes: int = 0
    limit_bytes: int = 0
    inflight_read_bytes: int = 0
    expected_reads: int = 0
    non_evictable_bytes: int = 0
    local_file_bytes: int = 0
    local_file_limit_bytes: int = 0


class LedgerCacheMetrics(ReadSources, frozen=True):
    """Metrics of one ledger. `CacheMetrics` explains the fields."""

    name: str
    inserted: int
    evicted: int
    entries: int
    size_bytes: int
    expected_reads: int
    non_evictable_bytes: int
    readers: list[ReaderPlace] = []
    ahead_bytes: int = 0
    waited_ms: int = 0
    local_file_bytes: int = 0


class CacheMetrics(CacheReads, frozen=True):
    """Activity of the cache since the broker's start: bytes and counts of entries, with the names of Pulsar's metrics.

    - `hits` and `misses` count served entries by source (`ReadSources`). `mapped_entries` and `mapped_bytes` are those
      entries that readers on the broker's host mapped. `direct_entries` and `direct_bytes` are the misses that readers
      fetched from a bucket without the broker.
    - `size_bytes` is the memory in use: the cached blocks, and `lingering_bytes` of evicted blocks that readers still
      reference.
    - `local_file_bytes` are the bytes of local files that the cache counts as recently read or written. They take no
      memory of the cache, and `local_file_limit_bytes` is their own limit.
    - The other counts cover blocks in memory and local files. `entries` are the cached entries.
    - `expected_reads` is the sum of the expected reads of all cached entries. `non_evictable_bytes` is the size of the
      ranges that at least one reader still has to read.
    - `evictions` counts how often the full cache removed entries to get room.
    - `ahead_bytes` were prefetched from object storage. `waited_ms` is the time for which queries were throttled.
    """

    policy: str = ""
    entries: int = 0
    not_kept: int = 0
    inflight_read_limit: int = 0
    reads_waiting: int = 0
    ledgers: list[LedgerCacheMetrics] = []
    ahead_bytes: int = 0
    waited_ms: int = 0


class AskCache(Request[CacheMetrics], frozen=True, action="cache", ledgers=(), changes=False):
    """Request for the metrics of the cache."""


class AskCacheReads(Request[CacheReads], frozen=True, action="cache.reads", ledgers=(), changes=False):
    """Request for the sums of served entries, and the state of the cache."""
