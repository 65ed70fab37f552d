"""Rows that a transaction changed: captured by triggers, encoded, and applied to a copy of the database.

A store in a bucket writes these rows to its write-ahead log. A new broker applies them to its local file.

    [["segment", "put", [7, "public/…", …]], ["cursor", "delete", ["public/…", "billing", …]], …]        msgpack

msgpack is a compact binary form of JSON.

Invariants
- The changes of a transaction are complete and in order. They include rows that SQLite deletes by itself: by a foreign
  key (cascade), or because a new row replaces them.
- A change that was rolled back to its savepoint is not included.
- A copy to which the changes of all transactions are applied in order has the same records.
- A change that does not fit the copy raises `Corrupt`: it deletes a missing row, or names an unknown table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from pyspark_ledger.ledger.database.record_tables import CheckedConnection, RecordTable
from pyspark_ledger.ledger.errors import Corrupt

PUT: Literal["put"] = "put"
DELETE: Literal["delete"] = "delete"
Value = Any
"""int, float, str, bytes or None: the types of SQLite. Decoded values have the same types."""


class ChangedRow(NamedTuple):
    """Row that was put or deleted. `values` has all columns of the row, in the order of the table."""

    table: str
    change: Literal["put", "delete"]
    values: list[Value]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[ChangedRow]).decode


class Replica(Protocol):
    """Place outside the local file that has the durable copy of the records."""

    def replicate(self, rows: bytes) -> None:
        """Make the encoded rows of a transaction durable. The local file commits afterwards."""

    def diverged(self, error: BaseException) -> None:
        """End the broker: the local file could not commit rows that are durable already."""


class RowCapture:
    """Changes of one connection since the last call of `take`."""

    def __init__(self, connection: CheckedConnection, tables: Iterable[RecordTable]) -> None:
        self._rows: list[ChangedRow] = []
        connection.create_function("captured", -1, self._captured)
        for table in tables:
            put = f"SELECT captured('{table.name}', '{PUT}', {table.names('new.')});"
            delete = f"SELECT captured('{table.name}', '{DELETE}', {table.names('old.')});"
            # An update is a deleted row and a put row: the key may have changed.
            for event, captured in (("INSERT", put), ("UPDATE", delete + put), ("DELETE", delete)):
                name = f"captured_{table.name}_{event.lower()}"
                connection.execute(
                    f"CREATE TEMP TRIGGER {name} AFTER {event} ON main.{table.row_name} BEGIN {captured} END"
                )

    @property
    def count(self) -> int:
        """The number of captured changes."""
        return len(self._rows)

    def cut(self, count: int) -> None:
        """Drop the changes after the first `count`. Called after a rollback to a savepoint."""
        del self._rows[count:]

    def take(self) -> list[ChangedRow]:
        """Return the captured changes, and forget them."""
        rows, self._rows = self._rows, []
        return rows

    def _captured(self, table: str, change: Literal["put", "delete"], *values: Value) -> None:
        self._rows.append(ChangedRow(table, change, list(values)))


def inverse_rows(rows: Sequence[ChangedRow]) -> list[ChangedRow]:
    """Return the changes that undo `rows`."""
    return [row._replace(change=PUT if row.change == DELETE else DELETE) for row in reversed(rows)]


def encode_rows(rows: list[ChangedRow]) -> bytes:
    return _encode(rows)


def decode_rows(data: bytes | memoryview, where: str) -> list[ChangedRow]:
    """Return the changes. Raises Corrupt."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{where}: changed rows: {error}") from error


def apply_rows(
    connection: sqlite3.Connection, rows: Iterable[ChangedRow], tables: Iterable[RecordTable], where: str
) -> None:
    """Apply changes within the caller's transaction. Foreign keys must be off. Raises Corrupt."""
    known = {table.name: table for table in tables}
    for row in rows:
        table = known.get(row.table)
        if table is None or len(row.values) != len(table.columns):
            raise Corrupt(
                f"{where}: a row has {len(row.values)} columns of table {row.table!r}, but there is no such table"
            )
        if row.change == PUT:
            places = ", ".join("?" * len(row.values))
            try:
                connection.execute(f"INSERT INTO {table.row_name} ({table.names()}) VALUES ({places})", row.values)  # noqa: S608 — names of ours
            except sqlite3.Error as error:
                raise Corrupt(
                    f"{where}: a row of {row.table!r} cannot be put, {_shown(row.values)}: {error}"
                ) from error
            continue
        same = " AND ".join(f"{column.split(' ', 1)[0]} IS ?" for column in table.columns)
        done = connection.execute(f"DELETE FROM {table.row_name} WHERE {same}", row.values)  # noqa: S608 — as above
        if done.rowcount != 1:
            raise Corrupt(f"{where}: {done.rowcount} rows of {row.table!r} are {_shown(row.values)}, expected one")


def _shown(values: list[Value]) -> str:
    return repr([value[:40] if isinstance(value, str | bytes) else value for value in values])
