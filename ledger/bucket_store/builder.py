"""Builder of a store's local directory from its bucket.

The records (rows of the metadata) come from the snapshot and the write-ahead log. The files come from the log.

    snapshot ──▶ metadata.sqlite ◀── records of the log that the snapshot lacks
    log      ──▶ ledgers/<id>.ledger, staging/…      the bytes of each file, at their offsets

Rules
- The builder empties the directory first. Only the broker's log lines (`broker.log`), locks and credentials stay.
- The builder deletes a built segment file in two cases: the segment is uploaded, or the metadata has no such segment.
- If a segment is sealed and not uploaded, the builder completes its file, and compares the file with the record.
- The file of an open segment stays open: the broker will append to it.
- A view of the store can `resume` a finished builder, to apply later batches and to finish again. The file of a sealed
  segment is completed once.
- The builder changes two kinds of records. The store's record gets the name of this host, and the id in the manifest.
  The record of an uploaded segment gets the note that this directory has no copy. It also gets the bucket and prefix of
  the store, because all objects of a copied prefix are copies too. The caller appends the changed records to the log.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.bucket_store.durability import segment_name
from pyspark_ledger.ledger.bucket_store.live_files import LiveFiles
from pyspark_ledger.ledger.bucket_store.log_places import LogPlaces
from pyspark_ledger.ledger.database.changed_rows import ChangedRow, RowCapture, apply_rows, decode_rows, inverse_rows
from pyspark_ledger.ledger.database.commit_number import CommitNumber, number_path
from pyspark_ledger.ledger.database.record_tables import CheckedConnection, connect
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.metadata.cursor_records import own_ledgers_of
from pyspark_ledger.ledger.metadata.offload_records import Driver, OffloadAttempt
from pyspark_ledger.ledger.metadata.owner import SKIPPED_IDS
from pyspark_ledger.ledger.metadata.records import TABLES
from pyspark_ledger.ledger.metadata.segment_records import LedgerInfo
from pyspark_ledger.ledger.ownership import host_parts, host_text
from pyspark_ledger.ledger.segment.recovery import recover_segment, seal_recovered
from pyspark_ledger.ledger.segment.writer import data_path
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.ledger.transport.bucket_discovery import AUTHORITY_FILE, OWN_CERTIFICATES, TOKEN_FILE
from pyspark_ledger.ledger.wal.log_object import RECORDS, WalPart
from pyspark_ledger.ledger.wal.manifest import StoreManifest
from pyspark_ledger.ledger.wal.reader import Batch

_OF_PROCESSES = ("broker.log", "broker.log.old", "lock", "spawn.lock", "supervisor.lock")
KEPT = frozenset([*_OF_PROCESSES, OWN_CERTIFICATES, TOKEN_FILE, AUTHORITY_FILE])
_FOLDERS = ("ledgers", "staging")


@dataclass
class Builder:
    """Builder of one directory. Use: `begin`, `apply` for each batch, `finish`. For later batches, `resume` again."""

    directory: Path
    records_from: int
    files: LiveFiles = field(default_factory=LiveFiles)
    places: LogPlaces = field(default_factory=LogPlaces)
    """For each byte of a file, the log object that contains it."""
    records_end: int = 0
    """The number after the last object with records."""
    applied_bytes: int = 0
    """Payload bytes of all applied batches."""
    _connection: CheckedConnection | None = None
    _descriptors: dict[str, int] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)
    _completed: set[int] = field(default_factory=set)
    _own_rows: list[ChangedRow] = field(default_factory=list)

    def begin(self, metadata: bytes) -> None:
        """Empty the directory and write the records of the snapshot."""
        disk.make_directory(self.directory)
        for path in self.directory.iterdir():
            if path.name not in KEPT:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for name in _FOLDERS:
            disk.make_directory(self.directory / name)
        path = self._metadata_path
        with closing(os.fdopen(disk.create_file(path), "wb")) as file:
            file.write(metadata)
        self._connection = connect(path)
        self._connection.execute("BEGIN")
        self.records_end = self.records_from

    def resume(self) -> None:
        """Open the records of a finished builder again. Does nothing if they are open.

        The changes of `finish` are undone, because later batches change the records of the log. Staged parts are
        deleted, because only a broker needs them.
        """
        if self._connection is not None:
            return
        for name in [name for name in self._names if name.startswith("staging/")]:
            (self.directory / name).unlink()
            self._names.remove(name)
        self._connection = connect(self._metadata_path)
        self._connection.execute("BEGIN")
        apply_rows(self._connection, inverse_rows(self._own_rows), TABLES, str(self._metadata_path))

    def apply(self, batch: Batch, where: str) -> None:
        """Apply one batch of the log."""
        first, last = batch.place
        for (part, payload), place in zip(batch.parts, batch.places, strict=True):
            self.applied_bytes += part.length
            if part.kind == RECORDS:
                if last >= self.records_from:
                    apply_rows(self._records, decode_rows(payload, where), TABLES, where)
                    self.records_end = last + 1
                continue
            self._write(part, payload, where)
            self.files.record(part.file, first, part.offset + part.length)
            self.places.write(part.file, part.offset, part.length, place)

    def finish(
        self, host: str, manifest: StoreManifest, address: str, *, is_restored: bool = False
    ) -> list[ChangedRow]:
        """Complete files and records. Return the records that the builder changed.

        `manifest` is that of the store at `address`. It states the id of the store. `is_restored`: another history of
        the store may have used the next segment ids, as after a copy, so they are skipped.
        """
        for fd in self._descriptors.values():
            os.close(fd)
        self._descriptors.clear()
        connection = self._records
        needed = self._finish_segments(connection)
        unneeded = {name for name in self._names if name.startswith("ledgers/") and name not in needed}
        for name in unneeded:
            (self.directory / name).unlink()
        self._names -= unneeded
        self.files.keep(lambda: needed | {name for name in self._names if name.startswith("staging/")})
        self.places.keep(self._names)
        capture = RowCapture(connection, TABLES)
        if _put_identity(connection, host, manifest) or is_restored:
            connection.execute("UPDATE store_row SET next_ledger_id = next_ledger_id + ?", (SKIPPED_IDS,))
        _forget_local_copies(connection, address)
        self._own_rows = rows = capture.take()
        commits = int(connection.execute("SELECT commits FROM store").fetchone()[0])
        connection.execute("COMMIT")
        connection.close()
        self._connection = None
        CommitNumber(number_path(self._metadata_path), commits).close()
        return rows

    def close(self) -> None:
        """Close the files of a builder that did not finish.

        Reason: the next builder uses the same directory, and must not find an SQLite file that is still open.
        """
        for fd in self._descriptors.values():
            os.close(fd)
        self._descriptors.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _metadata_path(self) -> Path:
        return self.directory / "metadata.sqlite"

    @property
    def _records(self) -> CheckedConnection:
        assert self._connection is not None, "begin comes first"  # noqa: S101 — order of calls
        return self._connection

    def _write(self, part: WalPart, payload: memoryview, where: str) -> None:
        fd = self._descriptors.get(part.file)
        if fd is None:
            fd = self._descriptors[part.file] = self._created(part.file, where)
        disk.write_all(fd, [payload], part.offset, self.directory / part.file)
        self._names.add(part.file)

    def _created(self, name: str, where: str) -> int:
        parts = PurePosixPath(name).parts
        if parts[0] not in _FOLDERS or ".." in parts or len(parts) < 2:
            raise Corrupt(f"{where} has bytes of file {name!r}, expected a file below {' or '.join(_FOLDERS)}")
        path = self.directory / name
        disk.make_directory(path.parent)
        if len(self._descriptors) >= _OPEN_MAX:
            oldest = next(iter(self._descriptors))
            os.close(self._descriptors.pop(oldest))
        return disk.open_file(path, writable=True) if path.exists() else disk.create_file(path)

    def _finish_segments(self, connection: sqlite3.Connection) -> set[str]:
        """Complete the files of segments with a sealed record. Return the names of all needed segment files."""
        needed = set()
        store_id = str(connection.execute("SELECT id FROM store").fetchone()[0])
        names = [row[0] for row in connection.execute("SELECT name FROM ledger")]
        cursors = {ledger_id for name in names for ledger_id in own_ledgers_of(connection, name)}
        needed |= {segment_name(ledger_id) for ledger_id in cursors if ledger_id >= 0}
        query = "SELECT ledger_id, block_bytes, first_row, file_bytes, info FROM segment"
        for ledger_id, block_bytes, first_row, file_bytes, info in connection.execute(query).fetchall():
            listed = LedgerInfo.FromString(info)
            attempt = OffloadAttempt.of(listed)
            if attempt is not None and attempt.complete:
                continue
            needed.add(segment_name(ledger_id))
            if listed.timestamp and ledger_id not in self._completed:
                self._completed.add(ledger_id)
                path = data_path(self.directory / "ledgers", ledger_id)
                _seal(path, listed, store_id, block_bytes, first_row, file_bytes)
        return needed


_OPEN_MAX = 512


def _seal(path: Path, listed: LedgerInfo, store_id: str, block_bytes: int, first_row: int, file_bytes: int) -> None:
    """Complete and seal the file of a segment with a sealed record. Raises Corrupt if the file differs from the record.

    Bytes after the sealed end are removed. They come from a broker whose local disk failed: it wrote them to the log,
    but never acknowledged their entries.
    """
    if path.exists() and path.stat().st_size > file_bytes:
        os.truncate(path, file_bytes)
    recovered = recover_segment(
        path,
        listed.ledgerId,
        store_id=store_id,
        block_bytes=block_bytes,
        first_row=first_row,
        describe=entry_traits,
        built=True,
    )
    sealed = seal_recovered(recovered)
    found, stated = (sealed.entries, sealed.size_bytes, sealed.file_bytes), (listed.entries, listed.size, file_bytes)
    if found != stated:
        raise Corrupt(
            f"{path} was built from the log with (entries, bytes, file bytes) {found}, its record states {stated}",
            hint="Objects of the log are damaged or lost; ledger verify names them",
        )


def _put_identity(connection: sqlite3.Connection, host: str, manifest: StoreManifest) -> bool:
    """Write the id in the manifest, the former ids and the host to the record of the store.

    Return whether the store is a copy that gets a new id.
    """
    before = connection.execute("SELECT id, host FROM store").fetchone()
    _, recorded = host_parts(before[1])
    former = [*recorded, *(store_id for store_id in manifest.former_ids if store_id not in recorded)]
    after = (manifest.store_id, host_text(host, former))
    if after != before:
        connection.execute("UPDATE store_row SET id = ?, host = ?", after)
    return bool(manifest.store_id != before[0])


def _forget_local_copies(connection: sqlite3.Connection, address: str) -> None:
    """Record that uploaded segments have no local copy in this directory, and that their objects are at `address`."""
    for ledger_id, info in connection.execute("SELECT ledger_id, info FROM segment").fetchall():
        listed = LedgerInfo.FromString(info)
        attempt = OffloadAttempt.of(listed)
        if attempt is None:
            continue
        here = replace(attempt, driver=_driver_at(attempt.driver, address))
        here = here.without_local() if attempt.complete else here
        if here != attempt:
            here.put(listed)
            values = (listed.SerializeToString(), ledger_id)
            connection.execute("UPDATE segment_row SET info = ? WHERE ledger_id = ?", values)
    for attempt_id, encoded in connection.execute("SELECT attempt, driver FROM unwanted").fetchall():
        driver = msgspec.json.decode(encoded, type=Driver)
        if (there := _driver_at(driver, address)) != driver:
            values = (msgspec.json.encode(there), attempt_id)
            connection.execute("UPDATE unwanted_row SET driver = ? WHERE attempt = ?", values)


def _driver_at(driver: Driver, address: str) -> Driver:
    """Return the location of an object in the store at `address`, which has all of its segments below its prefix."""
    place = f"{address}/segments"
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    there = {"bucket": bucket, "prefix": prefix} if "bucket" in driver.properties else {"address": place}
    return Driver(driver.name, {**driver.properties, **there})
