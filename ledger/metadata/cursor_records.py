"""Durable cursors: which positions of a ledger a named reader has acknowledged, and who may use the cursor now.

An *entry* is one append. A *segment* is one file of a ledger. A *position* is the place before an entry: a segment id
and an entry id.

    table cursor  ledger, name, version, ManagedCursorInfo, replay floor, lease
                  columns for look-ups: the name in lower case, and the first position that the cursor needs

Invariants of a cursor
- `advance` never moves a cursor back. Only `reset` does.
- A cursor never passes the end of the log.
- The *replay floor* is the end of the last batch that Spark has certainly committed. Spark may repeat later batches. So
  entries after the floor or after the cursor must stay readable. Only `reset` moves the floor back.
- A *lease* is the right of one reader to use the cursor for some time (`ledger.cursor.leases`).
- `CursorRecord` is immutable: a change returns another record.

Rules of the metadata
- A change compares the version of the row, and is durable when the call returns.
- Names that differ only in case are refused.
- The rows of a managed ledger are deleted with the ledger.

`ManagedCursorInfo` is Pulsar's record of a cursor. Its field *mark-delete* is the entry up to which all entries are
acknowledged. A `CursorRecord` has the position after this entry instead, `next_position`. If `next_position` is
`(segment, entry)`, mark-delete is `(segment, entry - 1)`. At the start of a segment this is `(segment, -1)`, as in
Pulsar.

A cursor may also have acknowledged single entries or rows after `next_position`. A small set of such positions is in
the `ManagedCursorInfo`. A larger set is in the *cursor's log*, a segment file of its own. The field `cursorsLedgerId`
is the id of this file, or -1 without a log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from pyspark_ledger.ledger.database.database import Records
from pyspark_ledger.ledger.database.record_tables import RecordTable
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.metadata.partition_records import require_ledger
from pyspark_ledger.ledger.metadata.unwanted_files import put_listed, put_unlisted
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.position_info import encode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedCursorInfo, PositionInfo


class Lease(msgspec.Struct, frozen=True):
    """Right to use a cursor until `until_ms`. A released lease has the time 0, and keeps its last holder."""

    holder: str = ""
    until_ms: int = 0


class CursorRecord(msgspec.Struct, frozen=True):
    """Durable cursor. All entries before `next_position` are acknowledged.

    `kept` is Pulsar's record of the cursor without mark-delete, encoded.
    """

    ledger: str
    name: str
    next_position: Position
    replay_floor: Position | None = None
    lease: Lease = Lease()
    kept: bytes = b""

    def at(self, next_position: Position) -> CursorRecord:
        """Return the cursor with another `next_position`."""
        return msgspec.structs.replace(self, next_position=next_position)

    def kept_info(self) -> ManagedCursorInfo:
        """Return Pulsar's record without its mark-delete position.

        The record contains the cursor's properties. It also contains the set of positions acknowledged after
        `next_position`, or the id of the log with this set.
        """
        return ManagedCursorInfo.FromString(self.kept) if self.kept else ManagedCursorInfo(cursorsLedgerId=-1)

    def in_ledger(self, ledger_id: int) -> CursorRecord:
        """Return the cursor with its set of acknowledged positions in the log `ledger_id`. -1 means no log."""
        info = self.kept_info()
        info.cursorsLedgerId = ledger_id
        del info.individualDeletedMessages[:]
        del info.batchedEntryDeletionIndexInfo[:]
        return self.keeping(info)

    def inline(self, positions: PositionSet) -> CursorRecord:
        """Return the cursor with a small set of acknowledged positions in the record itself, as Pulsar's ranges."""
        encoded = PositionInfo.FromString(encode_info(self.next_position, positions, as_words=False))
        info = self.in_ledger(-1).kept_info()
        info.individualDeletedMessages.extend(encoded.individualDeletedMessages)
        info.batchedEntryDeletionIndexInfo.extend(encoded.batchedEntryDeletionIndexInfo)
        return self.keeping(info)

    @property
    def needed(self) -> Position:
        """The first position whose entries must stay readable."""
        return self.next_position if self.replay_floor is None else min(self.next_position, self.replay_floor)

    @property
    def properties(self) -> dict[str, str]:
        return {pair.name: pair.value for pair in self.kept_info().cursorProperties}

    def with_properties(self, values: Mapping[str, str], remove: Collection[str]) -> CursorRecord:
        """Return the cursor with properties set and removed."""
        kept = {name: value for name, value in self.properties.items() if name not in remove}
        info = self.kept_info()
        del info.cursorProperties[:]
        for name, value in sorted({**kept, **values}.items()):
            info.cursorProperties.add(name=name, value=value)
        return self.keeping(info)

    def keeping(self, info: ManagedCursorInfo) -> CursorRecord:
        """Return the cursor with `info` as its Pulsar record. The mark-delete position in `info` is ignored."""
        info.ClearField("markDeleteLedgerId")
        info.ClearField("markDeleteEntryId")
        plain = info == ManagedCursorInfo(cursorsLedgerId=-1)
        return msgspec.structs.replace(self, kept=b"" if plain else info.SerializeToString())

    def advance(self, next_position: Position, end: Position, replay_floor: Position | None) -> CursorRecord:
        """Acknowledge all entries before `next_position`. A move back changes nothing.

        Raises Refused for a move past the end of the log.
        """
        self._require_within(next_position, end)
        floor = self.replay_floor
        if replay_floor is not None:
            self._require_within(replay_floor, end)
            floor = replay_floor if floor is None else max(floor, replay_floor)
        return msgspec.structs.replace(self, next_position=max(self.next_position, next_position), replay_floor=floor)

    def reset(self, next_position: Position, end: Position) -> CursorRecord:
        """Move the cursor to any position. The replay floor moves back to this position, and never forward."""
        self._require_within(next_position, end)
        floor = self.replay_floor
        return msgspec.structs.replace(
            self,
            next_position=next_position,
            kept=self.in_ledger(-1).kept,
            replay_floor=None if floor is None else min(floor, next_position),
        )

    def with_lease(
        self, holder: str, ttl_ms: int, now_ms: int, holder_is_gone: Callable[[str], bool], *, renews: bool = False
    ) -> tuple[CursorRecord, bool]:
        """Return the cursor after `holder` requested its lease, and whether the lease was granted."""
        lease = self.lease
        if renews and (lease.holder != holder or not lease.until_ms):
            return self, False
        free = not lease.holder or lease.holder == holder or lease.until_ms <= now_ms
        if not free and not holder_is_gone(lease.holder):
            return self, False
        return msgspec.structs.replace(self, lease=Lease(holder, now_ms + ttl_ms)), True

    def without_lease(self, holder: str) -> CursorRecord:
        """Return the cursor after `holder` has released its lease. A lease of another holder stays."""
        if self.lease.holder != holder:
            return self
        return msgspec.structs.replace(self, lease=Lease(holder))

    def _require_within(self, position: Position, end: Position) -> None:
        if position > end:
            raise Refused(
                f"cursor {self.name!r} of {self.ledger!r} cannot acknowledge up to {position}: the log ends at {end}",
                hint="Acknowledge only positions that were read from this ledger",
            )


