"""The SQLite file under a store's metadata: durable transactions that many threads share, and the store's epoch.

Rules
- WAL with synchronous=FULL: a change is on the device before it is answered.
- One thread writes. Changes that arrive while it commits are grouped into its next transaction: one sync for all. Each
  runs in a savepoint of its own, so one that fails takes nothing else with it.
- Every transaction compares the broker's epoch first. Another epoch in the file means that the store was taken over:
  `Fenced`, and nothing is written. Who only asks whether the store is still ours looks at a file beside it first.
- Readers borrow a connection from a pool and wait for no writer. (Not one per thread: a Flight server's callbacks come
  on threads that Python forgets after each call.)
- A file that is refused (not ours, of another format, busy) is as it was before. A file that exists is never replaced.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ledger import disk
from ledger.epoch_file import EpochFile
from ledger.errors import AlreadyExists, Corrupt, Fenced, LedgerError, NotFound, Refused, Unavailable, Unsupported

APPLICATION_ID = 0x4C444752  # "LDGR"
FORMAT_VERSION = 1
_BUSY_SECONDS = 10.0
_IDLE_MAX = 32

# The head of an SQLite file: what it is, the user's version, the application's id.
_MAGIC, _HEAD_BYTES, _VERSION_AT, _APPLICATION_AT = b"SQLite format 3\0", 100, 60, 68
_U32 = struct.Struct(">I")
_RESTORE = "Restore it from a copy"

T = TypeVar("T")
Change = Callable[[sqlite3.Connection], T]


class MetadataFile:
    """One SQLite file; any thread may read and change it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._epoch: int | None = None
        self._seen: EpochFile | None = None
        self._writer = _connect(path)
        self._idle: list[sqlite3.Connection] = []
        self._closed = False
        self._lock = threading.Lock()
        self._arrival = threading.Condition(self._lock)
        self._waiting: list[tuple[Change[Any], Future[Any]]] = []
        self._thread = threading.Thread(target=self._write, name="metadata", daemon=True)
        self._thread.start()

    @classmethod
    def create(cls, path: Path, schema: str, first: Change[object] | None = None) -> MetadataFile:
        """A new file with these tables and what `first` puts in, durable under its final name or not there at all."""
        scratch = _scratch(path)
        for leftover in (scratch, Path(f"{scratch}-journal")):
            leftover.unlink(missing_ok=True)
        connection = sqlite3.connect(scratch, isolation_level=None)
        try:
            connection.executescript(
                f"PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL; PRAGMA application_id={APPLICATION_ID}; "
                f"PRAGMA user_version={FORMAT_VERSION}; BEGIN; {schema}"
            )
            if first is not None:
                first(connection)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise _failure(scratch, error) from error
        finally:
            connection.close()
        scratch.chmod(disk.FILE_MODE)
        try:
            os.link(scratch, path)  # a rename would replace the records of a store that was made meanwhile
        except FileExistsError:
            scratch.unlink()
            raise AlreadyExists(f"{path} exists already", hint="Open the store; its records are kept") from None
        scratch.unlink()
        disk.sync_directory(path.parent)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> MetadataFile:
        """An existing file. Raises NotFound, Corrupt when it is none of ours, Unsupported for another format."""
        if not path.exists():
            raise NotFound(f"{path} is missing", hint="Restore it from a copy: without it the store cannot be read")
        _require_ours(path)
        _scratch(path).unlink(missing_ok=True)  # of a broker that died between the link and the unlink of `create`
        try:
            return cls(path)
        except sqlite3.Error as error:
            raise _failure(path, error) from error

    def read(self, query: Change[T]) -> T:
        """Run a query: it sees the last committed state and waits for nobody."""
        try:
            with self._lock:
                self._require_open()
                connection = self._idle.pop() if self._idle else _connect(self.path)
            try:
                return query(connection)
            finally:
                with self._lock:
                    keep = not self._closed and len(self._idle) < _IDLE_MAX
                    if keep:
                        self._idle.append(connection)
                if not keep:
                    connection.close()
        except sqlite3.Error as error:
            raise _failure(self.path, error) from error

    def change(self, change: Change[T]) -> T:
        """Run a change in a durable transaction, together with whatever else waits; its own errors are raised here."""
        future: Future[T] = Future()
        with self._arrival:
            self._require_open()
            self._waiting.append((change, future))
            self._arrival.notify()
        return future.result()

    def bump_epoch(self) -> int:
        """Make the store ours: every other broker's changes and acknowledgements fail from here on."""

        def bump(connection: sqlite3.Connection) -> int:
            connection.execute("UPDATE store SET epoch = epoch + 1")
            return int(connection.execute("SELECT epoch FROM store").fetchone()[0])

        self._epoch = None
        epoch = self.change(bump)
        before, self._seen = self._seen, EpochFile(self.path.with_suffix(".epoch"), epoch)
        if before is not None:
            before.close()
        self._epoch = epoch
        return epoch

    def epoch(self) -> int:
        """The epoch in the file, now."""
        return int(self.read(lambda connection: connection.execute("SELECT epoch FROM store").fetchone()[0]))

    def require_epoch(self, mine: int) -> None:
        """Raise Fenced unless the store still has this epoch."""
        seen = self._seen
        if mine == self._epoch and seen is not None and seen.is_current():
            return
        found = self.epoch()
        if found != mine:
            raise _fenced(self.path, found, mine)

    def close(self) -> None:
        """Let go of the file, after the changes that wait. May be repeated; whoever comes later gets Unavailable."""
        with self._arrival:
            self._closed = True
            self._arrival.notify()
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        self._thread.join()
        if self._seen is not None:
            self._seen.close()

    def _write(self) -> None:
        """The one thread that writes: commit whatever arrived while the last group was being committed."""
        while True:
            with self._arrival:
                self._arrival.wait_for(lambda: self._waiting or self._closed)
                group, self._waiting = self._waiting, []
            if not group:
                break
            self._commit(group)
        self._writer.close()

    def _commit(self, group: list[tuple[Change[Any], Future[Any]]]) -> None:
        connection = self._writer
        settled: list[Callable[[], None]] = []
        try:
            connection.execute("BEGIN IMMEDIATE")
            self._require_own(connection)
            for change, future in group:
                settled.append(_run(self.path, connection, change, future))
            connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 — whatever it is, every caller of the group is told
            with suppress(sqlite3.Error):  # what made the group fail is told; the next BEGIN tells of this one
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            failure = _failure(self.path, error) if isinstance(error, sqlite3.Error) else error
            settled = [lambda future=future: future.set_exception(failure) for _, future in group]  # type: ignore[misc]
        for settle in settled:
            settle()

    def _require_own(self, connection: sqlite3.Connection) -> None:
        if self._epoch is None:
            return
        found = int(connection.execute("SELECT epoch FROM store").fetchone()[0])
        if found != self._epoch:
            raise _fenced(self.path, found, self._epoch)

    def _require_open(self) -> None:
        if self._closed:
            raise Unavailable(f"{self.path} is closed", hint="Its broker is leaving; connect again")


