"""Tables of the metadata file whose records carry checksums, and the proof that no record is missing.

    <name>_row   the columns, and `sum`: 62 bits of BLAKE2b over the table's name and the record, computed by SQLite
    <name>       a view of the same columns; reading a record through the view compares its checksum
    account      for each table the number of its records and the sum of their checksums, modulo 2**62; damage to the
                 account is a difference, too

Invariants
- Triggers update the account. A change costs as much as the records that it changes.
- A record with a wrong checksum is neither read, replaced nor deleted: the statement fails, as `Corrupt`.
- The sum of checksums does not depend on the order of the records. A lost or an additional record changes the sum.
- The statements that created tables, views and triggers are compared too, and SQLite checks its trees and indexes.
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
_FEWER_COLUMNS = 2  # the last format without the `added` columns
_SQLITE_MIN = (3, 31)  # generated columns
_RAISED = "user-defined function raised exception"
# SQLite's errors of the moment or the disk, not of the content.
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


# SQLite's messages contain text of a damaged file, which Python decodes.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)


class RecordTable(NamedTuple):
    """Table: its columns as SQL declares them, its constraints, its indexes as lists of columns.

    `counted` False: the table has exactly one record, and no account. The last `added` columns, which need a default,
    and the indexes `added_indexes` are of format 3.
    """

    name: str
    columns: tuple[str, ...]
    constraint: str = ""
    indexed: str = ""
    rowid: bool = False
    counted: bool = True
    added: int = 0
    added_indexes: tuple[str, ...] = ()

    @property
    def row_name(self) -> str:
        """Table behind the view, which statements change."""
        return f"{self.name}_row"

    def of_format(self, version: int) -> RecordTable:
        """Return the table in a file of this format."""
        if version > _FEWER_COLUMNS or not self.added:
            return self
        return self._replace(columns=self.columns[: -self.added], added=0, added_indexes=())

    def names(self, prefix: str = "") -> str:
        """Return the columns' names, as a list in SQL."""
        return ", ".join(prefix + column.split(" ", 1)[0] for column in self.columns)

    def tables(self) -> dict[str, str]:
        """Return the statements that create the table and the triggers of its account, by the name that each
        creates.
        """
        checked = f"checked(old.sum, '{self.name}', {self.names('old.')})"
        body = [
            *self.columns,
            f"sum INTEGER NOT NULL GENERATED ALWAYS AS (record_sum('{self.name}', {self.names()})) STORED",
            *[self.constraint] * bool(self.constraint),
        ]
        made = {
            self.row_name: f"CREATE TABLE {self.row_name} ({', '.join(body)})" + " WITHOUT ROWID" * (not self.rowid)
        }
        for indexed in filter(None, (self.indexed, *self.added_indexes)):
            name = f"{self.row_name}_{indexed.replace(', ', '_')}"
            made[name] = f"CREATE INDEX {name} ON {self.row_name} ({indexed})"
        if not self.counted:
            made |= self._trigger("UPDATE", f"SELECT {checked}")
            return made
        made |= self._trigger("INSERT", self._counting("records + 1", "digest + new.sum"))
        made |= self._trigger("UPDATE", self._counting("records", f"digest + new.sum - {checked}"))
        made |= self._trigger("DELETE", self._counting("records - 1", f"digest - {checked}"))
        return made

    def view(self) -> dict[str, str]:
        """Return the statement that creates the view.

        The comparison is a correlated subquery, which SQLite evaluates after all other terms of a query. Otherwise
        SQLite would replace the column by the constant of `column = ?`, and compare unrequested records.
        """
        said = f"CREATE VIEW {self.name} AS SELECT {self.names()} FROM {self.row_name}"  # noqa: S608 — names of ours
        checked = f"checked({self.row_name}.sum, '{self.name}', {self.names(self.row_name + '.')})"
        return {self.name: f"{said} WHERE (SELECT {checked})"}

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
    """Connection that computes and compares checksums. `damage` holds the result of a failed comparison."""

    damage: list[str]

    def failure(self, path: Path, error: sqlite3.Error | UnicodeDecodeError) -> LedgerError:
        """Convert an error of a statement into an error for the caller."""
        found, self.damage[:] = self.damage[:], []
        return Corrupt(f"{path}: {found[0]}", hint=RESTORE) if found else failure(path, error)


