"""Move of a store from a bucket back to a directory.

    lock ─▶ take over with `leaving` ─▶ build ─▶ download ─▶ sync ─▶ `left` ─▶ metadata in place

`leaving` and `left` are states of the move in the bucket's manifest, the object that names the broker of the store.

Rules
- From the take-over on, no broker serves the bucket. `ledger serve --take-over broker` cancels the move.
- After the move, the directory needs nothing from the bucket. Exception: with `keep`, uploaded segments stay in the
  bucket, and are read from there.
- If a run of the command finds the state `left` and the nonce of its own directory, it only moves the metadata into
  place.
"""

from __future__ import annotations

import shutil
import sqlite3
import uuid
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import UnsetType

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.broker.bucket_home import limits_of, settings_of, unserved
from pyspark_ledger.ledger.bucket_store.builder import Builder
from pyspark_ledger.ledger.bucket_store.home import BucketLimits
from pyspark_ledger.ledger.bucket_store.snapshots import read_snapshot
from pyspark_ledger.ledger.bucket_store.verification import UploadedSegment, VerifiedStore, verify_built
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.database.record_tables import connect
from pyspark_ledger.ledger.errors import AlreadyExists, Corrupt, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.names import without_partitions
from pyspark_ledger.ledger.ownership import StoreLock, host_identity, machine_id
from pyspark_ledger.ledger.segment.index import write_sealed
from pyspark_ledger.ledger.segment.verification import verify_segment
from pyspark_ledger.ledger.segment.writer import data_path
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.tiering.direct_segment import DirectSegment
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.ledger.transport.moved_store import METADATA, MovedStore
from pyspark_ledger.ledger.wal.bucket import log_key
from pyspark_ledger.ledger.wal.fence import require_served
from pyspark_ledger.ledger.wal.manifest import Move
from pyspark_ledger.ledger.wal.requests import FoundManifest, read_manifest, replace_manifest
from pyspark_ledger.ledger.wal.take_over import TakeOver
from pyspark_ledger.offload.format.object_names import ObjectKey
from pyspark_ledger.offload.home_bucket import home_bucket
from pyspark_ledger.offload.move.arriving_directory import ArrivingDirectory
from pyspark_ledger.offload.move.changed_settings import write_changed_settings
from pyspark_ledger.offload.move.records import leaving_records
from pyspark_ledger.offload.move.segments import Progress
from pyspark_ledger.offload.move.summary import MoveSummary
from pyspark_ledger.offload.offloader import s3_options_of
from pyspark_ledger.offload.storage.factory import open_object_store
from pyspark_ledger.offload.storage.object_store import ObjectStore
from pyspark_ledger.offload.upload import retry
from pyspark_ledger.offload.verification import download_object, download_stamped


def move_into_directory(
    address: str, target: Path, settings: Settings, *, keep: bool = False, progress: Progress = lambda *_: None
) -> MoveSummary:
    """Move the store of a bucket to an empty directory, or continue an earlier run.

    With `keep`, uploaded segments stay in the bucket. Raises Refused if another broker serves the store, or if the
    directory is in use.
    """
    wanted = settings_of(settings, address)
    with ExitStack() as opened:
        bucket = home_bucket(wanted)
        segments = open_object_store(f"{address}/segments", s3_options_of(wanted))
        opened.callback(bucket.close)
        opened.callback(segments.close)
        move = IntoDirectory(
            bucket, segments, target, limits_of(wanted), wanted.bucketTakeoverMs, keep=keep, progress=progress
        )
        return move.run()