def _run(path: Path, connection: sqlite3.Connection, change: Change[Any], future: Future[Any]) -> Callable[[], None]:
    """Run one change of a group; what is returned tells its caller once the group is committed."""
    connection.execute("SAVEPOINT change")
    try:
        result = change(connection)
    except Exception as error:
        if not connection.in_transaction:
            raise  # SQLite gave the whole transaction up (disk full, device error): so do all
        connection.execute("ROLLBACK TO change")
        connection.execute("RELEASE change")
        failure = _failure(path, error) if isinstance(error, sqlite3.Error) else error
        return lambda: future.set_exception(failure)
    connection.execute("RELEASE change")
    return lambda: future.set_result(result)


def _require_ours(path: Path) -> None:
    """Look at the file's head, and let SQLite touch nothing: opening it for writing would make it a WAL file, and
    opening it for reading fails where a killed broker left a write-ahead log that only a writer may recover.
    """
    try:
        with disk.opened(path) as fd:
            head = os.pread(fd, _HEAD_BYTES, 0)
    except OSError as error:
        raise Unavailable(f"{path} cannot be read: {error}", hint="Look at the disk of the store") from error
    if head and (len(head) < _HEAD_BYTES or not head.startswith(_MAGIC)):
        raise Corrupt(f"{path} is damaged or no metadata file: it begins with {head[:16]!r}", hint=_RESTORE)
    head = head or bytes(_HEAD_BYTES)  # an empty file is an empty database, of nobody's
    (version,), (application,) = (_U32.unpack_from(head, at) for at in (_VERSION_AT, _APPLICATION_AT))
    if application != APPLICATION_ID:
        raise Corrupt(f"{path} has application id {application:#x}, expected {APPLICATION_ID:#x}")
    if version != FORMAT_VERSION:
        raise Unsupported(f"{path} has format {version}, this code reads {FORMAT_VERSION}", hint=_other_format(version))


def _other_format(version: int) -> str:
    if version > FORMAT_VERSION:
        return "Upgrade pyspark-ledger"
    return "Open the store with the version of pyspark-ledger that wrote it"


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _scratch(path: Path) -> Path:
    return path.with_name(path.name + ".new")


def _failure(path: Path, error: sqlite3.Error) -> LedgerError:
    """What a caller can do about an error of SQLite. Only a file that is damaged or foreign is Corrupt: one that is
    locked, full or not to be opened is whole, and must not be replaced by a copy.
    """
    if isinstance(error, sqlite3.IntegrityError):
        return Refused(f"{path}: {error}", hint="Nothing was changed")
    if type(error) is sqlite3.DatabaseError:
        return Corrupt(f"{path} is damaged or no metadata file: {error}", hint=_RESTORE)
    locked = "A broker stopped in the middle of a change keeps the file locked: let it go on, or kill it"
    return Unavailable(f"{path}: {error}", hint=locked if "locked" in str(error) else "Look at the disk of the store")


def _fenced(path: Path, found: int, mine: int) -> Fenced:
    return Fenced(
        f"the store of {path} has epoch {found}, this broker has {mine}",
        hint="Another broker has taken the store over; connect to it",
    )