def connect(name: Path | str, *, uri: bool = False, timeout: float = 10.0) -> CheckedConnection:
    """Open an SQLite file with the functions of the tables."""
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
            damage.append(f"a record of {table!r} has checksum {found:#x}, stated is {stated}")
            raise Corrupt(damage[-1])
        # A view takes any number except 0 for true. The account is not affected.
        return stated

    connection.damage = damage
    connection.create_function("record_sum", -1, record_sum, deterministic=True)
    connection.create_function("checked", -1, checked, deterministic=True)
    try:
        connection.execute("PRAGMA trusted_schema=ON")
        connection.execute(
            "PRAGMA recursive_triggers=ON"
        )  # otherwise records that REPLACE deletes would stay in the account
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def record_sum(*record: object) -> int:
    """Return the checksum of a record, whose first value is the table's name: 62 bits, never 0."""
    digest = hashlib.blake2b(_encode(record), digest_size=8).digest()
    return int.from_bytes(digest, "big") & _MASK or 1


def create_tables(connection: sqlite3.Connection, tables: Iterable[RecordTable]) -> None:
    """Create tables, triggers and accounts, within the caller's transaction."""
    connection.execute(_ACCOUNT)
    for table in tables:
        for statement in table.tables().values():
            connection.execute(statement)
    connection.executemany(
        "INSERT INTO account VALUES (?, 0, 0)",
        [(table.name,) for table in tables if table.counted],
    )


def create_views(connection: sqlite3.Connection, tables: Iterable[RecordTable]) -> None:
    """Create the views, whose names must be free."""
    for table in tables:
        for statement in table.view().values():
            connection.execute(statement)


def without_checksums(connection: sqlite3.Connection) -> None:
    """Create plain tables of the records, under the names of the views, within the caller's transaction.

    Each record's checksum is compared during the copy. Triggers and indexes are deleted with the tables.
    """
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchall()]
    for name in names:
        connection.execute(f"CREATE TABLE {name}_was AS SELECT * FROM {name}")  # noqa: S608 — names of ours
    for name in names:
        connection.execute(f"DROP VIEW {name}")
        connection.execute(f"DROP TABLE {name}_row")
    connection.execute("DROP TABLE account")
    for name in names:
        connection.execute(f"ALTER TABLE {name}_was RENAME TO {name}")


def require_whole(connection: sqlite3.Connection, path: Path) -> None:
    """Make SQLite check its trees and indexes. Raises Corrupt naming `path`."""
    said = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
    if said != ["ok"]:
        raise Corrupt(f"{path} is damaged: {'; '.join(said)}", hint=RESTORE)


def require_sound(connection: sqlite3.Connection, path: Path, tables: Iterable[RecordTable]) -> None:
    """Compare statements, every record's checksum and every account. Raises Corrupt naming `path`."""
    tables = list(tables)
    require_whole(connection, path)
    _require_statements(connection, path, tables)
    accounts = {name: (records, digest) for name, records, digest in connection.execute("SELECT * FROM account")}
    for table in tables:
        sums = [row[0] for row in connection.execute(_sums_of(table))]
        found = (len(sums), sum(sums) & _MASK)
        if table.counted and accounts.get(table.name) != found:
            stated = accounts.get(table.name, "nothing")
            raise Corrupt(
                f"{path}: table {table.name!r} has (records, digest) {found}, its account states {stated}",
                hint=RESTORE,
            )
        if not table.counted and len(sums) != 1:
            raise Corrupt(f"{path}: table {table.name!r} has {len(sums)} records, expected 1", hint=RESTORE)


def failure(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> LedgerError:
    """Convert an error of SQLite into an error for the caller.

    A locked, full or unopenable file is whole, and must not be replaced by a copy.
    """
    if isinstance(error, sqlite3.IntegrityError):
        return Refused(f"{path}: {error}", hint="Nothing was changed")
    damaged = isinstance(error, UnicodeDecodeError) or type(error) is sqlite3.DatabaseError
    if damaged or _RAISED in str(error) or "UTF-8" in str(error):
        return Corrupt(f"{path} is damaged or no metadata file: {error}", hint=RESTORE)
    locked = "A broker stopped in the middle of a change keeps the file locked: let it go on, or kill it"
    return Unavailable(f"{path}: {error}", hint=locked if "locked" in str(error) else "Check the disk of the store")


def damage_of(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> LedgerError:
    """Convert an error while a file is checked. Any error except those of the moment or the disk is damage."""
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
    for name in sorted(expected.keys() | found.keys(), key=str):  # damage may have made a name bytes
        if expected.get(name) != found.get(name):
            raise Corrupt(
                f"{path}: {name!r} was made by {found.get(name, 'nothing')!r}, "
                f"expected {expected.get(name, 'nothing')!r}",
                hint=RESTORE,
            )
