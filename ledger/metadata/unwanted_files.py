"""Files and objects of segments that must be deleted, as records of the metadata.

A *segment* is one file of a ledger, with an index file beside it. Its id is `ledger_id` in the code, as in Pulsar.
Segment files are deleted only by this module, and only if a record says so. So lost metadata cannot cause a deletion.

    unwanted_file   segment id, and one of: `all` (all its files), `data` (its data file alone), `made` (its files, if
                    no ledger lists the segment yet)

Rules for files
- The transaction that removes a segment or its local copy inserts a record. Then the files are deleted, the directory
  is synced, and the record is deleted. After a crash the next start repeats these steps.
- The transaction that allocates a segment id inserts the record `made`. The transaction that lists the segment deletes
  this record. After a crash between the two, the next start deletes the files, unless they have an acknowledged entry.
- A file without a record is kept, and its name is logged. No new file gets its name, because its id is not used again.

    unwanted        attempt (UUID), segment id, name of the managed ledger, JSON of the driver (the objects' location)

Rules for objects in object storage
- An *attempt* is one upload of a segment. The table lists the attempts whose objects must be deleted.
- The transaction that removes an attempt from a segment's record inserts a row. Such a transaction trims the ledger,
  deletes the ledger, or records a new attempt.
- A sweep inserts rows for objects that no record names. It leaves out the objects of a commit in progress.
- A row is deleted after its objects. So a crash leaves no object that is not listed.
- The objects that the original of a copied store wrote are never listed (`OffloadAttempt.owner`).
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.database.database import MetadataFile, Records
from pyspark_ledger.ledger.database.record_tables import RecordTable
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, NotFound
from pyspark_ledger.ledger.metadata.offload_records import Driver, OffloadAttempt
from pyspark_ledger.ledger.segment.index import load_open
from pyspark_ledger.ledger.segment.writer import data_path, index_path

UNWANTED_FILE_TABLE = RecordTable("unwanted_file", ("ledger_id INTEGER PRIMARY KEY", "what TEXT NOT NULL"), rowid=True)
_MADE, _DATA, _ALL = "made", "data", "all"
_SUFFIXES = (".ledger", ".index", ".torn")
_log = logging.getLogger(__name__)


class UnwantedFileRecords(Records):
    """Records of unwanted files of a store. Any thread may call any method."""

    def all(self) -> dict[int, str]:
        """Return for each segment id with unwanted files which files are unwanted: `all`, `data` or `made`."""
        return dict(self._file.read(lambda c: c.execute("SELECT ledger_id, what FROM unwanted_file").fetchall()))

    def made(self) -> set[int]:
        """Return the ids that are allocated and not listed yet."""
        return {ledger_id for ledger_id, what in self.all().items() if what == _MADE}

    def remove(self, ledger_ids: Collection[int]) -> None:
        """Delete the records of segments after the deletion of their files."""
        rows = [(ledger_id,) for ledger_id in ledger_ids]
        if rows:
            self._file.change(lambda c: c.executemany("DELETE FROM unwanted_file_row WHERE ledger_id = ?", rows))


def put_made(c: sqlite3.Connection, ledger_id: int) -> None:
    """Record an allocated segment id that no ledger lists yet."""
    c.execute("INSERT INTO unwanted_file_row VALUES (?, ?)", (ledger_id, _MADE))


def put_unlisted(c: sqlite3.Connection, ledger_ids: Iterable[int]) -> None:
    """Record that all files of removed segments must be deleted."""
    rows = [(ledger_id, _ALL) for ledger_id in ledger_ids if ledger_id >= 0]
    c.executemany("INSERT OR REPLACE INTO unwanted_file_row VALUES (?, ?)", rows)


def put_listed(c: sqlite3.Connection, ledger_ids: Iterable[int]) -> None:
    """Delete the records of segments that a ledger now lists."""
    rows = [(ledger_id,) for ledger_id in ledger_ids if ledger_id >= 0]
    c.executemany("DELETE FROM unwanted_file_row WHERE ledger_id = ?", rows)


def put_remote(c: sqlite3.Connection, ledger_id: int) -> None:
    """Record that the data file of an offloaded segment must be deleted. Its index file stays."""
    c.execute("INSERT OR REPLACE INTO unwanted_file_row VALUES (?, ?)", (ledger_id, _DATA))


class UnwantedFiles:
    """Unwanted files of one store's segments. Any thread may call any method."""

    def __init__(self, directory: Path, records: UnwantedFileRecords) -> None:
        self._directory = directory
        self._records = records
        self._deleted: set[int] = set()
        self._lock = threading.Lock()

    def delete(self, ledger_ids: Collection[int]) -> None:
        """Delete the unwanted files of these segments. Called after the transaction that removed the segments."""
        unwanted = self._records.all() if ledger_ids else {}
        for ledger_id in ledger_ids:
            if unwanted.get(ledger_id, _MADE) != _MADE:
                self._unlink(ledger_id, unwanted[ledger_id])

    def sweep(self, listed: Collection[int], next_ledger_id: int) -> None:
        """Delete all unwanted files, and log the files without a record. Called before the store accepts writes.

        Raises Corrupt if a file has an id that was never allocated. Then no file is deleted.
        """
        unwanted = self._records.all()
        unknown = unknown_files(self._directory, listed, unwanted)
        require_allocated(unknown, self._directory, next_ledger_id)
        for ledger_id, paths in unknown.items():
            names = ", ".join(path.name for path in paths)
            _log.warning(
                "%s: no record lists segment %d, its files %s are kept; see ledger repair",
                self._directory,
                ledger_id,
                names,
            )
        for ledger_id in unwanted.keys() - unknown.keys():
            if unwanted[ledger_id] == _DATA or ledger_id not in listed:
                self._unlink(ledger_id, unwanted[ledger_id])
        self.forget_deleted()

    def forget_deleted(self) -> None:
        """Sync the directory, then delete the records of deleted files."""
        with self._lock:
            deleted, self._deleted = self._deleted, set()
        if deleted:
            disk.sync_directory(self._directory)
            self._records.remove(deleted)

    def _unlink(self, ledger_id: int, what: str) -> None:
        for path in [data_path(self._directory, ledger_id)] if what == _DATA else files_of(self._directory, ledger_id):
            path.unlink(missing_ok=True)
        with self._lock:
            self._deleted.add(ledger_id)