def cursor_info(cursor: CursorRecord) -> ManagedCursorInfo:
    """Return the complete record that Pulsar's metadata store has of a cursor, with its mark-delete position."""
    info = cursor.kept_info()
    info.markDeleteLedgerId = cursor.next_position.ledger_id
    info.markDeleteEntryId = cursor.next_position.entry_id - 1
    return info


def next_position_of(info: ManagedCursorInfo) -> Position:
    """Return the position after the mark-delete position of Pulsar's record."""
    return Position(info.markDeleteLedgerId, info.markDeleteEntryId + 1)


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
        "folded TEXT NOT NULL DEFAULT ''",
        "needed_ledger INTEGER NOT NULL DEFAULT -1",
        "needed_entry INTEGER NOT NULL DEFAULT 0",
    ),
    "PRIMARY KEY (ledger, name)",
    indexes=("ledger, folded", "ledger, needed_ledger, needed_entry"),
)


@dataclass(frozen=True, slots=True)
class StoredCursor:
    """Cursor with the version of its row. A change must state this version."""

    cursor: CursorRecord
    version: int


class CursorRecords(Records):
    """Durable cursors of a store. Any thread may call any method."""

    def names(self, ledger: str) -> list[str]:
        """Return the names of a managed ledger's durable cursors, sorted."""
        rows = self._file.read(
            lambda c: c.execute("SELECT name FROM cursor WHERE ledger = ? ORDER BY name", (ledger,)).fetchall()
        )
        return [row[0] for row in rows]

    def get(self, ledger: str, name: str) -> StoredCursor | None:
        return self._file.read(lambda c: _stored(c, ledger, name))

    def put(self, cursor: CursorRecord, expected: int | None) -> StoredCursor | None:
        """Write a cursor over the version `expected`, or create it if `expected` is None.

        Returns None if the row has another version, because another thread has changed it.
        """
        done = self._file.change(lambda c: _insert(c, cursor) if expected is None else _update(c, cursor, expected))
        return StoredCursor(cursor, 0 if expected is None else expected + 1) if done == 1 else None

    def create_all(self, cursors: Iterable[CursorRecord]) -> None:
        """Create those of the cursors that are missing, in one transaction. An error creates none of them."""
        self._file.change(lambda c: sum(_insert(c, cursor) for cursor in cursors))

    def change_all(
        self,
        keys: Iterable[tuple[str, str]],
        change: Callable[[list[CursorRecord | None]], Sequence[CursorRecord | None]],
    ) -> None:
        """Change several cursors in one transaction, in which no other thread changes them.

        `keys` are names of ledgers and cursors. `change` receives None for a missing cursor, and returns the cursors
        in the same order.
        """

        def change_all(c: sqlite3.Connection) -> None:
            found = [_stored(c, ledger, name) for ledger, name in keys]
            changed = change([None if stored is None else stored.cursor for stored in found])
            for stored, cursor in zip(found, changed, strict=True):
                if stored is not None and cursor is not None and cursor != stored.cursor:
                    _update(c, cursor, stored.version)

        self._file.change(change_all)

    def delete(self, ledger: str, name: str) -> bool:
        """Delete a cursor. Return whether it existed."""

        def delete(c: sqlite3.Connection) -> bool:
            put_unlisted(c, _own_ledgers(c, "ledger = ? AND name = ?", (ledger, name)))
            return c.execute("DELETE FROM cursor_row WHERE ledger = ? AND name = ?", (ledger, name)).rowcount == 1

        return self._file.change(delete)

    def slowest(self, ledger: str) -> Position | None:
        """Return the first position that any durable cursor of a managed ledger needs, or None without cursors."""
        return self._file.read(lambda c: slowest_of(c, ledger))

    def ledger_ids(self) -> set[int]:
        """Return the segment ids of all logs in which cursors store their acknowledged positions."""
        return self._file.read(lambda c: _own_ledgers(c, "TRUE", ()))


