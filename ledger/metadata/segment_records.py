"""Rows of segments: the segments of each managed ledger, and the segments that retention deleted (trimmed).

A *segment* is one file of a ledger; its id is `ledger_id` in the code, as in Pulsar. An *entry* is one append. An
*attempt* is one upload of a segment to object storage.

    segment       by segment id: Pulsar's `LedgerInfo`, and values that it lacks: block size, rows, file size, entries
                  with rows
    trimmed       by segment id: entries, rows and bytes of each deleted segment; sixty bytes each, kept as long as the
                  ledger exists

Rules
- The cost of a change depends on the number of rows that it changes, not on the number of segments.
- If a change makes files or objects unwanted, the same transaction records them as unwanted.
- If a segment was deleted before a reader had read it, its row in `trimmed` shows how many entries the reader has lost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark_ledger.ledger.database.database import Records
from pyspark_ledger.ledger.database.record_tables import RecordTable
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.metadata.unwanted_files import put_listed, put_remote, put_unlisted, put_unwanted
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from pyspark_ledger.ledger.protocol.actions import SegmentDescription

SEGMENT_TABLE = RecordTable(
    "segment",
    (
        "ledger_id INTEGER PRIMARY KEY",
        "ledger TEXT NOT NULL REFERENCES ledger_row ON DELETE CASCADE",
        "block_bytes INTEGER NOT NULL",
        "first_row INTEGER NOT NULL",
        "rows INTEGER NOT NULL",
        "file_bytes INTEGER NOT NULL",
        "created_ms INTEGER NOT NULL",
        "row_entries INTEGER NOT NULL DEFAULT -1",
        "info BLOB NOT NULL DEFAULT x''",
    ),
    indexes=("ledger",),
    rowid=True,
)
TRIMMED_TABLE = RecordTable(
    "trimmed",
    (
        "ledger_id INTEGER PRIMARY KEY",
        "ledger TEXT NOT NULL REFERENCES ledger_row ON DELETE CASCADE",
        "entries INTEGER NOT NULL",
        "rows INTEGER NOT NULL",
        "size_bytes INTEGER NOT NULL",
        "close_ms INTEGER NOT NULL",
    ),
    rowid=True,
)
_COLUMNS = "ledger_id, block_bytes, first_row, rows, file_bytes, created_ms, row_entries, info"
LedgerInfo = ManagedLedgerInfo.LedgerInfo


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """Segment of a managed ledger. `rows` and `file_bytes` are 0 while it is open.

    `row_entries` is the number of entries with rows, -1 if unknown. `info` is an encoded `LedgerInfo`.
    """

    ledger_id: int
    block_bytes: int
    first_row: int
    rows: int
    file_bytes: int
    created_ms: int
    row_entries: int = -1
    info: bytes = b""

    def listed(self) -> LedgerInfo:
        """Return Pulsar's record of the segment."""
        return LedgerInfo.FromString(self.info) if self.info else LedgerInfo(ledgerId=self.ledger_id)


class SegmentRecords(Records):
    """Segments of a store. Any thread may call any method."""

    def of(self, name: str) -> list[SegmentRecord]:
        """Return the segments of a managed ledger, in order."""
        query = f"SELECT {_COLUMNS} FROM segment WHERE ledger = ? ORDER BY ledger_id"  # noqa: S608 — constant column names
        return [SegmentRecord(*row) for row in self._file.read(lambda c: c.execute(query, (name,)).fetchall())]

    def get(self, name: str, ledger_id: int) -> SegmentRecord | None:
        """Return a segment of a managed ledger, or None if the ledger does not have it."""
        query = f"SELECT {_COLUMNS} FROM segment WHERE ledger_id = ? AND ledger = ?"  # noqa: S608 — as above
        row = self._file.read(lambda c: c.execute(query, (ledger_id, name)).fetchone())
        return None if row is None else SegmentRecord(*row)

    def ledger_ids(self) -> set[int]:
        """Return the ids of all segments of managed ledgers."""
        return {row[0] for row in self._file.read(lambda c: c.execute("SELECT ledger_id FROM segment").fetchall())}

    def only_local(self) -> set[int]:
        """Return the ids of all segments, open or sealed, without a complete copy in object storage."""
        rows = self._file.read(lambda c: c.execute("SELECT ledger_id, info FROM segment").fetchall())
        found = ((ledger_id, OffloadAttempt.of(LedgerInfo.FromString(info))) for ledger_id, info in rows)
        return {ledger_id for ledger_id, attempt in found if attempt is None or not attempt.complete}

    def owner(self, ledger_id: int) -> str | None:
        """Return the name of the managed ledger that lists a segment, None if no list has it."""
        query = "SELECT ledger FROM segment WHERE ledger_id = ?"
        row = self._file.read(lambda c: c.execute(query, (ledger_id,)).fetchone())
        return None if row is None else str(row[0])

    def attempts(self) -> list[tuple[str, int, OffloadAttempt]]:
        """Return every recorded offload attempt, with the name of the managed ledger and the segment's id."""
        query = "SELECT ledger, ledger_id, info FROM segment ORDER BY ledger_id"
        rows = self._file.read(lambda c: c.execute(query).fetchall())
        found = (
            (ledger, ledger_id, OffloadAttempt.of(LedgerInfo.FromString(info))) for ledger, ledger_id, info in rows
        )
        return [(ledger, ledger_id, attempt) for ledger, ledger_id, attempt in found if attempt is not None]

    def trimmed(self, name: str) -> list[SegmentDescription]:
        """Return the trimmed segments of a managed ledger, oldest first."""
        query = "SELECT ledger_id, entries, size_bytes, rows, close_ms FROM trimmed WHERE ledger = ? ORDER BY ledger_id"
        return [SegmentDescription(*row) for row in self._file.read(lambda c: c.execute(query, (name,)).fetchall())]


