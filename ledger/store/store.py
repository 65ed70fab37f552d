"""Store: one directory, one broker, many managed ledgers.

A *segment* is one file of a ledger. A *log* is a ledger without partitions, or one partition. The *epoch* is a number
in the metadata that each new broker raises.

    <store>/metadata.sqlite     the records (ledger.metadata.records), a SQLite database
    <store>/ledgers/            <segment id>.ledger and .index; ids are unique in the store, no path has a ledger's name
    <store>/staging/            files with rows that wait for the commit of their batch (ledger.log.staging)
    <store>/lock                locked by the broker while it lives (ledger.ownership)

Invariants
- A broker first locks its store. It then raises the store's epoch durably, and only then reads an open segment. An
  earlier broker that still runs compares the epoch before each acknowledgement. So it learns that it has lost the store
  (*fenced*), and acknowledges nothing more.
- A ledger is opened at its first use. If an earlier broker left a segment open, the opening recovers it.
- An invalid name of a ledger is refused before the ledger is searched or created.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.clock import Clock, new_id
from pyspark_ledger.ledger.cursor.acknowledgements import ROLLOVER_MS, AcknowledgementTable, cursor_log_form
from pyspark_ledger.ledger.cursor.cursor_acknowledgements import CursorPlace
from pyspark_ledger.ledger.cursor.cursors import CursorTable
from pyspark_ledger.ledger.cursor.deliveries import DeliveryTable
from pyspark_ledger.ledger.cursor.leases import LeaseTable
from pyspark_ledger.ledger.database.changed_rows import Replica
from pyspark_ledger.ledger.errors import LedgerError, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.log.context import LogContext
from pyspark_ledger.ledger.log.durability import DiskDurability, StoreDurability
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.log.policy import DURABILITY, LedgerPolicy, require_properties, require_settings
from pyspark_ledger.ledger.log.snapshot import LogSnapshot, LogWatch
from pyspark_ledger.ledger.log.staging.area import StagingArea
from pyspark_ledger.ledger.log.unfinished_chunks import ChunkTable
from pyspark_ledger.ledger.message.run_marker import CommittedBatch
from pyspark_ledger.ledger.message.schema.registration import require_successor
from pyspark_ledger.ledger.metadata.owner import require_owner
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.metadata.unwanted_files import UnwantedFiles, require_allocated, unknown_files
from pyspark_ledger.ledger.metrics.latencies import Latencies
from pyspark_ledger.ledger.names import (
    canonical_name,
    logs_among,
    nearest_ledger,
    partition_names,
    require_partitions,
    short_name,
    without_partitions,
)
from pyspark_ledger.ledger.ownership import (
    OwnerChange,
    StoreLock,
    file_identity,
    host_identity,
    make_private,
    require_trusted,
)
from pyspark_ledger.ledger.protocol.actions import (
    ChangePartitions,
    CreateLedger,
    GetSchema,
    LedgerDescription,
    RegisterSchema,
    SchemaVersion,
)
from pyspark_ledger.ledger.protocol.ledgers import DEDUPLICATION_ENABLED
from pyspark_ledger.ledger.segment.format import require_block_bytes
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.commits import BatchCommits
from pyspark_ledger.ledger.store.direct_parts import DirectParts
from pyspark_ledger.ledger.store.maintenance import BackgroundTasks
from pyspark_ledger.ledger.store.offload_scheduler import OffloadScheduler
from pyspark_ledger.ledger.store.partitions import PartitionTable
from pyspark_ledger.ledger.store.policies import PolicyService
from pyspark_ledger.ledger.tiering.offloader_choice import OffloaderChoice, no_offloader
from pyspark_ledger.ledger.transport.moved_store import METADATA, require_not_moved

_DRAINING_THREADS = 16
_log = logging.getLogger(__name__)

Watch = Callable[["Store"], LogWatch | None]
"""Creates the observer of a store's logs."""