def change_cursor(
    c: sqlite3.Connection, ledger: str, name: str, change: Callable[[CursorRecord], CursorRecord]
) -> None:
    """Change a cursor within a transaction, in which no other thread changes it. Raises NotFound if it is missing."""
    found = _stored(c, ledger, name)
    if found is None:
        raise NotFound(f"ledger {ledger!r} has no cursor {name!r}")
    changed = change(found.cursor)
    if changed != found.cursor:
        _update(c, changed, found.version)


def slowest_of(c: sqlite3.Connection, ledger: str) -> Position | None:
    """Return the result of `CursorRecords.slowest` within a transaction."""
    row = c.execute(
        "SELECT needed_ledger, needed_entry FROM cursor WHERE ledger = ? ORDER BY needed_ledger, needed_entry LIMIT 1",
        (ledger,),
    ).fetchone()
    return None if row is None else Position(*row)


def own_ledgers_of(c: sqlite3.Connection, ledger: str) -> set[int]:
    """Return, within a transaction, the ids of the logs that a managed ledger's cursors own."""
    return _own_ledgers(c, "ledger = ?", (ledger,))


def _stored(c: sqlite3.Connection, ledger: str, name: str) -> StoredCursor | None:
    row = c.execute(
        "SELECT version, info, floor_ledger, floor_entry, holder, lease_until_ms FROM cursor "
        "WHERE ledger = ? AND name = ?",
        (ledger, name),
    ).fetchone()
    return None if row is None else StoredCursor(_cursor(ledger, name, *row[1:]), row[0])