def files_of(directory: Path, ledger_id: int) -> list[Path]:
    """Return the paths of all files that a segment can have.

    They include files with bytes of incomplete writes (`.torn`), and incomplete copies (`.new`).
    """
    path = data_path(directory, ledger_id)
    return [path.with_suffix(suffix + new) for suffix in _SUFFIXES for new in ("", ".new")]


def holds_nothing(directory: Path, ledger_id: int) -> bool:
    """Return whether the files of an unsealed segment show that it has no acknowledged entry."""
    path = data_path(directory, ledger_id)
    try:
        return load_open(index_path(directory, ledger_id), ledger_id).acknowledged.entries == 0
    except LedgerError:
        # The index file cannot be read. It is created before the first byte of the data.
        return not path.exists() or not path.stat().st_size


def unknown_files(directory: Path, listed: Collection[int], unwanted: Mapping[int, str]) -> dict[int, list[Path]]:
    """Return the files without a record, by segment id.

    A file has no record if its segment is neither listed nor unwanted. A file with the record `made` is also returned
    if it has an acknowledged entry.
    """
    names: dict[str, list[str]] = {}
    for name in os.listdir(directory):  # noqa: PTH208 — only the names of thousands of files are needed
        names.setdefault(name.partition(".")[0], []).append(name)
    numbers = {int(stem) for stem in names if stem.isascii() and stem.isdecimal() and str(int(stem)) == stem}
    found = numbers - set(listed)
    unknown = [
        ledger_id
        for ledger_id in sorted(found)
        if ledger_id not in unwanted or (unwanted[ledger_id] == _MADE and not holds_nothing(directory, ledger_id))
    ]
    return {ledger_id: [directory / name for name in sorted(names[str(ledger_id)])] for ledger_id in unknown}


def require_allocated(unknown: Collection[int], directory: Path, next_ledger_id: int) -> None:
    """Raise Corrupt if a file has an id that was never allocated, because the metadata are older than the file."""
    never_allocated = [ledger_id for ledger_id in unknown if ledger_id >= next_ledger_id]
    if never_allocated:
        raise Corrupt(
            f"{data_path(directory, never_allocated[0])} has a segment id that the metadata never allocated: "
            f"the next id is {next_ledger_id}",
            hint="The metadata are older than the segments. Restore both from the same copy, or run ledger repair. "
            "No file was deleted",
        )


