"""SQLite file of a store's metadata: durable transactions that many threads share, and the store's epoch.

The epoch is a number in the metadata that rises with each start of a broker. If an earlier broker finds an epoch above
its own, it is *fenced*: its changes are refused.

Rules
- The file uses a write-ahead log (WAL) with synchronous=FULL. So a change is on the device before the call returns.
- One thread writes. Changes that arrive during a commit share the next transaction, and so one sync. Each change has
  its own savepoint. So a failed change is rolled back alone.
- Every transaction first compares the epoch in the file with the broker's epoch. If they differ, the transaction writes
  nothing and raises `Fenced`. A check without a transaction first reads a small separate file
  (`ledger.database.epoch_file`).
- Every transaction increases the number of commits. The broker writes this number to a separate file after the commit,
  before the call returns (`ledger.database.commit_number`).
- The whole file is checked before it is opened for writing (`ledger.database.file_checks`). Each record is checked when
  it is read (`ledger.database.record_tables`).
- Readers take a connection from a pool and never wait for a writer. Connections are not kept for each thread, because
  a Flight server uses a new thread for each call.
- With a `replica`, the durable copy is in another place, such as a bucket. The changed rows of a transaction are
  written there before the commit, and the local file is not synced. Readers see a change only after the copy is
  durable.
- A refused file stays unchanged. A file is refused if it belongs to another program, has another format, is damaged, is
  out of date, or is busy. An existing file is never replaced.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.database.changed_rows import Replica, RowCapture, encode_rows
from pyspark_ledger.ledger.database.commit_number import CommitNumber, number_path
from pyspark_ledger.ledger.database.epoch_file import EpochFile
from pyspark_ledger.ledger.database.file_checks import (
    APPLICATION_ID,
    FORMAT_VERSION,
    require_sound_file,
)
from pyspark_ledger.ledger.database.record_tables import (
    SQLITE_ERRORS,
    CheckedConnection,
    RecordTable,
    connect,
    create_tables,
    create_views,
    failure,
)
from pyspark_ledger.ledger.errors import AlreadyExists, Fenced, NotFound, Unavailable

_BUSY_SECONDS = 10.0
_IDLE_MAX = 32
_log = logging.getLogger(__name__)

T = TypeVar("T")
Change = Callable[[sqlite3.Connection], T]


class MetadataFile:
    """SQLite file of the metadata. Any thread may read and change it."""

    def __init__(self, path: Path, tables: Sequence[RecordTable] = (), replica: Replica | None = None) -> None:
        self.path = path
        self._replica = replica
        self._number: CommitNumber | None = None
        self._epoch: int | None = None
        self._epoch_file: EpochFile | None = None
        self._writer = _connect(path)
        self._capture: RowCapture | None = None
        if replica is not None:
            self._writer.execute("PRAGMA synchronous=OFF")
            self._capture = RowCapture(self._writer, tables)
        self._idle: list[CheckedConnection] = []
        self._closed = False
        self._lock = threading.Lock()
        self._arrival = threading.Condition(self._lock)
        self._waiting: list[tuple[Change[Any], Future[Any]]] = []
        self._thread = threading.Thread(target=self._write, name="metadata", daemon=True)
        self._thread.start()

    @classmethod
    def create(cls, path: Path, tables: Sequence[RecordTable], first: Change[object] | None = None) -> MetadataFile:
        """Create a file with these tables and the records that `first` inserts. After a failure no file is left."""
        scratch = _scratch(path)
        for leftover in (scratch, Path(f"{scratch}-journal")):
            leftover.unlink(missing_ok=True)
        connection = connect(scratch)
        try:
            for pragma in ("journal_mode=DELETE", "synchronous=FULL", f"application_id={APPLICATION_ID}"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("BEGIN")
            create_tables(connection, tables)
            create_views(connection, tables)
            if first is not None:
                first(connection)
            connection.execute(f"PRAGMA user_version={FORMAT_VERSION}")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise connection.failure(scratch, error) from error
        finally:
            connection.close()
        scratch.chmod(disk.FILE_MODE)
        try:
            os.link(scratch, path)  # a rename would replace the metadata of a store that another process has created
        except FileExistsError:
            scratch.unlink()
            raise AlreadyExists(f"{path} exists already", hint="Open the store; its records are kept") from None
        scratch.unlink()
        disk.sync_directory(path.parent)
        return cls.open(path, tables)

    @classmethod
    def open(
        cls,
        path: Path,
        tables: Sequence[RecordTable],
        *,
        behind: bool = False,
        replica: Replica | None = None,
    ) -> MetadataFile:
        """Open an existing file.

        Raises NotFound for a missing file and Unsupported for another format. Raises Corrupt for a damaged file, a file
        of another program, and, unless `behind` is set, a file without the newest commits.
        """
        if not path.exists():
            raise NotFound(f"{path} is missing", hint="Restore it from a copy. The store cannot be read without it")
        require_sound_file(path, tables, behind=behind)
        _scratch(path).unlink(missing_ok=True)  # left by a broker that died during `create`
        try:
            return cls(path, tables, replica)
        except sqlite3.Error as error:
            raise failure(path, error) from error

    def read(self, query: Change[T]) -> T:
        """Run a query on the last committed state. Never waits for a writer."""
        try:
            with self._lock:
                self._require_open()
                connection = self._idle.pop() if self._idle else _connect(self.path)
        except sqlite3.Error as error:
            raise failure(self.path, error) from error
        try:
            return query(connection)
        except SQLITE_ERRORS as error:
            raise connection.failure(self.path, error) from error
        finally:
            with self._lock:
                keep = not self._closed and len(self._idle) < _IDLE_MAX
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()

    def change(self, change: Change[T]) -> T:
        """Run a change in a durable transaction, which waiting changes share. Raises the errors of the change."""
        future: Future[T] = Future()
        with self._arrival:
            self._require_open()
            self._waiting.append((change, future))
            self._arrival.notify()
        return future.result()

    def read_at_rest(self, query: Change[T]) -> T:
        """Run a query on the last committed state. Changes wait until the query has ended."""
        return self.change(lambda _: self.read(query))

    def bump_epoch(self) -> int:
        """Raise the epoch, and return it. From now on, changes and acknowledgements of every earlier broker fail."""

        def bump(connection: sqlite3.Connection) -> int:
            commits = connection.execute("SELECT commits FROM store").fetchone()[0]
            self._close_number()
            self._number = CommitNumber(number_path(self.path), commits)
            connection.execute("UPDATE store_row SET epoch = epoch + 1")
            return int(connection.execute("SELECT epoch FROM store").fetchone()[0])

        self._epoch = None
        epoch = self.change(bump)
        before = self._epoch_file
        self._epoch_file = EpochFile(self.path.with_suffix(".epoch"), epoch, self._compare_epoch)
        if before is not None:
            before.close()
        self._epoch = epoch
        return epoch

    def epoch(self) -> int:
        """Return the epoch in the metadata."""
        return int(self.read(lambda connection: connection.execute("SELECT epoch FROM store").fetchone()[0]))

    def require_epoch(self, mine: int) -> None:
        """Raise Fenced if the store has another epoch."""
        if mine == self._epoch and self._epoch_file is not None:
            self._epoch_file.require()
        else:
            self._compare_epoch(mine)

    @property
    def require_ours(self) -> Callable[[], None]:
        """Function that raises Fenced if another broker has raised the epoch since `bump_epoch`."""
        assert self._epoch_file is not None  # noqa: S101 — `bump_epoch` was called
        return self._epoch_file.require

    def _compare_epoch(self, mine: int) -> None:
        found = self.epoch()
        if found != mine:
            raise _fenced(self.path, found, mine)

    def close(self) -> None:
        """Close the file after the waiting changes. May be repeated. Other calls then raise Unavailable."""
        with self._arrival:
            self._closed = True
            self._arrival.notify()
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        self._thread.join()
        # The last connection that closes moves SQLite's log into the file. If two connections close at once, neither
        # moves the log.
        self._writer.close()
        if self._epoch_file is not None:
            self._epoch_file.close()
        self._close_number()

    def _close_number(self) -> None:
        number, self._number = self._number, None
        if number is not None:
            number.close()

    def _write(self) -> None:
        """Commit the changes that arrived during the last commit. Runs on the writer thread."""
        while True:
            with self._arrival:
                self._arrival.wait_for(lambda: self._waiting or self._closed)
                group, self._waiting = self._waiting, []
            if not group:
                break
            try:
                self._commit(group)
            except Exception as error:  # noqa: BLE001 — later changes of the store need the thread
                _log.exception("changes of %s ended with an unexpected error", self.path)
                unknown = Unavailable(f"{self.path}: {error!r}; it is unknown whether the change was made")
                for _, future in group:
                    if not future.done():
                        future.set_exception(unknown)

    def _commit(self, group: list[tuple[Change[Any], Future[Any]]]) -> None:
        connection = self._writer
        settled: list[Callable[[], None]] = []
        replicated = False
        try:
            connection.execute("BEGIN IMMEDIATE")
            commits, before = self._commits_so_far(connection), connection.total_changes
            for change, future in group:
                settled.append(_run(self.path, connection, self._capture, change, future))
            changed = connection.total_changes != before
            if changed:
                connection.execute("UPDATE store_row SET commits = ?", (commits + 1,))
            if self._replica is not None and self._capture is not None and self._capture.count:
                self._replica.replicate(encode_rows(self._capture.take()))
                replicated = True
            connection.execute("COMMIT")
            if changed and self._number is not None:
                self._number.write(commits + 1)
        except Exception as error:  # noqa: BLE001 — raised to every caller of the group
            with suppress(sqlite3.Error):  # callers get the first error; if the rollback fails, the next BEGIN fails
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            if self._capture is not None:
                self._capture.take()
            if replicated and self._replica is not None:
                self._replica.diverged(error)
            failed = connection.failure(self.path, error) if isinstance(error, SQLITE_ERRORS) else error
            settled = [lambda future=future: future.set_exception(failed) for _, future in group]  # type: ignore[misc]
        for settle in settled:
            settle()

    def _commits_so_far(self, connection: sqlite3.Connection) -> int:
        """Return the number of earlier commits. Raises Fenced if the store was taken over."""
        epoch, commits = connection.execute("SELECT epoch, commits FROM store").fetchone()
        if self._epoch not in (None, epoch):
            raise _fenced(self.path, epoch, self._epoch)
        return int(commits)

    def _require_open(self) -> None:
        if self._closed:
            raise Unavailable(f"{self.path} is closed", hint="Its broker has ended. Connect again")


class Records:
    """Records of one kind in the metadata of a store. Any thread may call any method."""

    def __init__(self, file: MetadataFile) -> None:
        self._file = file


def _run(
    path: Path, connection: CheckedConnection, capture: RowCapture | None, change: Change[Any], future: Future[Any]
) -> Callable[[], None]:
    """Run one change of a group. Return a function that completes its future, to be called after the commit."""
    captured = 0 if capture is None else capture.count
    connection.execute("SAVEPOINT change")
    try:
        result = change(connection)
    except Exception as error:
        if not connection.in_transaction:
            raise  # SQLite has rolled back the whole transaction (disk full, device error), so all changes fail
        connection.execute("ROLLBACK TO change")
        connection.execute("RELEASE change")
        if capture is not None:
            capture.cut(captured)
        failed = connection.failure(path, error) if isinstance(error, SQLITE_ERRORS) else error
        return lambda: future.set_exception(failed)
    connection.execute("RELEASE change")
    return lambda: future.set_result(result)


def _connect(path: Path) -> CheckedConnection:
    connection = connect(path, timeout=_BUSY_SECONDS)
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


def _fenced(path: Path, found: int, mine: int) -> Fenced:
    return Fenced(
        f"the store of {path} has epoch {found}, this broker has {mine}",
        hint="Another broker has taken over the store: connect to that broker",
    )