class Store:
    """Open store. All methods may be called from any thread."""

    def __init__(
        self,
        path: Path,
        lock: StoreLock,
        metadata: Metadata,
        settings: Settings,
        clock: Clock,
        offloader: OffloaderChoice,
        watch: Watch,
        durability: StoreDurability,
    ) -> None:
        self.path = path
        record = metadata.store_record()
        self.store_id, self.former = record.store_id, record.former
        self.epoch = metadata.bump_epoch()
        self.require_ours = metadata.require_ours
        """Raises Fenced if another broker has taken the store over."""
        self.files = UnwantedFiles(path / "ledgers", metadata.unwanted_files)
        chunks = ChunkTable()
        place = CursorPlace(
            path / "ledgers",
            self.store_id,
            cursor_log_form(settings),
            ROLLOVER_MS,
            clock,
            metadata.allocate_ledger_id,
            self.files.delete,
            durability,
        )
        self.acknowledgements = AcknowledgementTable(metadata, place, settings, chunks)
        self.leases = LeaseTable(metadata, clock, self.snapshot, self.acknowledgements)
        self.deliveries = DeliveryTable(metadata, clock, self.snapshot, self.acknowledgements)
        self.cursors = CursorTable(
            metadata,
            clock,
            self.snapshot,
            self.acknowledgements,
            chunks,
            lambda name: self.ledger(name).trimming,
            self.deliveries.forgetting,
        )
        self.partitions = PartitionTable(metadata, new_id)
        self._lock_held = lock
        self._identity = file_identity(path / METADATA)  # never changes, because SQLite does not replace its file
        self.metadata = metadata
        self._settings = settings
        self._clock = clock
        self._executor = ThreadPoolExecutor(_DRAINING_THREADS, thread_name_prefix="drain")
        self._sync_pool = durability.pool(self.require_ours)
        self._staging = StagingArea(
            path / "staging", new_id, durability.sync_parts, settings.stagedPartPromotionMinBytes
        )
        self._opened: dict[str, ManagedLedger] = {}
        self._watch = watch(self)
        self.policies = PolicyService(
            metadata,
            settings,
            lambda name: self._require_exists(canonical_name(name)),
            self.opened,
            lambda: self.upkeep.recheck(),  # noqa: PLW0108 — `upkeep` is created later
        )
        self.offloads = self._offload_scheduler(offloader, settings, chunks)
        self.upkeep = self._background_tasks(offloader)
        self._context = LogContext(
            self.store_id,
            self.require_ours,
            path / "ledgers",
            metadata,
            settings,
            clock,
            self._executor,
            self._sync_pool,
            self.upkeep.sealed,
            self.upkeep.due.put,
            self._unlisted,
            self._watch.moved if self._watch is not None else _unwatched,
            offloader,
            offloader.prefers_remote,
            chunks,
            durability=durability,
        )
        self._opening = threading.Lock()
        self._leaving = False
        self.direct = self._direct_parts(offloader, settings)
        self.commits = BatchCommits(metadata.manifests, self._staging, self.direct, self.ledger, clock)
        # Committed batches are finished before the sweep, because the sweep deletes staged files.
        finished = self.commits.finish_all()
        self._sweep(staging=finished)

    def _background_tasks(self, offloader: OffloaderChoice) -> BackgroundTasks:
        return BackgroundTasks(
            self.metadata,
            self._settings,
            self._clock,
            opened=self.opened_ledger,
            ledger=self.ledger,
            offload_due=self.offloads.consider,
            offloading=offloader.has_target,
            forget_deleted=self.files.forget_deleted,
        )

    def _offload_scheduler(
        self, offloader: OffloaderChoice, settings: Settings, chunks: ChunkTable
    ) -> OffloadScheduler:
        return OffloadScheduler(
            self.metadata,
            settings,
            self._clock,
            store_id=self.store_id,
            offloader=offloader,
            ledger=self.ledger,
            new_id=new_id,
            chunks=chunks,
            batch_objects=lambda: self.commits.needed_objects(),  # noqa: PLW0108 — `commits` is created later
            list_unneeded=lambda kept: self.direct.list_unneeded(kept),  # noqa: PLW0108 — `direct` is created later
        )

    def _direct_parts(self, offloader: OffloaderChoice, settings: Settings) -> DirectParts:
        """Return the part of the store that accepts data objects from Spark tasks. Only a store in a bucket does so."""
        in_bucket = self._context.durability.in_bucket and offloader.has_target()
        return DirectParts(
            self.metadata,
            settings,
            self._clock,
            epoch=self.epoch,
            offloader=offloader if in_bucket else None,
            ledger=self.ledger,
            staging=self._staging,
            put_indexes=self.offloads.put_indexes,
            new_id=new_id,
        )

    @property
    def append_latencies(self) -> Latencies:
        """The durations of the store's appends."""
        return self._context.append_latencies

    @property
    def trim_latencies(self) -> Latencies:
        """The durations of trims that deleted files. Each trim of a ledger counts once."""
        return self._context.trim_latencies

    @property
    def sync_latencies(self) -> Latencies:
        """The durations of the store's syncs."""
        return self._sync_pool.latencies

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        settings: Settings,
        clock: Clock,
        create: bool = False,
        take_over: OwnerChange | None = None,
        offloader: OffloaderChoice | None = None,
        watch: Watch = lambda _: None,
        durability: StoreDurability | None = None,
        lock: StoreLock | None = None,
    ) -> Self:
        """Open a store as its only broker. With `create`, create the store in a missing or empty directory.

        `lock` is the lock of the directory, if the caller has acquired it already. `durability` makes entries and
        records durable; by default they are synced to the disk. `watch` creates the observer of the store's logs. The
        observer must not call the store before `open` returns. `take_over` says why the store belongs to another
        broker, host or directory.

        Raises NotFound if there is no store. Unless `take_over` permits it, raises Refused if another broker owns the
        store, or if it belongs to another host or directory. Also raises Refused if other users can write to it, and in
        a directory whose store has moved to a bucket. The same on a file system without locks, sync or reserved space.
        """
        path, durability = path.absolute(), durability or DiskDurability()
        require_settings(settings)
        require_trusted(path)
        require_not_moved(path)
        exists = (path / METADATA).exists()
        if not exists and not create:
            raise NotFound(
                f"there is no ledger store at {path}",
                hint="Write to it once, create it with `ledger serve --create`, or correct the path",
            )
        if not exists and path.is_dir() and any(path.iterdir()) and not _left_by_create(path):
            raise Refused(f"{path} is neither empty nor a ledger store", hint="Choose an empty or new directory")
        disk.make_directory(path)
        make_private(path)
        disk.require_suitable(path)
        if not exists:
            disk.sync_names_above(path)
        lock = lock or StoreLock.acquire(path, take_over=take_over is OwnerChange.BROKER)
        try:
            for name in ("ledgers", "staging"):
                disk.make_directory(path / name)
            metadata = cls._metadata_of(path, exists, clock, durability.replica, take_over)
        except BaseException:
            lock.release()
            raise
        try:
            return cls(path, lock, metadata, settings, clock, offloader or no_offloader(), watch, durability)
        except BaseException:
            metadata.close()
            lock.release()
            raise

    @staticmethod
    def _metadata_of(
        path: Path, exists: bool, clock: Clock, replica: Replica | None, change: OwnerChange | None
    ) -> Metadata:
        """Open or create the metadata. Without `change`, raises Refused if they belong to another host or directory."""
        host = host_identity(path)
        if not exists:
            return Metadata.create(path / METADATA, new_id(), host, clock)
        metadata = Metadata.open(path / METADATA, clock, replica=replica)
        try:
            if change is not None:  # an accepted change also allocates segment ids, and would hide such a file
                directory, unwanted = path / "ledgers", metadata.unwanted_files.all()
                unknown = unknown_files(directory, metadata.ledger_ids(), unwanted)
                require_allocated(unknown, directory, metadata.next_ledger_id())
            require_owner(metadata, path, host, change, new_id)
        except BaseException:
            metadata.close()
            raise
        return metadata

    def names(self) -> list[str]:
        """Return the full names of all managed ledgers, sorted. Partitions are omitted."""
        return without_partitions(self.metadata.names())

    def log_names(self) -> list[str]:
        """Return the full names of all logs, sorted. A partitioned ledger is omitted, its partitions are not."""
        return logs_among(self.metadata.names())

    def logs(self, name: str) -> list[str]:
        """Return the logs of a ledger: its partitions, or the ledger itself. Returns none for a missing ledger."""
        name = canonical_name(name)
        if name in self._opened:
            return [name]
        if not self.metadata.exists(name):
            return []
        count = self.partitions.count(name)
        return partition_names(name, count) if count else [name]

    def ledger(self, name: str) -> ManagedLedger:
        """Return a managed ledger, and open and recover it if necessary. NotFound names the most similar ledger."""
        name = canonical_name(name)
        opened = self._opened.get(name)
        if opened is not None:
            return opened
        with self._opening:
            if self._leaving:
                raise Unavailable(f"the broker of {self.path} is shutting down", hint="Connect again")
            if name not in self._opened:
                self._require_exists(name)
                self.partitions.require_single(name)
                self._opened[name] = ManagedLedger(name, self._context)
            return self._opened[name]

    def snapshot(self, name: str) -> LogSnapshot:
        """Return the current snapshot of all committed entries of a managed ledger."""
        return self.ledger(name).snapshot

    def create_ledger(self, request: CreateLedger) -> ManagedLedger:
        """Create and return a managed ledger.

        An existing ledger is returned if `exist_ok` is set, and refused otherwise.
        """
        name = canonical_name(request.name)
        self._require_durability(request)
        policy = LedgerPolicy.properties(request, self._settings)
        require_properties(request.properties, (), name)
        if request.block_bytes:
            require_block_bytes(request.block_bytes)
        self.partitions.require_creatable(name)
        self.metadata.create_ledger(
            name, new_id(), {**request.properties, **policy, **_switches(request)}, exist_ok=request.exist_ok
        )
        return self.ledger(name)

    def _require_durability(self, request: CreateLedger) -> None:
        """Raise Refused if a ledger of a store in a bucket would acknowledge entries that are not in the bucket yet."""
        if request.durability != "fsync" and self._context.durability.in_bucket:
            raise Refused(
                f"ledger {request.name!r} has durability {request.durability!r}, a store in a bucket acknowledges "
                "nothing before it is in the bucket",
                hint="Leave the durability out",
            )

    def create_partitioned(self, request: CreateLedger) -> LedgerDescription:
        """Create and describe a ledger with partitions.

        With `exist_ok`, an existing ledger with the same number of partitions is described. Any other existing ledger
        is refused.
        """
        name = canonical_name(request.name)
        self._require_durability(request)
        require_partitions(request.partitions)
        require_properties(request.properties, (), name)
        properties = {**request.properties, **LedgerPolicy.properties(request, self._settings), **_switches(request)}
        if request.block_bytes:
            require_block_bytes(request.block_bytes)
        self.partitions.create(name, request.partitions, properties, exist_ok=request.exist_ok)
        return self.describe(name)

    def extend_partitioned(self, request: ChangePartitions) -> LedgerDescription:
        """Increase the number of partitions."""
        name = self._require_exists(canonical_name(request.name))
        require_partitions(request.partitions)
        self.partitions.extend(name, request.partitions)
        return self.describe(name)

    def delete_ledger(self, name: str) -> None:
        """Delete a managed ledger with its partitions, cursors, schemas and files. The ledger may be damaged.

        The records are deleted first, in one transaction, and then the files.
        """
        name = canonical_name(name)
        self._require_exists(name)
        for log in self.logs(name):
            with suppress(LedgerError, OSError):
                self.ledger(log)  # reads the newest batches of queries, unless the log is damaged
        with self._opening:
            self._require_exists(name)
            self.require_ours()
            names, batches = self.partitions.deleted_with(name), list[tuple[str, CommittedBatch]]()
            for log in names:
                opened = self._opened.pop(log, None)
                if opened is not None:
                    opened.close()
                    batches += [(log, batch) for batch in opened.committed_batches()]
                self.acknowledgements.forget(log)
            self._unlisted(self.metadata.delete_ledger(*names, unsaved=batches))

    def describe(self, name: str, *, lists: bool = True) -> LedgerDescription:
        """Describe a managed ledger with the version of its schema.

        With `lists`, also list its segments and cursors.
        """
        name = self._require_exists(canonical_name(name))
        count = self.partitions.count(name)
        if count:
            described = self.partitions.describe(
                name, [self.describe(part, lists=lists) for part in partition_names(name, count)]
            )
        else:
            described = msgspec.structs.replace(
                self.ledger(name).describe(lists=lists),
                cursors=self.cursors.names(name) if lists else [],
                schema_version=self.metadata.schema(name, -1)[0],
            )
        local = "os" if described.properties.get(DURABILITY) == "os" else "fsync"
        durability = "bucket" if self._context.durability.in_bucket else local
        return msgspec.structs.replace(described, durability=durability, upload_from=self.direct.upload_from)

    def get_schema(self, request: GetSchema) -> SchemaVersion:
        """Return the registered schema of a version, or the newest. Returns version -1 if no schema is registered."""
        name = self._require_exists(canonical_name(request.name))
        version, arrow_schema = self.metadata.schema(name, request.version)
        return SchemaVersion(name, version, arrow_schema)

    def register_schema(self, request: RegisterSchema) -> SchemaVersion:
        """Register a schema as the next version after `request.after`.

        If the ledger has a version after `request.after` already, register nothing and return the newest version.
        """
        name = self._require_exists(canonical_name(request.name))
        check = partial(require_successor, request.arrow_schema, name)
        return SchemaVersion(name, *self.metadata.register_schema(name, request.arrow_schema, request.after, check))

    def is_deleted(self) -> bool:
        """Return whether the store's files were deleted. Its directory may be there again, with other files."""
        return file_identity(self.path / METADATA) != self._identity

    def given_up(self) -> dict[str, LedgerError]:
        """Return the managed ledgers that accept no appends after an unexpected error, with the error of each."""
        return {log.name: log.given_up for log in self.opened() if log.given_up is not None}

    def settle(self) -> None:
        """Refuse new appends, complete the queued appends and seal open segments.

        The store stays locked and readable.
        """
        self.offloads.stop()
        self.upkeep.stop()
        with self._opening:
            self._leaving = True
            for ledger in self._opened.values():
                ledger.close()
        self.acknowledgements.close()

    def close(self) -> None:
        """Settle all ledgers, close the metadata and release the lock."""
        self.settle()
        self._executor.shutdown()
        self._sync_pool.close()
        self._opened.clear()
        self.metadata.close()
        self._lock_held.release()

    def _unlisted(self, ledger_ids: Collection[int]) -> None:
        self.files.delete(ledger_ids)
        if self._watch is not None:
            self._watch.forget(ledger_ids)

    def opened_ledger(self, name: str) -> ManagedLedger | None:
        """Return an open log by its full name, or None if it is not open."""
        return self._opened.get(name)

    def opened(self) -> list[ManagedLedger]:
        """Return the open logs, in the order of their opening."""
        return list(self._opened.copy().values())

    def _require_exists(self, name: str) -> str:
        if self.metadata.exists(name):
            return name
        near = nearest_ledger(name, self.names())
        hint = f"Did you mean {near!r}?" if near else "The store has no ledger with a similar name"
        raise NotFound(f"there is no ledger {short_name(name)!r} in the store at {self.path}", hint=hint)

    def _sweep(self, *, staging: bool) -> None:
        """Delete files that records list as unwanted.

        With `staging`, also delete expired staged parts, and expired records of batches for several ledgers.
        """
        self.files.sweep(self.metadata.ledger_ids(), self.metadata.next_ledger_id())
        if not staging:
            return
        retention_ms = self._settings.stagingRetentionSeconds * 1000
        self._staging.sweep_older(self._clock() - retention_ms)
        self.commits.forget_before(self._clock() - retention_ms)


def _switches(request: CreateLedger) -> dict[str, str]:
    """Return the properties of a new ledger for de-duplication and durability. A default value needs no property."""
    properties = {DEDUPLICATION_ENABLED: "true"} if request.deduplication else {}
    return {**properties, DURABILITY: request.durability} if request.durability != "fsync" else properties


def _unwatched(_before: LogSnapshot, _now: LogSnapshot) -> None:
    """Do nothing, for a store without an observer."""


def _left_by_create(path: Path) -> bool:
    """Return whether all files of the directory may come from a broker that died while it created the store."""
    names = {entry.name for entry in path.iterdir() if not entry.name.startswith((".probe-", "lock."))}
    return names <= {
        "lock",
        "spawn.lock",
        "supervisor.lock",
        "ledgers",
        "staging",
        "broker.log",
        "metadata.sqlite.new",
        "metadata.sqlite.new-journal",
    }
