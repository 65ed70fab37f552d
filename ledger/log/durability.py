"""Durability of a store: the place where entries and records become durable before they are acknowledged.

    disk      a sync of the segment file, a sync of the metadata file
    bucket    an object of the write-ahead log, which has both (`ledger.bucket_store`)

A segment is a file of a ledger. All ledgers of a store use the same place. From a bucket, the next broker builds the
files of open segments again. It then appends to these segments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyspark_ledger.ledger.database.changed_rows import Replica
from pyspark_ledger.ledger.log.staging.area import SyncParts
from pyspark_ledger.ledger.log.sync_pool import LogPool, SyncPool
from pyspark_ledger.ledger.segment.writer import LocalDisk, SegmentDurability


class StoreDurability(SegmentDurability, Protocol):
    """Durability of one open store."""

    @property
    def replica(self) -> Replica | None:
        """The place of the metadata's durable copy. None if the store uses the local disk."""

    @property
    def sync_parts(self) -> SyncParts | None:
        """The function that makes staged parts, the files of Spark tasks, durable. None if the store uses the disk."""

    def wait_for_room(self) -> None:
        """Wait until the place has room for more entries. Called before each append."""

    def pool(self, check_fenced: Callable[[], None]) -> LogPool:
        """Return the pool that syncs all logs. `check_fenced` raises if another broker of this host owns the store."""


class DiskDurability(LocalDisk):
    """Durability by the local disk."""

    replica: Replica | None = None
    sync_parts: SyncParts | None = None

    def wait_for_room(self) -> None:
        """Return at once: a full disk is an error."""

    def pool(self, check_fenced: Callable[[], None]) -> LogPool:
        return SyncPool(check_fenced)