def _insert(c: sqlite3.Connection, cursor: CursorRecord) -> int:
    """Create a cursor. Return 0 if it exists, else 1."""
    require_ledger(c, cursor.ledger)
    _require_own_case(c, cursor)
    put_listed(c, _own_ledger(cursor))
    return c.execute(
        "INSERT OR IGNORE INTO cursor_row (info, floor_ledger, floor_entry, holder, lease_until_ms, "
        "folded, needed_ledger, needed_entry, ledger, name, version) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
        _values(cursor),
    ).rowcount


def _update(c: sqlite3.Connection, cursor: CursorRecord, expected: int) -> int:
    """Write a cursor over the version `expected`. Return 0 if the row has another version, else 1."""
    own = _own_ledger(cursor)
    before = _own_ledgers(c, "ledger = ? AND name = ?", (cursor.ledger, cursor.name))
    done = c.execute(
        "UPDATE cursor_row SET info = ?, floor_ledger = ?, floor_entry = ?, holder = ?, lease_until_ms = ?, "
        "folded = ?, needed_ledger = ?, needed_entry = ?, version = version + 1 "
        "WHERE ledger = ? AND name = ? AND version = ?",
        (*_values(cursor), expected),
    ).rowcount
    if done == 1:
        put_unlisted(c, before - own)
        put_listed(c, own - before)
    return done


def _values(cursor: CursorRecord) -> tuple[object, ...]:
    floor = cursor.replay_floor
    return (
        cursor_info(cursor).SerializeToString(),
        None if floor is None else floor.ledger_id,
        None if floor is None else floor.entry_id,
        cursor.lease.holder,
        cursor.lease.until_ms,
        cursor.name.casefold(),
        cursor.needed.ledger_id,
        cursor.needed.entry_id,
        cursor.ledger,
        cursor.name,
    )


def _own_ledger(cursor: CursorRecord) -> set[int]:
    return {cursor.kept_info().cursorsLedgerId} - {-1}


def _own_ledgers(c: sqlite3.Connection, which: str, values: tuple[str, ...]) -> set[int]:
    infos = c.execute(f"SELECT info FROM cursor WHERE {which}", values)  # noqa: S608 — constant texts of this module
    return {ManagedCursorInfo.FromString(row[0]).cursorsLedgerId for row in infos} - {-1}


def _cursor(
    ledger: str, name: str, info: bytes, floor_ledger: int | None, floor_entry: int, holder: str, until_ms: int
) -> CursorRecord:
    record = ManagedCursorInfo.FromString(info)
    floor = None if floor_ledger is None else Position(floor_ledger, floor_entry)
    return CursorRecord(ledger, name, next_position_of(record), floor, Lease(holder, until_ms)).keeping(record)


def _require_own_case(c: sqlite3.Connection, cursor: CursorRecord) -> None:
    found = c.execute(
        "SELECT name FROM cursor WHERE ledger = ? AND folded = ?", (cursor.ledger, cursor.name.casefold())
    )
    for (name,) in found.fetchall():
        if name != cursor.name:
            raise Refused(
                f"cursor {cursor.name!r} of {cursor.ledger!r} differs from {name!r} only in case",
                hint=f"Use {name!r}, or a name that differs in more than case",
            )
