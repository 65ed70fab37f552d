"""Store in a bucket, as its broker opens it.

The broker takes the store over from an earlier broker (`ledger.wal.take_over`), and builds a local directory from the
bucket. Then it opens the directory as it opens a local store. The *collector* deletes old objects of the write-ahead
log. The *manifest* is the object that names the owner of the store. The *epoch* in the manifest is a number that each
new broker raises. A *claim* is an empty log object. The new broker puts claims into all places that a late put of the
earlier broker could reach.

    manifest ─▶ epoch + 1 ─▶ snapshot and log ─▶ directory ─▶ claims ─▶ write-ahead log ─▶ Store ─▶ collector

Rules
- The broker takes the lock of the directory before it empties the directory.
- If the write-ahead log fails, `on_lost` is called once with the error. Then the broker must exit.
- `close` seals no segment. Reason: every acknowledged entry is in the bucket, so the next broker can append to the open
  segments.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.bucket_store.builder import Builder
from pyspark_ledger.ledger.bucket_store.collector import CollectedLog, Collector, CollectorLimits
from pyspark_ledger.ledger.bucket_store.durability import BucketDurability, segment_name
from pyspark_ledger.ledger.bucket_store.live_files import LiveFile
from pyspark_ledger.ledger.bucket_store.local_cache import LocalCache
from pyspark_ledger.ledger.bucket_store.manifest_holder import ManifestHolder
from pyspark_ledger.ledger.bucket_store.snapshots import read_snapshot, snapshot_of
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.cursor.cursor_log import BLOCK_BYTES as CURSOR_BLOCK_BYTES
from pyspark_ledger.ledger.database.changed_rows import encode_rows
from pyspark_ledger.ledger.errors import AlreadyExists, Corrupt, Fenced, LedgerError, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.metadata.segment_records import SegmentRecord
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.ownership import StoreLock, host_identity
from pyspark_ledger.ledger.segment.scan import require_entries
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.ledger.transport.bucket_discovery import BrokerSecret, put_secret
from pyspark_ledger.ledger.wal.bucket import log_key
from pyspark_ledger.ledger.wal.fence import require_epoch
from pyspark_ledger.ledger.wal.log_object import WalRange
from pyspark_ledger.ledger.wal.manifest import BrokerAddress
from pyspark_ledger.ledger.wal.requests import FoundManifest, RequestLimits, read_manifest
from pyspark_ledger.ledger.wal.take_over import TakeOver, identity_of
from pyspark_ledger.ledger.wal.writer import WalWriter

_CARRIED_AT_ONCE = 256
_PIECES_OF_OBJECT = 8
_SETTINGS_BYTES_MAX = 32 * 1024  # half of the largest manifest
_CHECK_MS = 1_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BucketLimits:
    """Limits of a store in a bucket. `window` is the maximum number of log objects that are put at the same time.

    `cache_bytes` is the maximum size of the local segments. 0 means a share of the disk.
    """

    requests: RequestLimits = field(default_factory=RequestLimits)
    collector: CollectorLimits = field(default_factory=CollectorLimits)
    window: int = 8
    cache_bytes: int = 0


class BucketStore:
    """Open store in a bucket. Its attribute `store` is used like the store of a local directory."""

    def __init__(
        self,
        bucket: ObjectStore,
        directory: Path,
        found: FoundManifest,
        clock: Clock,
        limits: BucketLimits,
        on_lost: Callable[[LedgerError], None],
        *,
        new_id: str = "",
        is_restored: bool = False,
        **options: Any,
    ) -> None:
        """Take over the store with the manifest `found`, and open it. `options` are passed to `Store.open`.

        With `new_id`, the store is a copy of another prefix, and gets this id. `is_restored`: the store was moved or
        restored. Raises Unavailable if another broker takes the store over at the same time.
        """
        disk.make_directory(directory)
        lock = StoreLock.acquire(directory)
        try:
            taking = TakeOver(bucket, uuid.uuid4(), limits.requests, clock)
            self._taken = _raised(taking, found, limits.window, new_id)
            builder, rows = _built(bucket, directory, taking, self._taken, limits.requests, is_restored=is_restored)
            self.wal = WalWriter(
                bucket,
                identity_of(self._taken, taking.first_number),
                self._taken.manifest.window,
                limits.requests,
                clock,
                on_lost,
            )
        except BaseException:
            lock.release()
            raise
        self._directory, self._bucket, self._requests = directory, bucket, limits.requests
        piece_bytes = limits.requests.object_bytes // _PIECES_OF_OBJECT
        self._durability = BucketDurability(self.wal, builder.files, builder.records_end, piece_bytes)
        try:
            if rows:
                self._durability.replicate(rows)
            self.store = Store.open(directory, clock=clock, durability=self._durability, lock=lock, **options)
        except BaseException:
            self.wal.close()
            lock.release()
            raise
        self.manifest = ManifestHolder(bucket, self._taken, limits.requests, lambda: self.wal.end)
        self.collector = Collector(
            bucket,
            self.manifest,
            builder.files,
            self._collected(builder.applied_bytes),
            limits.collector,
            limits.requests,
            clock,
        )

        self.cache = LocalCache(
            self.store,
            bucket.address,
            limits.cache_bytes,
            written=lambda: self.wal.bytes,
            roll_over=lambda ledger_id: self._roll_over(segment_name(ledger_id)),
            patience_ms=limits.requests.deadline_ms,
        )
        self._durability.room = self.cache.wait_for_room

    def begin(self, broker: BrokerAddress, secret: BrokerSecret | None = None) -> None:
        """Write the broker's address to the manifest, where clients find it, and start the collector.

        The secret is put before the manifest. So a client that reads the address also finds the secret.
        """
        try:
            if secret is not None:
                key = put_secret(self._bucket, self.manifest.manifest, secret, self._requests)
                broker = msgspec.structs.replace(broker, secret=key)
            self.manifest.change(broker=broker)
        except Fenced as fenced:
            self.wal.fail(fenced)
            raise
        self.collector.start()
        self.cache.start()

    def keep_settings(self, settings: Mapping[str, int | str]) -> None:
        """Write the settings that a client changed to the manifest, so that later brokers use them too."""
        size = len(msgspec.json.encode(settings))
        if size > _SETTINGS_BYTES_MAX:
            raise Refused(
                f"the changed settings have {size} bytes, at most {_SETTINGS_BYTES_MAX} are allowed in the manifest",
                hint="Reset some of them, or set them in the broker's file",
            )
        try:
            self.manifest.change(settings=dict(settings) or msgspec.UNSET)
        except Fenced as fenced:
            self.wal.fail(fenced)
            raise

    def check_fenced(self) -> None:
        """End the log if another broker has taken the store over.

        If the bucket cannot be reached, only log a warning.
        """
        requests = replace(self._requests, deadline_ms=_CHECK_MS, refused_ms=_CHECK_MS)
        try:
            require_epoch(
                read_manifest(self._bucket, requests).manifest, self._taken.manifest.epoch, self._bucket.address
            )
        except Fenced as fenced:
            self.wal.fail(fenced)
        except LedgerError as error:
            _log.warning("it is unknown whether another broker has taken the store over: %s", error)

    def settle(self) -> None:
        """Accept no further appends, and complete the queued appends."""
        self.cache.stop()
        self.collector.stop()
        self.store.settle()

    def close(self) -> None:
        """Wait until the queued work is acknowledged, release the store, and remove the broker from the manifest.

        The manifest then states the end of the log. So the loss of any object after an orderly end is noticed.
        """
        self.settle()
        self.store.close()
        self.wal.close()
        manifest = self.manifest.manifest
        is_stated = manifest.broker is None and manifest.acknowledged == self.wal.end
        if is_stated or self.wal.failed is not None:
            return
        try:
            self.manifest.change(broker=None)
        except Fenced as fenced:
            self.wal.fail(fenced)
        except LedgerError as error:
            _log.warning("the manifest still names this broker, so the next broker will wait for it: %s", error)

    def _collected(self, live_bytes: int) -> CollectedLog:
        wal = self.wal
        return CollectedLog(
            end=lambda: wal.end,
            needed=lambda: wal.needed,
            size=lambda: live_bytes + wal.bytes,
            snapshot=self._snapshot,
            needed_files=self._needed_files,
            carry=self._carry,
            roll_over=self._roll_over,
            fail=wal.fail,
        )

    def _snapshot(self) -> tuple[bytes, int]:
        metadata = self.store.metadata
        return metadata.read_at_rest(lambda c: (snapshot_of(c), self._durability.records_from))

    def _needed_files(self) -> set[str]:
        metadata = self.store.metadata
        made = (
            metadata.unwanted_files.made()
        )  # read first, because an id moves from this list to one of the next two lists
        ids = made | metadata.segments.only_local() | metadata.cursors.ledger_ids()
        staged = (path for path in (self._directory / "staging").rglob("*.part"))
        return {*map(segment_name, ids), *(str(path.relative_to(self._directory)) for path in staged)}

    def _carry(self, files: Mapping[str, LiveFile]) -> dict[str, int]:
        numbers: dict[str, int] = {}
        names = list(files)
        for at in range(0, len(names), _CARRIED_AT_ONCE):
            with ExitStack() as opened:
                places = {}
                for name in names[at : at + _CARRIED_AT_ONCE]:
                    with suppress(NotFound):  # the file was deleted in the meantime
                        fd = opened.enter_context(disk.opened(self._directory / name))
                        places[name] = self._begin_carry(name, fd, files[name])
                numbers |= {name: place.result().first for name, place in places.items()}
        return numbers

    def _begin_carry(self, name: str, fd: int, file: LiveFile) -> Future[WalRange]:
        found = self._segment_of(name)
        row = None if found is None else found[1]
        sealed_bytes = 0 if row is None else row.file_bytes
        if name.startswith("ledgers/"):
            self._require_sound(name, fd, row, sealed_bytes or file.length)
        return self._durability.carry(name, fd, sealed_bytes)

    def _require_sound(self, name: str, fd: int, row: SegmentRecord | None, length: int) -> None:
        """End the broker if its local file is damaged. The next broker builds the file again, from the log."""
        form = (row.block_bytes, row.first_row) if row is not None else (CURSOR_BLOCK_BYTES, 0)
        try:
            with disk.mapping(fd) as data:
                require_entries(data[:length], self._directory / name, *form, entry_traits)
        except Corrupt as damage:
            self.wal.fail(Unavailable(f"a local file differs from the log: {damage.message}", hint="Connect again"))
            raise

    def _segment_of(self, name: str) -> tuple[str, SegmentRecord] | None:
        """Return the managed ledger and the record of a file that is a listed segment."""
        stem, segments = Path(name).stem, self.store.metadata.segments
        owner = segments.owner(int(stem)) if stem.isdecimal() else None
        row = None if owner is None else segments.get(owner, int(stem))
        return None if owner is None or row is None else (owner, row)

    def _roll_over(self, name: str) -> bool:
        found = self._segment_of(name)
        if found is None:
            return False
        owner, row = found
        try:
            if not row.listed().timestamp:
                self.store.ledger(owner).roll_over()
        except LedgerError as error:  # the collector continues with the other files
            _log.warning("%s cannot be sealed, so the objects with its bytes cannot be deleted: %s", name, error)
        return True


def _raised(taking: TakeOver, found: FoundManifest, window: int, new_id: str) -> FoundManifest:
    try:
        return taking.raise_epoch(found, window, new_id=new_id)
    except AlreadyExists as error:
        raise Unavailable(f"another broker takes the store over: {error.message}", hint="Connect to it") from None


def _built(
    bucket: ObjectStore,
    directory: Path,
    taking: TakeOver,
    taken: FoundManifest,
    limits: RequestLimits,
    *,
    is_restored: bool,
) -> tuple[Builder, bytes]:
    """Build the directory. Return its builder and the encoded rows that the caller appends to the log."""
    name = taken.manifest.snapshot
    if name is None:
        raise Corrupt(f"the manifest of {bucket.address} names no snapshot", hint="Restore an older version of it")
    builder = Builder(directory, name.records_from)
    builder.begin(read_snapshot(bucket, name, limits))
    for batch in taking.batches():
        builder.apply(batch, f"{log_key(batch.place.last)} of {bucket.address}")
    rows = builder.finish(host_identity(directory), taken.manifest, bucket.address, is_restored=is_restored)
    return builder, encode_rows(rows) if rows else b""
