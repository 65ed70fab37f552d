"""What the broker says of its cache: a part of `ledger.protocol.actions`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.names import Name

LEASE_MS_MAX = 24 * 3600 * 1000


class RegisterReader(msgspec.Struct, frozen=True):
    """A query without a subscription is alive, and needs nothing before `position` any more.

    `reader` is the name that it reads by. Not heard of for `ttl_ms` it is forgotten, or at once with 0.
    """

    name: Name
    reader: Name
    position: Position
    ttl_ms: Annotated[int, msgspec.Meta(ge=0, le=LEASE_MS_MAX)]


class RegisterReaders(msgspec.Struct, frozen=True):
    """The same of many ledgers. Those that are gone are passed over."""

    ledgers: list[RegisterReader]


class ReaderPlace(msgspec.Struct, frozen=True):
    """A reader that is alive: what it has acknowledged, and where it reads next."""

    reader: str
    position: Position
    next_position: Position


class ReadSources(msgspec.Struct, frozen=True, kw_only=True):
    """Where the entries came from that were handed out since the broker started. Entries, and their bytes.

    Hits are served from memory where the cache holds the block, and by the page cache where the cache accounts for a
    block of a local file that was read or written a short while before. Misses are read from object storage or from
    local files. Whether the disk is read for a local file, only the system knows.
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
    """What was handed out since the broker started, over all ledgers, and what the cache is now.

    The part of `CacheMetrics` that progress tells: sums, and two that take a look at every span, at most a second old.
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
    """The part of one ledger, with the meaning that `CacheMetrics` gives."""

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
    """What the cache did since the broker started. Bytes and counts of entries, named as Pulsar's metrics are.

    A miss is an entry that was read from storage, a file or an object, and handed out, whether it was sent or mapped.
    `mapped` counts what readers on the broker's host mapped, hits and misses. `size_bytes` is the memory that is taken:
    of blocks of which anything is cached, and `lingering_bytes` of blocks that were let go of and that somebody has
    still, a reader that has mapped them, or the broker while it sends them. `local_file_bytes` are accounts of local
    files, which take no memory and have a limit of their own. All other counts are of both kinds: `entries` is what is
    cached, `expected_reads` are entries of cached spans times the readers that have still to come to them,
    `non_evictable_bytes` the spans for which that is not 0. `evictions` are passes by size. `ahead_bytes` were read
    from object storage before they were asked for, `waited_ms` is how long queries were told to wait for others close
    behind them.
    """

    policy: str = ""
    entries: int = 0
    not_kept: int = 0
    inflight_read_limit: int = 0
    reads_waiting: int = 0
    ledgers: list[LedgerCacheMetrics] = []
    ahead_bytes: int = 0
    waited_ms: int = 0
