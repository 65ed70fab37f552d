"""Tables of the metadata file whose records have checksums, and the check that no record is missing.

    <name>_row   the columns, and `sum`: the checksum, 62 bits of the hash BLAKE2b of the table's name and the record
    <name>       a view of the columns; a query of the view compares the checksum of each record that it reads
    account      for each table the number of its records and the sum of their checksums, modulo 2**62

Invariants
- Triggers update the account with each change. The cost of a change does not depend on the size of the table.
- A statement that reads, replaces or deletes a record with a wrong checksum fails with `Corrupt`.
- The sum of checksums does not depend on the order of the records. A lost or an additional record changes the sum.
- The check of a whole file also compares the statements that created tables, views and triggers. SQLite itself
  checks the structure of the file and its indexes.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Refused, Unavailable, Unsupported

RESTORE = "Restore it from a copy"
_MASK = 2**62 - 1
_SQLITE_MIN = (3, 31)  # the first version of SQLite with generated columns
_RAISED = "user-defined function raised exception"
# Errors of SQLite that do not show damage: the file is busy, the disk fails, or rights are missing.
_NOT_DAMAGE = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)
_encode = msgspec.msgpack.Encoder().encode


# UnicodeDecodeError: SQLite's message may quote a damaged file, and Python cannot decode it.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)


class RecordTable(NamedTuple):
    """Table: its columns as SQL declares them, its constraint, and the columns of each of its indexes.

    A table that is not `counted` has exactly one record and no account.
    """

    name: str
    columns: tuple[str, ...]
    constraint: str = ""
    indexes: tuple[str, ...] = ()
    rowid: bool = False
    counted: bool = True

    @property
    def row_name(self) -> str:
        """The name of the table, for statements that change records. The view has the name `name`."""
        return f"{self.name}_row"

    def names(self, prefix: str = "") -> str:
        """Return the names of the columns, separated by commas."""
        return ", ".join(prefix + column.split(" ", 1)[0] for column in self.columns)

    def tables(self) -> dict[str, str]:
        """Return the statements that create the table, its indexes and triggers, by the name of the created object."""
        checked = f"checked(old.sum, '{self.name}', {self.names('old.')})"
        body = [
            *self.columns,
            f"sum INTEGER NOT NULL GENERATED ALWAYS AS (record_sum('{self.name}', {self.names()})) STORED",
            *[self.constraint] * bool(self.constraint),
        ]
        statements = {
            self.row_name: f"CREATE TABLE {self.row_name} ({', '.join(body)})" + " WITHOUT ROWID" * (not self.rowid)
        }
        for indexed in self.indexes:
            name = f"{self.row_name}_{indexed.replace(', ', '_')}"
            statements[name] = f"CREATE INDEX {name} ON {self.row_name} ({indexed})"
        if not self.counted:
            statements |= self._trigger("UPDATE", f"SELECT {checked}")
            return statements
        statements |= self._trigger("INSERT", self._counting("records + 1", "digest + new.sum"))
        statements |= self._trigger("UPDATE", self._counting("records", f"digest + new.sum - {checked}"))
        statements |= self._trigger("DELETE", self._counting("records - 1", f"digest - {checked}"))
        return statements

    def view(self) -> dict[str, str]:
        """Return the statement that creates the view.

        The comparison of the checksum is a correlated subquery, because SQLite evaluates it after all other terms of a
        query. Without the subquery, SQLite would also check records that the query does not select. For a query like
        `WHERE name = 'a'`, SQLite would then compute the checksum with 'a' in place of the stored name.
        """
        select = f"CREATE VIEW {self.name} AS SELECT {self.names()} FROM {self.row_name}"  # noqa: S608 — constant names
        checked = f"checked({self.row_name}.sum, '{self.name}', {self.names(self.row_name + '.')})"
        return {self.name: f"{select} WHERE (SELECT {checked})"}

    def _counting(self, records: str, digest: str) -> str:
        counted = f"records = {records}, digest = ({digest}) & {_MASK}"
        return f"UPDATE account SET {counted} WHERE name = '{self.name}'"  # noqa: S608 — as above

    def _trigger(self, event: str, action: str) -> dict[str, str]:
        name = f"{self.row_name}_{event.lower()}"
        return {name: f"CREATE TRIGGER {name} AFTER {event} ON {self.row_name} BEGIN {action}; END"}


_ACCOUNT = (
    "CREATE TABLE account (name TEXT PRIMARY KEY, records INTEGER NOT NULL, digest INTEGER NOT NULL) WITHOUT ROWID"
)


class CheckedConnection(sqlite3.Connection):
    """Connection that computes and compares checksums. `damage` has a message for each failed comparison."""

    damage: list[str]

    def failure(self, path: Path, error: sqlite3.Error | UnicodeDecodeError) -> LedgerError:
        """Convert an error of a statement into a LedgerError. After a failed comparison this is Corrupt."""
        found, self.damage[:] = self.damage[:], []
        return Corrupt(f"{path}: {found[0]}", hint=RESTORE) if found else failure(path, error)


def connect(name: Path | str, *, uri: bool = False, timeout: float = 10.0) -> CheckedConnection:
    """Open an SQLite file with the functions that compute and compare checksums."""
    if sqlite3.sqlite_version_info < _SQLITE_MIN:
        raise Unsupported(
            f"this Python has SQLite {sqlite3.sqlite_version}, metadata need {'.'.join(map(str, _SQLITE_MIN))}",
            hint="Use a Python with a newer SQLite",
        )
    connection = sqlite3.connect(
        name, timeout=timeout, isolation_level=None, check_same_thread=False, uri=uri, factory=CheckedConnection
    )
    damage: list[str] = []

    def checked(stated: int, table: str, *record: object) -> int:
        found = record_sum(table, *record)
        if found != stated:
            damage.append(f"a record of {table!r} has checksum {found:#x}, the file states {stated}")
            raise Corrupt(damage[-1])
        # A checksum is never 0, so the condition of the view is true. The triggers need the checksum for the account.
        return stated

    connection.damage = damage
    connection.create_function("record_sum", -1, record_sum, deterministic=True)
    connection.create_function("checked", -1, checked, deterministic=True)
    try:
        connection.execute("PRAGMA trusted_schema=ON")
        # Without this, SQLite runs no DELETE trigger for a record that REPLACE deletes, and the account becomes wrong.
        connection.execute("PRAGMA recursive_triggers=ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def record_sum(*record: object) -> int:
    """Return the checksum of a record, 62 bits and never 0. The first value is the table's name."""
    digest = hashlib.blake2b(_encode(record), digest_size=8).digest()
    return int.from_bytes(digest, "big") & _MASK or 1