def attempts_of(segments: Iterable[SegmentRecord]) -> list[tuple[int, OffloadAttempt]]:
    """Return the offload attempts of segments, each with the segment's id."""
    found = ((segment.ledger_id, OffloadAttempt.of(segment.listed())) for segment in segments)
    return [(ledger_id, attempt) for ledger_id, attempt in found if attempt is not None]


def put_segment(c: sqlite3.Connection, name: str, segment: SegmentRecord) -> None:
    """Insert or replace the row of a segment. Record objects that become unwanted.

    Raises Corrupt if the id is that of another ledger's segment.
    """
    row = c.execute("SELECT info, ledger FROM segment WHERE ledger_id = ?", (segment.ledger_id,)).fetchone()
    if row is not None and row[1] != name:
        raise Corrupt(f"segment {segment.ledger_id} belongs to {row[1]!r}, and {name!r} was going to list it")
    values = (
        segment.ledger_id, name, segment.block_bytes, segment.first_row, segment.rows, segment.file_bytes,
        segment.created_ms, segment.row_entries, segment.info,
    )  # fmt: skip
    c.execute("INSERT OR REPLACE INTO segment_row VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    if row is None:
        put_listed(c, [segment.ledger_id])
    before = None if row is None else OffloadAttempt.of(LedgerInfo.FromString(row[0]))
    after = OffloadAttempt.of(segment.listed())
    put_unwanted(c, name, segment.ledger_id, before, after)
    if row is not None and _is_remote(after) and not _is_remote(before):
        put_remote(c, segment.ledger_id)


def take_segments(c: sqlite3.Connection, name: str, ledger_ids: Iterable[int], *, trimmed: bool = False) -> None:
    """Delete the rows of segments. Record their files and objects as unwanted. With `trimmed`, keep their counts."""
    for ledger_id in ledger_ids:
        query = "SELECT info, rows FROM segment WHERE ledger_id = ? AND ledger = ?"
        row = c.execute(query, (ledger_id, name)).fetchone()
        if row is None:
            continue
        listed = LedgerInfo.FromString(row[0]) if row[0] else LedgerInfo(ledgerId=ledger_id)
        if trimmed:
            values = (ledger_id, name, listed.entries, row[1], listed.size, listed.timestamp)
            c.execute("INSERT OR REPLACE INTO trimmed_row VALUES (?, ?, ?, ?, ?, ?)", values)
        put_unwanted(c, name, ledger_id, OffloadAttempt.of(listed), None)
        c.execute("DELETE FROM segment_row WHERE ledger_id = ?", (ledger_id,))
        put_unlisted(c, [ledger_id])


def take_all_segments(c: sqlite3.Connection, names: Sequence[str]) -> set[int]:
    """Delete the rows of all segments of managed ledgers. Return their ids."""
    gone: set[int] = set()
    for name in names:
        ids = [row[0] for row in c.execute("SELECT ledger_id FROM segment WHERE ledger = ?", (name,)).fetchall()]
        take_segments(c, name, ids)
        gone.update(ids)
    return gone


def _is_remote(attempt: OffloadAttempt | None) -> bool:
    return attempt is not None and attempt.complete and attempt.local_deleted
