"""Who has read how far: a row of the metadata for each durable cursor.

    cursor        ledger, name, version, ManagedCursorInfo, replay floor, lease

Rules: a change compares the version that it was made from, and is durable when it returns. Names that differ only in
case are refused. The rows of a managed ledger go with it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from ledger.cursor import Cursor, Lease, cursor_info, next_position_of
from ledger.errors import Refused
from ledger.metadata_file import MetadataFile
from ledger.partition_record import require_ledger
from ledger.position import Position
from ledger.proto.managed_ledger_pb2 import ManagedCursorInfo
from ledger.record_tables import RecordTable
from ledger.unwanted_files import put_listed, put_unlisted

CURSOR_TABLE = RecordTable(
    "cursor",
    (
        "ledger TEXT NOT NULL REFERENCES ledger_row ON DELETE CASCADE",
        "name TEXT NOT NULL",
        "version INTEGER NOT NULL",
        "info BLOB NOT NULL",
        "floor_ledger INTEGER",
        "floor_entry INTEGER",
        "holder TEXT NOT NULL",
        "lease_until_ms INTEGER NOT NULL",
    ),
    "PRIMARY KEY (ledger, name)",
)


@dataclass(frozen=True, slots=True)
class CursorRecord:
    """A cursor and the version that a change of it must name."""

    cursor: Cursor
    version: int


class CursorRecords:
    """All durable cursors of a store. Any thread may call any method."""

    def __init__(self, file: MetadataFile) -> None:
        self._file = file

    def names(self, ledger: str) -> list[str]:
        """The durable cursors of a managed ledger, sorted."""
        rows = self._file.read(
            lambda c: c.execute("SELECT name FROM cursor WHERE ledger = ? ORDER BY name", (ledger,)).fetchall()
        )
        return [row[0] for row in rows]

    def get(self, ledger: str, name: str) -> CursorRecord | None:
        """A cursor's record, or None."""
        row = self._file.read(
            lambda c: c.execute(
                "SELECT version, info, floor_ledger, floor_entry, holder, lease_until_ms FROM cursor "
                "WHERE ledger = ? AND name = ?",
                (ledger, name),
            ).fetchone()
        )
        if row is None:
            return None
        return CursorRecord(_cursor(ledger, name, *row[1:]), row[0])

    def of(self, ledger: str) -> list[Cursor]:
        """All durable cursors of a managed ledger."""
        rows = self._file.read(
            lambda c: c.execute(
                "SELECT name, info, floor_ledger, floor_entry, holder, lease_until_ms FROM cursor WHERE ledger = ?",
                (ledger,),
            ).fetchall()
        )
        return [_cursor(ledger, *row) for row in rows]

    def put(self, cursor: Cursor, expected: int | None) -> CursorRecord | None:
        """Write a cursor over the version `expected` (None: there is none yet). None when somebody was faster."""
        floor = cursor.replay_floor
        values = (
            cursor_info(cursor).SerializeToString(),
            None if floor is None else floor.ledger_id,
            None if floor is None else floor.entry_id,
            cursor.lease.holder,
            cursor.lease.until_ms,
            cursor.ledger,
            cursor.name,
        )

        own = {cursor.kept_info().cursorsLedgerId} - {-1}

        def put(c: sqlite3.Connection) -> int:
            if expected is None:
                require_ledger(c, cursor.ledger)
                _require_own_case(c, cursor)
                put_listed(c, own)
                return c.execute(
                    "INSERT OR IGNORE INTO cursor_row (info, floor_ledger, floor_entry, holder, lease_until_ms, "
                    "ledger, name, version) VALUES (?, ?, ?, ?, ?, ?, ?, 0)",
                    values,
                ).rowcount
            before = _own_ledgers(c, "ledger = ? AND name = ?", (cursor.ledger, cursor.name))
            done = c.execute(
                "UPDATE cursor_row SET info = ?, floor_ledger = ?, floor_entry = ?, holder = ?, lease_until_ms = ?, "
                "version = version + 1 WHERE ledger = ? AND name = ? AND version = ?",
                (*values, expected),
            ).rowcount
            if done == 1:
                put_unlisted(c, before - own)
                put_listed(c, own - before)
            return done

        done = self._file.change(put)
        return CursorRecord(cursor, 0 if expected is None else expected + 1) if done == 1 else None

    def delete(self, ledger: str, name: str) -> bool:
        """Delete a cursor; False when there was none."""

        def delete(c: sqlite3.Connection) -> bool:
            put_unlisted(c, _own_ledgers(c, "ledger = ? AND name = ?", (ledger, name)))
            return c.execute("DELETE FROM cursor_row WHERE ledger = ? AND name = ?", (ledger, name)).rowcount == 1

        return self._file.change(delete)

    def slowest(self, ledger: str) -> Position | None:
        """The first position that any durable cursor of a managed ledger still needs; None without cursors."""
        return self._file.read(lambda c: slowest_of(c, ledger))

    def ledger_ids(self) -> set[int]:
        """The ids of the cursors' own ledgers."""
        return self._file.read(lambda c: _own_ledgers(c, "TRUE", ()))


def slowest_of(c: sqlite3.Connection, ledger: str) -> Position | None:
    """The same as `CursorRecords.slowest`, within a change."""
    rows = c.execute("SELECT info, floor_ledger, floor_entry FROM cursor WHERE ledger = ?", (ledger,)).fetchall()
    needed = [next_position_of(ManagedCursorInfo.FromString(row[0])) for row in rows]
    needed += [Position(row[1], row[2]) for row in rows if row[1] is not None]
    return min(needed, default=None)


def own_ledgers_of(c: sqlite3.Connection, ledger: str) -> set[int]:
    """The ids of the own ledgers of a managed ledger's cursors, within a change."""
    return _own_ledgers(c, "ledger = ?", (ledger,))


def _own_ledgers(c: sqlite3.Connection, which: str, values: tuple[str, ...]) -> set[int]:
    infos = c.execute(f"SELECT info FROM cursor WHERE {which}", values)  # noqa: S608 — texts of ours
    return {ManagedCursorInfo.FromString(row[0]).cursorsLedgerId for row in infos} - {-1}


def _cursor(
    ledger: str, name: str, info: bytes, floor_ledger: int | None, floor_entry: int, holder: str, until_ms: int
) -> Cursor:
    said = ManagedCursorInfo.FromString(info)
    floor = None if floor_ledger is None else Position(floor_ledger, floor_entry)
    return Cursor(ledger, name, next_position_of(said), floor, Lease(holder, until_ms)).keeping(said)


def _require_own_case(c: sqlite3.Connection, cursor: Cursor) -> None:
    for (name,) in c.execute("SELECT name FROM cursor WHERE ledger = ?", (cursor.ledger,)):
        if name != cursor.name and name.casefold() == cursor.name.casefold():
            raise Refused(
                f"cursor {cursor.name!r} of {cursor.ledger!r} differs from {name!r} only in case",
                hint="Use that one or another name",
            )