def create_tables(connection: sqlite3.Connection, tables: Iterable[RecordTable]) -> None:
    """Create tables, indexes, triggers and accounts, within the caller's transaction."""
    connection.execute(_ACCOUNT)
    for table in tables:
        for statement in table.tables().values():
            connection.execute(statement)
    connection.executemany(
        "INSERT INTO account VALUES (?, 0, 0)",
        [(table.name,) for table in tables if table.counted],
    )


def create_views(connection: sqlite3.Connection, tables: Iterable[RecordTable]) -> None:
    """Create the views, within the caller's transaction. No table may have the name of a view."""
    for table in tables:
        for statement in table.view().values():
            connection.execute(statement)


def _require_whole(connection: sqlite3.Connection, path: Path) -> None:
    """Make SQLite check the structure of the file and its indexes. Raises Corrupt with `path`."""
    results = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
    if results != ["ok"]:
        raise Corrupt(f"{path} is damaged: {'; '.join(results)}", hint=RESTORE)


def require_sound(connection: sqlite3.Connection, path: Path, tables: Iterable[RecordTable]) -> None:
    """Compare all statements, the checksum of every record, and every account. Raises Corrupt with `path`."""
    tables = list(tables)
    _require_whole(connection, path)
    _require_statements(connection, path, tables)
    accounts = {name: (records, digest) for name, records, digest in connection.execute("SELECT * FROM account")}
    for table in tables:
        sums = [row[0] for row in connection.execute(_sums_of(table))]
        found = (len(sums), sum(sums) & _MASK)
        if table.counted and accounts.get(table.name) != found:
            stated = accounts.get(table.name, "nothing")
            raise Corrupt(
                f"{path}: table {table.name!r} has (records, digest) {found}, table 'account' states {stated}",
                hint=RESTORE,
            )
        if not table.counted and len(sums) != 1:
            raise Corrupt(f"{path}: table {table.name!r} has {len(sums)} records, expected 1", hint=RESTORE)


def failure(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> LedgerError:
    """Convert an error of SQLite into a LedgerError: Refused, Corrupt, or Unavailable if the file may be sound."""
    if isinstance(error, sqlite3.IntegrityError):
        return Refused(f"{path}: {error}", hint="Nothing was changed")
    damaged = isinstance(error, UnicodeDecodeError) or type(error) is sqlite3.DatabaseError
    if damaged or _RAISED in str(error) or "UTF-8" in str(error):
        return Corrupt(f"{path} is damaged or no metadata file: {error}", hint=RESTORE)
    locked = "A suspended broker can keep the file locked: resume that broker, or kill it"
    return Unavailable(f"{path}: {error}", hint=locked if "locked" in str(error) else "Check the disk of the store")


def damage_of(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> LedgerError:
    """Convert an error of SQLite during a check. Every error is damage, except the errors in `_NOT_DAMAGE`."""
    if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _NOT_DAMAGE:
        return failure(path, error)
    return Corrupt(f"{path} is damaged or no metadata file: {error}", hint=RESTORE)


def _sums_of(table: RecordTable) -> str:
    return f"SELECT checked(sum, '{table.name}', {table.names()}) FROM {table.row_name}"  # noqa: S608 — names of ours


def _require_statements(connection: sqlite3.Connection, path: Path, tables: list[RecordTable]) -> None:
    expected = {"account": _ACCOUNT}
    for table in tables:
        expected |= table.tables() | table.view()
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())
    for name in sorted(expected.keys() | found.keys(), key=str):  # in a damaged file a name can be bytes
        if expected.get(name) != found.get(name):
            raise Corrupt(
                f"{path}: {name!r} was created by {found.get(name, 'nothing')!r}, "
                f"expected {expected.get(name, 'nothing')!r}",
                hint=RESTORE,
            )
