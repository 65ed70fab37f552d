"""Files of segments that are to be deleted, as records of the metadata. Only this module deletes files of segments.

    unwanted_file   ledger id, and what of it: `all` its files, its `data` alone, or what was `made` and never listed

Rules
- The transaction that removes a segment or its local copy from the list inserts a record. The files are deleted after
  that, at the next start if a crash comes between. The record is deleted once the directory is synced.
- A segment id is allocated with a record that its files are created and unlisted. The transaction that lists the
  segment deletes that record. After a crash in between, the next start deletes the files if nothing in them was
  acknowledged.
- A file without a record is kept, and its name is logged. Ids rise and are never used twice, so such a file blocks
  nothing.

The table `unwanted` lists objects in object storage without a record: attempt (UUID), ledger id, name of the managed
ledger, JSON of the driver. The transaction that removes an attempt from a record inserts the row. That happens when a
segment is trimmed, a managed ledger is deleted, or another attempt replaces this one. The row is deleted once its
objects are. So a crash anywhere in between leaves the row, and no object in the bucket is forgotten.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import uuid
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.database.database import Records
from pyspark_ledger.ledger.database.record_tables import RecordTable
from pyspark_ledger.ledger.errors import Corrupt, LedgerError
from pyspark_ledger.ledger.metadata.offload_records import Driver, OffloadAttempt
from pyspark_ledger.ledger.segment.index import load_open
from pyspark_ledger.ledger.segment.writer import data_path, index_path

UNWANTED_FILE_TABLE = RecordTable("unwanted_file", ("ledger_id INTEGER PRIMARY KEY", "what TEXT NOT NULL"), rowid=True)
_MADE, _DATA, _ALL = "made", "data", "all"
_SUFFIXES = (".ledger", ".index", ".torn")
_log = logging.getLogger(__name__)


class UnwantedFileRecords(Records):
    """All records of a store. Any thread may call any method."""

    def all(self) -> dict[int, str]:
        return dict(self._file.read(lambda c: c.execute("SELECT ledger_id, what FROM unwanted_file").fetchall()))

    def remove(self, ledger_ids: Collection[int]) -> None:
        """Delete the records of segments whose files are deleted."""
        rows = [(ledger_id,) for ledger_id in ledger_ids]
        if rows:
            self._file.change(lambda c: c.executemany("DELETE FROM unwanted_file_row WHERE ledger_id = ?", rows))


def put_made(c: sqlite3.Connection, ledger_id: int) -> None:
    """Record an allocated id: any file under it is unlisted."""
    c.execute("INSERT INTO unwanted_file_row VALUES (?, ?)", (ledger_id, _MADE))


def put_unlisted(c: sqlite3.Connection, ledger_ids: Iterable[int]) -> None:
    """Record segments that leave a list, all of whose files are deleted."""
    rows = [(ledger_id, _ALL) for ledger_id in ledger_ids if ledger_id >= 0]
    c.executemany("INSERT OR REPLACE INTO unwanted_file_row VALUES (?, ?)", rows)


def put_listed(c: sqlite3.Connection, ledger_ids: Iterable[int]) -> None:
    """Record segments that enter a list: their files are wanted."""
    rows = [(ledger_id,) for ledger_id in ledger_ids if ledger_id >= 0]
    c.executemany("DELETE FROM unwanted_file_row WHERE ledger_id = ?", rows)


def put_remote(c: sqlite3.Connection, ledger_id: int) -> None:
    """Record a segment whose local copy is deleted and whose sidecar stays."""
    c.execute("INSERT OR REPLACE INTO unwanted_file_row VALUES (?, ?)", (ledger_id, _DATA))


class UnwantedFiles:
    """Unwanted files of one store's segments. Any thread may call any method."""

    def __init__(self, directory: Path, records: UnwantedFileRecords) -> None:
        self._directory = directory
        self._records = records
        self._deleted: set[int] = set()
        self._lock = threading.Lock()

    def delete(self, ledger_ids: Collection[int]) -> None:
        """Delete the recorded files of these segments, which have just left a list."""
        unwanted = self._records.all() if ledger_ids else {}
        for ledger_id in ledger_ids:
            if unwanted.get(ledger_id, _MADE) != _MADE:
                self._unlink(ledger_id, unwanted[ledger_id])

    def sweep(self, listed: Collection[int], next_ledger_id: int) -> None:
        """Delete all recorded files, and log the files without a record. Called before anything is written to the
        store.

        Raises Corrupt, before anything is deleted, if a file has an id that was never allocated.
        """
        unwanted = self._records.all()
        unknown = unknown_files(self._directory, listed, unwanted)
        require_given(unknown, self._directory, next_ledger_id)
        for ledger_id, paths in unknown.items():
            names = ", ".join(path.name for path in paths)
            _log.warning(
                "%s: no record knows ledger %d (%s): kept, see ledger repair", self._directory, ledger_id, names
            )
        for ledger_id in unwanted.keys() - unknown.keys():
            if unwanted[ledger_id] == _DATA or ledger_id not in listed:
                self._unlink(ledger_id, unwanted[ledger_id])
        self.forget_deleted()

    def forget_deleted(self) -> None:
        """Delete the records of deleted files, once the directory is synced."""
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
    """Return all files of a segment, including those that recovery moved aside and a crashed copy left."""
    path = data_path(directory, ledger_id)
    return [path.with_suffix(suffix + new) for suffix in _SUFFIXES for new in ("", ".new")]