UNWANTED_TABLE = RecordTable(
    "unwanted",
    ("attempt TEXT PRIMARY KEY", "ledger_id INTEGER NOT NULL", "ledger TEXT NOT NULL", "driver BLOB NOT NULL"),
)
_DRIVER = msgspec.json.Decoder(Driver)


class UnwantedObjects(NamedTuple):
    """Objects that an offload attempt may have written and that must be deleted."""

    ledger: str
    ledger_id: int
    attempt: uuid.UUID
    driver: Driver


class UnwantedRecords(Records):
    """Records of unwanted objects of a store. Any thread may call any method.

    A commit *withholds* its objects: until it releases them, no sweep records them as unwanted.
    """

    def __init__(self, file: MetadataFile) -> None:
        super().__init__(file)
        self._deciding = threading.Lock()
        self._withheld: Counter[uuid.UUID] = Counter()

    def all(self) -> list[UnwantedObjects]:
        rows = self._file.read(
            lambda c: c.execute("SELECT ledger, ledger_id, attempt, driver FROM unwanted").fetchall()
        )
        return [
            UnwantedObjects(ledger, ledger_id, uuid.UUID(attempt), _DRIVER.decode(driver))
            for ledger, ledger_id, attempt, driver in rows
        ]

    def put(self, gone: Iterable[UnwantedObjects]) -> int:
        """Record objects that no segment and no later commit needs. Return the number of their attempts."""
        rows = [
            (str(objects.attempt), objects.ledger_id, objects.ledger, msgspec.json.encode(objects.driver))
            for objects in gone
        ]
        if rows:
            self._file.change(lambda c: c.executemany("INSERT OR REPLACE INTO unwanted_row VALUES (?, ?, ?, ?)", rows))
        return len(rows)

    def put_unneeded(self, found: Iterable[UnwantedObjects], needed: Callable[[], Collection[uuid.UUID]]) -> int:
        """Record objects that a listing of the bucket found. Return the number of recorded attempts.

        Leaves out the attempts that `needed` returns, and those that a commit withholds.
        """
        with self._deciding:
            kept = self._withheld.keys() | needed()
            return self.put(objects for objects in found if objects.attempt not in kept)

    def withhold(self, attempts: Collection[uuid.UUID]) -> None:
        """Withhold objects: `put_unneeded` leaves them out until they are released."""
        with self._deciding:
            self._withheld.update(attempts)

    def release(self, attempts: Collection[uuid.UUID]) -> None:
        """Release withheld objects."""
        with self._deciding:
            self._withheld -= Counter(attempts)

    @contextmanager
    def withheld(self, attempts: Collection[uuid.UUID]) -> Iterator[None]:
        """Withhold the objects of a commit. Raises NotFound if one of them is recorded as unwanted already."""
        self.withhold(attempts)
        try:
            recorded = self._recorded(attempts)
            if recorded:
                raise NotFound(
                    f"{len(recorded)} of {len(attempts)} data objects are unwanted, attempt {min(recorded)} is one",
                    hint="A sweep after stagingRetentionSeconds or a later commit took them. Run the batch again",
                )
            yield
        finally:
            self.release(attempts)

    def _recorded(self, attempts: Iterable[uuid.UUID]) -> list[uuid.UUID]:
        def select(c: sqlite3.Connection) -> list[uuid.UUID]:
            found = "SELECT 1 FROM unwanted WHERE attempt = ?"
            return [attempt for attempt in attempts if c.execute(found, (str(attempt),)).fetchone()]

        return self._file.read(select)

    def remove(self, attempt: uuid.UUID) -> None:
        self._file.change(lambda c: c.execute("DELETE FROM unwanted_row WHERE attempt = ?", (str(attempt),)).rowcount)


def put_unwanted(
    c: sqlite3.Connection, name: str, ledger_id: int, before: OffloadAttempt | None, after: OffloadAttempt | None
) -> None:
    """Record the objects of the attempt `before` as unwanted, unless `after` is the same attempt.

    Objects that the store had from its original are never recorded, because the original still needs them.
    """
    if before is not None and not before.owner and (after is None or after.attempt != before.attempt):
        values = (str(before.attempt), ledger_id, name, msgspec.json.encode(before.driver))
        c.execute("INSERT OR REPLACE INTO unwanted_row VALUES (?, ?, ?, ?)", values)