@dataclass(frozen=True, slots=True)
class IntoDirectory:
    """Move of one store to a directory. `run` is called once."""

    bucket: ObjectStore
    segments: ObjectStore
    target: Path
    limits: BucketLimits
    takeover_ms: int
    keep: bool = False
    progress: Progress = lambda *_: None

    def run(self) -> MoveSummary:
        """Do all steps of the move that no earlier run of the command has done."""
        found = self._manifest()
        directory = ArrivingDirectory(self.target)
        try:
            directory.require_free(self.bucket.address)
            self._require_movable(found, directory)
            disk.make_directory(self.target)
            disk.require_suitable(self.target)
            lock = StoreLock.acquire(self.target)
        except OSError as error:
            raise Refused(f"{self.target} cannot be used: {error}", hint="Choose another directory") from error
        try:
            if directory.has_store or self._has_left(found, directory):
                directory.end()
                return MoveSummary(str(self.target), 0, 0, 0)
            return self._moved(found, directory)
        except (OSError, sqlite3.Error) as error:
            raise Unavailable(
                f"{self.target} cannot be written: {error}; the move of {self.bucket.address} is not complete",
                hint="Free space and run the command again. Until then the bucket is not served. To give the move up: "
                f"ledger serve --take-over broker --store {self.bucket.address}",
            ) from error
        finally:
            lock.release()

    def _manifest(self) -> FoundManifest:
        try:
            return read_manifest(self.bucket, self.limits.requests)
        except NotFound:
            raise NotFound(f"there is no ledger store at {self.bucket.address}", hint="Correct the address") from None

    def _require_movable(self, found: FoundManifest, directory: ArrivingDirectory) -> None:
        """Raise Refused if the store is not in the bucket, moves to another directory, or does not fit on the disk."""
        move, note = found.manifest.move, directory.note()
        if note is not None and note.store_id != found.manifest.store_id:
            raise Refused(
                f"{self.target} waits for store {note.store_id}, {self.bucket.address} has {found.manifest.store_id}",
                hint="Choose an empty directory",
            )
        if isinstance(move, UnsetType) or self._has_left(found, directory) or directory.has_store:
            pass
        elif move != self._move("leaving"):
            require_served(found.manifest, self.bucket.address)
        prefix = "wal/" if self.keep else ""
        needed = sum(listed.size for listed in self.bucket.objects(prefix))
        free = shutil.disk_usage(next(path for path in (self.target, *self.target.parents) if path.exists())).free
        there = sum(file.stat().st_size for file in self.target.rglob("*.ledger"))
        if needed > free + there:
            raise Refused(
                f"{self.bucket.address} has {needed:,} bytes, the disk of {self.target} has {free:,} bytes free",
                hint="Free space, or choose a directory on a larger disk",
            )

    def _has_left(self, found: FoundManifest, directory: ArrivingDirectory) -> bool:
        note = directory.note()
        return found.manifest.move == self._move("left") and note is not None and note.nonce == found.manifest.nonce

    def _moved(self, found: FoundManifest, directory: ArrivingDirectory) -> MoveSummary:
        requests = self.limits.requests
        if isinstance(found.manifest.move, UnsetType):
            found = unserved(self.bucket, found, requests, self.takeover_ms)
        note = MovedStore(self.bucket.address, found.manifest.store_id, "")
        directory.write_note(note)
        taken, verified = self._built(found, directory)
        entries = sum(verified.entries.values())
        uploaded = [] if self.keep else verified.uploaded
        for number, segment in enumerate(verified.uploaded):
            entries += segment.record.listed().entries
            if not self.keep:
                self.progress(number / len(uploaded), f"segment {number + 1:,} of {len(uploaded):,}")
                self._download(segment, verified, directory.segment_folder())
        self.progress(None, "writing records")
        with closing(connect(directory.built / METADATA)) as connection:
            needed = leaving_records(connection, directory.built, keep=self.keep)
        write_changed_settings(self.target, taken.manifest.settings)
        names = verified.records.names()
        directory.settle(needed | verified.records.cursors.ledger_ids())
        directory.write_note(msgspec.structs.replace(note, nonce=taken.manifest.nonce))
        self._put_left(taken)
        directory.end()
        return MoveSummary(str(self.target), len(without_partitions(names)), len(uploaded), entries)

    def _put_left(self, taken: FoundManifest) -> None:
        """Put the manifest with the state `left`. Raises Refused if another process has taken the store over."""
        manifest = taken.manifest
        after = msgspec.structs.replace(manifest, revision=manifest.revision + 1, move=self._move("left"))
        try:
            replace_manifest(self.bucket, taken, after, self.limits.requests)
        except AlreadyExists:
            raise Refused(
                f"the store {self.bucket.address} was taken over during its move to {self.target}",
                hint="The store stays in the bucket. Stop its broker, and run the command again",
            ) from None

    def _move(self, state: Literal["leaving", "left"]) -> Move:
        return Move(state, str(self.target), machine_id())

    def _built(self, found: FoundManifest, directory: ArrivingDirectory) -> tuple[FoundManifest, VerifiedStore]:
        """Take the store over, build its records and the files of its log, and verify both."""
        if found.manifest.snapshot is None:
            raise Corrupt(f"the manifest of {self.bucket.address} names no snapshot")
        requests = self.limits.requests
        taking = TakeOver(self.bucket, uuid.uuid4(), requests, system_clock_ms)
        try:
            taken = taking.raise_epoch(found, self.limits.window, self._move("leaving"))
        except AlreadyExists as error:
            raise Unavailable(
                f"another process takes {self.bucket.address} over: {error.message}", hint="Run the command again"
            ) from None
        with closing(Builder(directory.built, found.manifest.snapshot.records_from)) as builder:
            builder.begin(read_snapshot(self.bucket, found.manifest.snapshot, requests))
            for batch in taking.batches():
                builder.apply(batch, f"{log_key(batch.place.last)} of {self.bucket.address}")
                self.progress(None, f"{batch.place.last - taken.manifest.first + 1:,} objects of the log")
            builder.finish(host_identity(self.target), taken.manifest, self.bucket.address)
        return taken, verify_built(directory.built, 0)

    def _download(self, segment: UploadedSegment, verified: VerifiedStore, folder: Path) -> None:
        """Download the data of a segment if its file is missing. Compare it with its record, and write its index."""
        row, listed = segment.record, segment.record.listed()
        path, key = data_path(folder, row.ledger_id), ObjectKey(segment.attempt.attempt, row.ledger_id)
        where = f"{self.segments.address}/{key.data_name}"
        if not path.exists():
            size, direct = retry(lambda: self.segments.head(key.data_name)).size, DirectSegment.of(row)
            if size != row.file_bytes:
                raise Refused(
                    f"{where} has {size} bytes, its record states {row.file_bytes}: it was transformed for its upload",
                    hint="Add --keep-offloaded: such a segment can be read only where it is",
                )
            scratch = path.with_suffix(".download")
            scratch.unlink(missing_ok=True)
            if direct is None:
                download_object(self.segments, key, size, scratch)
            else:
                download_stamped(self.segments, key, direct, scratch)
            with disk.opened(scratch, writable=True) as fd:
                disk.sync_data(fd)
            scratch.rename(path)
        try:
            index = verify_segment(
                path,
                row.ledger_id,
                entries=listed.entries,
                file_bytes=row.file_bytes,
                first_row=row.first_row,
                describe=entry_traits,
            )
        except Corrupt as damage:
            path.unlink()  # the next run downloads the object again
            raise Corrupt(f"{where}: {damage.message}", hint="Run the command again") from None
        store_id = verified.records.store_record().store_id
        write_sealed(
            path.with_suffix(".index"), index, store_id=store_id, block_bytes=row.block_bytes, file_bytes=row.file_bytes
        )