def holds_nothing(directory: Path, ledger_id: int) -> bool:
    """Return whether the files of an unsealed segment show that nothing in it was acknowledged."""
    path = data_path(directory, ledger_id)
    try:
        return load_open(index_path(directory, ledger_id), ledger_id).acknowledged.entries == 0
    except LedgerError:
        # The sidecar is created before the first byte of the data.
        return not path.exists() or not path.stat().st_size


def unknown_files(directory: Path, listed: Collection[int], unwanted: Mapping[int, str]) -> dict[int, list[Path]]:
    """Return the files without a record, by segment id: neither listed nor unwanted, or created, unlisted and
    acknowledged.
    """
    names: dict[str, list[str]] = {}
    for name in os.listdir(directory):  # noqa: PTH208 — of thousands of files nearly all are listed, none is looked at
        names.setdefault(name.partition(".")[0], []).append(name)
    numbers = {int(stem) for stem in names if stem.isascii() and stem.isdecimal() and str(int(stem)) == stem}
    found = numbers - set(listed)
    unknown = [
        ledger_id
        for ledger_id in sorted(found)
        if ledger_id not in unwanted or (unwanted[ledger_id] == _MADE and not holds_nothing(directory, ledger_id))
    ]
    return {ledger_id: [directory / name for name in sorted(names[str(ledger_id)])] for ledger_id in unknown}


def require_given(unknown: Collection[int], directory: Path, next_ledger_id: int) -> None:
    """Raise Corrupt if a file has an id that was never allocated: the metadata are older than the file."""
    ungiven = [ledger_id for ledger_id in unknown if ledger_id >= next_ledger_id]
    if ungiven:
        raise Corrupt(
            f"{data_path(directory, ungiven[0])} is of a ledger that the metadata never gave an id: "
            f"its next is {next_ledger_id}",
            hint="The metadata are older than the ledgers. Restore both from the same copy, or look at ledger repair. "
            "Nothing was deleted",
        )


UNWANTED_TABLE = RecordTable(
    "unwanted",
    ("attempt TEXT PRIMARY KEY", "ledger_id INTEGER NOT NULL", "ledger TEXT NOT NULL", "driver BLOB NOT NULL"),
)
_DRIVER = msgspec.json.Decoder(Driver)


class UnwantedObjects(NamedTuple):
    """Objects that an attempt may have left."""

    ledger: str
    ledger_id: int
    attempt: uuid.UUID
    driver: Driver


class UnwantedRecords(Records):
    """All records of unwanted objects of a store. Any thread may call any method."""

    def all(self) -> list[UnwantedObjects]:
        rows = self._file.read(
            lambda c: c.execute("SELECT ledger, ledger_id, attempt, driver FROM unwanted").fetchall()
        )
        return [
            UnwantedObjects(ledger, ledger_id, uuid.UUID(attempt), _DRIVER.decode(driver))
            for ledger, ledger_id, attempt, driver in rows
        ]

    def remove(self, attempt: uuid.UUID) -> None:
        self._file.change(lambda c: c.execute("DELETE FROM unwanted_row WHERE attempt = ?", (str(attempt),)).rowcount)


def put_unwanted(
    c: sqlite3.Connection, name: str, ledger_id: int, before: OffloadAttempt | None, after: OffloadAttempt | None
) -> None:
    """Record the attempt that the earlier state of a segment's record has and the later one has not."""
    if before is not None and (after is None or after.attempt != before.attempt):
        values = (str(before.attempt), ledger_id, name, msgspec.json.encode(before.driver))
        c.execute("INSERT OR REPLACE INTO unwanted_row VALUES (?, ?, ?, ?)", values)
