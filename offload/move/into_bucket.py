"""Move of a store from a directory into a bucket.

    lock ─▶ recover ─▶ reserve ─▶ upload ─▶ log and snapshot ─▶ verify ─▶ complete ─▶ mark the directory ─▶ end

Rules
- The directory is the store until it is marked as moved. The bucket is the store after `end`. Between these two steps,
  neither can be served.
- If a run of the command finds a marked directory, it only does the last step, `end`.
- If the store has ledgers with durability `os`, the move is refused before it changes anything. Exception: with
  `convert` these ledgers become durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
from msgspec import UNSET

from pyspark_ledger.ledger.broker.bucket_home import limits_of, settings_of
from pyspark_ledger.ledger.bucket_store.durability import segment_name
from pyspark_ledger.ledger.bucket_store.home import BucketLimits
from pyspark_ledger.ledger.bucket_store.probe import probe_bucket
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.cursor.cursor_log import BLOCK_BYTES, recover_cursor_log
from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.names import short_name, without_partitions
from pyspark_ledger.ledger.objects.from_settings import home_bucket
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.ownership import StoreLock, machine_id
from pyspark_ledger.ledger.segment.recovery import recover_segment
from pyspark_ledger.ledger.segment.writer import data_path
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.ledger.transport.moved_store import METADATA, MovedStore, mark_moved, moved_store, require_not_moved
from pyspark_ledger.ledger.wal.fence import require_served
from pyspark_ledger.ledger.wal.manifest import Move
from pyspark_ledger.ledger.wal.requests import FoundManifest, read_manifest
from pyspark_ledger.offload.home_verification import verify_home
from pyspark_ledger.offload.move.arrival import ArrivingFile, complete, end, plan, require_free, reserve
from pyspark_ledger.offload.move.changed_settings import changed_settings
from pyspark_ledger.offload.move.records import (
    arriving_snapshot,
    copied_records,
    ledgers_without_syncs,
    records_of,
)
from pyspark_ledger.offload.move.segments import Progress, upload_segments
from pyspark_ledger.offload.move.summary import MoveSummary
from pyspark_ledger.offload.offloader import ObjectStoreOffloader, offloader_of


def move_into_bucket(
    source: Path, address: str, settings: Settings, *, convert: bool, progress: Progress
) -> MoveSummary:
    """Move the store of a directory into an empty prefix of a bucket, or continue an earlier run. No broker may run.

    `convert` makes ledgers with durability `os` durable. Raises Refused if the directory or the bucket cannot be moved.
    """
    wanted = settings_of(settings, address)
    with ExitStack() as opened:
        bucket, offloader = home_bucket(wanted), offloader_of(wanted)
        opened.callback(bucket.close)
        opened.callback(offloader.close)
        probe = partial(probe_bucket, encryption=wanted.managedLedgerOffloadEncryption)
        return IntoBucket(source, bucket, offloader, limits_of(wanted), progress, probe).run(convert=convert)


def _require_here(source: Path, address: str) -> None:
    """Raise NotFound if the directory has no store, and Refused if its store has moved to another place."""
    marked = moved_store(source)
    if marked is not None:
        if marked.address != address:
            require_not_moved(source)
    elif not (source / METADATA).exists():
        raise NotFound(f"there is no ledger store at {source}", hint="Correct the path of the source")


def _recover(source: Path, lock: StoreLock) -> None:
    """Open the store as a broker does. Recover and seal segments that a killed broker left open. Then close it."""
    opened = Store.open(source, settings=Settings(), clock=system_clock_ms, lock=lock.shared())
    try:
        for name in opened.metadata.names():
            if any(not row.listed().timestamp for row in opened.metadata.segments.of(name)):
                opened.ledger(name)
    finally:
        opened.close()


@dataclass(frozen=True, slots=True)
class IntoBucket:
    """Move of one store into a bucket. `run` is called once."""

    source: Path
    bucket: ObjectStore
    offloader: ObjectStoreOffloader
    limits: BucketLimits
    progress: Progress = lambda *_: None
    probe: Callable[[ObjectStore], None] = probe_bucket

    def run(self, *, convert: bool = False) -> MoveSummary:
        """Do all steps of the move that no earlier run of the command has done."""
        _require_here(self.source, self.bucket.address)
        lock = StoreLock.acquire(self.source)
        try:
            marked = moved_store(self.source)
            if marked is not None:
                return self._ended(marked)
            self._require_allowed(convert=convert)
            _recover(self.source, lock)
            return self._moved()
        finally:
            lock.release()

    def _require_allowed(self, *, convert: bool) -> None:
        """Raise Refused if the bucket is in use, or if ledgers have durability `os` and `convert` is not set."""
        records = records_of(self.source)
        require_free(self.bucket, records.store_record().store_id, self.limits.requests)
        without = ledgers_without_syncs(records)
        if without and not convert:
            raise Refused(
                f"ledgers with durability 'os' cannot be in a bucket: {', '.join(map(short_name, without))}",
                hint="Add --durability fsync: in the bucket, their entries are acknowledged when they are durable",
            )

    def _moved(self) -> MoveSummary:
        records, requests = records_of(self.source), self.limits.requests
        store_id, ledgers = records.store_record().store_id, len(without_partitions(records.names()))
        here = Move("arriving", str(self.source), machine_id())
        self.progress(None, "trying the bucket")
        reserved = reserve(self.bucket, store_id, here, requests, self.limits.window, self.probe)
        nonce = reserved.manifest.nonce
        attempts = upload_segments(self.source, records, nonce, self.offloader, self.progress)
        self.progress(None, "writing cursors and records")
        with copied_records(self.source) as copied:
            snapshot = arriving_snapshot(copied, attempts)
        files = _files(self.source, records)
        changed = changed_settings(self.source)
        planned = plan(self.bucket, reserved.manifest, files, snapshot, requests, system_clock_ms)
        planned = msgspec.structs.replace(planned, settings=changed)
        segments = self.offloader.store
        verified = verify_home(
            self.bucket,
            segments,
            None,
            lambda share, words: self.progress(share, f"verifying, {words}"),
            planned=planned,
        )
        completed = complete(self.bucket, reserved, planned, requests)
        mark_moved(self.source, MovedStore(self.bucket.address, store_id, nonce))
        end(self.bucket, completed, requests)
        return MoveSummary(self.bucket.address, ledgers, len(attempts), sum(verified.entries.values()))

    def _ended(self, marked: MovedStore) -> MoveSummary:
        """End a move whose directory is marked. Raises Refused if the bucket now has another store."""
        found = read_manifest(self.bucket, self.limits.requests)
        move = found.manifest.move
        if move is not UNSET and move.state != "arriving":
            require_served(found.manifest, self.bucket.address)
        self._require_same(found, marked)
        if found.manifest.move is not UNSET:
            end(self.bucket, found, self.limits.requests)
        return MoveSummary(self.bucket.address, 0, 0, 0)

    def _require_same(self, found: FoundManifest, marked: MovedStore) -> None:
        manifest = found.manifest
        same = manifest.store_id == marked.store_id
        if not same or (manifest.move is not UNSET and manifest.nonce != marked.nonce):
            raise Refused(
                f"{self.bucket.address} has store {manifest.store_id} of move {manifest.nonce}, the store of "
                f"{self.source} went there as {marked.store_id} by move {marked.nonce}",
                hint="Another store is at this address. Restore the objects of this store",
            )


def _files(source: Path, records: Metadata) -> Iterator[ArrivingFile]:
    """Yield the files whose bytes are put into the log: the logs of cursors, and staged parts."""
    store_id = records.store_record().store_id
    for ledger_id in sorted(records.cursors.ledger_ids()):
        path = data_path(source / "ledgers", ledger_id)
        if recover_cursor_log(source / "ledgers", ledger_id, store_id) is None:
            raise Corrupt(f"{path} has no whole state of its cursor", hint="ledger verify names the cursor")
        sound = recover_segment(
            path, ledger_id, store_id=store_id, block_bytes=BLOCK_BYTES, first_row=0, describe=entry_traits
        )
        yield ArrivingFile(segment_name(ledger_id), path, sound.end_offset)
    for path in sorted((source / "staging").rglob("*.part")):
        yield ArrivingFile(str(path.relative_to(source)), path, path.stat().st_size)
