"""Queries on a metadata file without any change of a file, and the check of the whole file before the first write.

Rules
- A query sees the last committed state, also while a broker has the file open.
- The connection is read-only. Reason: when a connection that may write closes, SQLite moves the write-ahead log into
  the file and deletes the log. If the log is damaged, SQLite moves only the readable part. Later commits would be lost.
- If SQLite cannot read the write-ahead log on a read-only connection, the query reads a copy of the file and the log.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.database.commit_number import number_path, read_number, require_not_behind
from pyspark_ledger.ledger.database.record_tables import (
    RESTORE,
    SQLITE_ERRORS,
    CheckedConnection,
    RecordTable,
    connect,
    damage_of,
    failure,
    require_sound,
)
from pyspark_ledger.ledger.errors import Corrupt, Unavailable, Unsupported

APPLICATION_ID = 0x4C444752  # "LDGR"
FORMAT_VERSION = 3
# Head of an SQLite file: the fixed first bytes, the version of our format, and the id of our application.
_MAGIC, _HEAD_BYTES, _VERSION_AT, _APPLICATION_AT = b"SQLite format 3\0", 100, 60, 68
_U32 = struct.Struct(">I")

T = TypeVar("T")
Query = Callable[[CheckedConnection], T]


def require_ours(path: Path) -> None:
    """Check the first bytes of the file. Raises Corrupt, Unavailable or Unsupported.

    SQLite is not used, because it would change a file of another program when it opens the file for writing.
    """
    try:
        with disk.opened(path) as fd:
            head = os.pread(fd, _HEAD_BYTES, 0)
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error}", hint="Check the disk of the store") from error
    if head and (len(head) < _HEAD_BYTES or not head.startswith(_MAGIC)):
        raise Corrupt(f"{path} is damaged or no metadata file: it starts with {head[:16]!r}", hint=RESTORE)
    head = head or bytes(_HEAD_BYTES)  # SQLite treats an empty file as an empty database
    (version,), (application,) = (_U32.unpack_from(head, at) for at in (_VERSION_AT, _APPLICATION_AT))
    if application != APPLICATION_ID:
        raise Corrupt(f"{path} has application id {application:#x}, expected {APPLICATION_ID:#x}", hint=RESTORE)
    require_version(path, version)


def require_version(path: Path, version: int) -> None:
    """Raise Unsupported for a format that this code does not read."""
    if version != FORMAT_VERSION:
        older = "Read its ledgers with the version of pyspark-ledger that wrote it, and append them to a new store"
        hint = "Upgrade pyspark-ledger" if version > FORMAT_VERSION else older
        raise Unsupported(f"{path} has format {version}, this code reads {FORMAT_VERSION}", hint=hint)


def require_sound_file(path: Path, tables: Sequence[RecordTable], *, behind: bool = False) -> None:
    """Check a whole metadata file. Raises Corrupt.

    With `behind`, the file may have fewer commits than the file beside it states (`ledger.database.commit_number`).
    """
    require_ours(path)
    # The number is read first. So a commit of a running broker cannot make the metadata look out of date.
    number = None if behind else read_number(number_path(path))

    def check(connection: CheckedConnection) -> None:
        connection.execute("BEGIN")
        # The first bytes of the file may state another format than SQLite's log.
        require_version(path, int(connection.execute("PRAGMA user_version").fetchone()[0]))
        require_sound(connection, path, tables)
        commits, epoch = connection.execute("SELECT commits, epoch FROM store").fetchone()
        if not behind:
            require_not_behind(path, commits, epoch, number)

    read_committed(path, check, damage_of)


def read_committed(
    path: Path,
    query: Query[T],
    convert_error: Callable[[Path, sqlite3.Error | UnicodeDecodeError], Exception] = failure,
) -> T:
    """Run a query on the last committed state. `convert_error` converts errors of SQLite."""
    connection = None
    try:
        try:
            connection = _opened(path)
            return query(connection)
        except sqlite3.OperationalError:
            if not _log_of(path).exists() or (connection is not None and connection.damage):
                raise
            if connection is not None:
                connection.close()
        with tempfile.TemporaryDirectory(prefix="ledger-view-") as scratch:
            copy = Path(scratch) / path.name
            for source, target in ((path, copy), (_log_of(path), _log_of(copy))):
                shutil.copyfile(source, target)
            connection = connect(copy)
            return query(connection)
    except SQLITE_ERRORS as error:
        found = connection.damage if connection is not None else []
        raise Corrupt(f"{path}: {found[0]}", hint=RESTORE) if found else convert_error(path, error) from error
    finally:
        if connection is not None:
            connection.close()


def _opened(path: Path) -> CheckedConnection:
    # Without a write-ahead log no writer has the file open. `immutable` keeps SQLite from creating a log for a read.
    mode = "mode=ro" if _log_of(path).exists() else "mode=ro&immutable=1"
    return connect(f"{path.absolute().as_uri()}?{mode}", uri=True)


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")
