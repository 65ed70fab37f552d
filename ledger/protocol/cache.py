"""Messages about the broker's cache: a part of `ledger.protocol.actions`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.names import Name

LEASE_MS_MAX = 24 * 3600 * 1000


class RegisterReader(msgspec.Struct, frozen=True):
    """Report of a query without a subscription, which needs nothing before `position` any more.

    `reader` is its name. The broker forgets a reader after `ttl_ms` without a report, or at once with 0.
    """

    name: Name
    reader: Name
    position: Position
    ttl_ms: Annotated[int, msgspec.Meta(ge=0, le=LEASE_MS_MAX)]


class RegisterReaders(msgspec.Struct, frozen=True):
    """Report of a query about many ledgers. Deleted ones are ignored."""

    ledgers: list[RegisterReader]


class ReaderPlace(msgspec.Struct, frozen=True):
    """Live reader: its acknowledged position and its next read."""

    reader: str
    position: Position
    next_position: Position


class ReadSources(msgspec.Struct, frozen=True, kw_only=True):
    """Sources of the entries served since the broker started, in entries and bytes.

    Hits are served from memory if the cache has the block. They are served by the page cache if the cache accounts for
    a local file that was recently read or written. Misses are read from object storage or from local files. Only the
    system knows whether the disk is read for a local file.
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

    This is the part of `CacheMetrics` that progress shows. Two of its values visit every range, and are at most a
    second old.
    """

    mapped_entries: int = 0
    mapped_bytes: int = 0
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
    """Metrics of one ledger, as in `CacheMetrics`."""

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

    A miss is an entry that was read from storage, a file or an object, and served. `mapped` counts what readers on the
    broker's host mapped, hits and misses. `size_bytes` is the memory in use: that of cached blocks, and
    `lingering_bytes` of evicted blocks that are still referenced. `local_file_bytes` are accounts of local files, which
    take no memory and have a limit of their own.

    All other counts cover both kinds. `entries` are the cached entries. `expected_reads` multiplies entries of cached
    ranges by the readers that still need them; `non_evictable_bytes` are the ranges for which that is not 0.
    `evictions` are passes by size. `ahead_bytes` were prefetched from object storage. `waited_ms` is the time for which
    queries were throttled.
    """

    policy: str = ""
    entries: int = 0
    not_kept: int = 0
    inflight_read_limit: int = 0
    reads_waiting: int = 0
    ledgers: list[LedgerCacheMetrics] = []
    ahead_bytes: int = 0
    waited_ms: int = 0
