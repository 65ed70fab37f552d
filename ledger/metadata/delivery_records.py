"""Delivery records: a record lists the rows that one batch of a query delivers, if rows are acknowledged one by one.

Spark may repeat the batch. With its record, the repetition delivers the same rows. So a record is kept as long as
Spark's checkpoint may name its number.

    delivery        (ledger, cursor, record) → the rows of the batch, the outstanding rows, the next batch's position
    delivery_chunk  (ledger, cursor, record, chunk) → a part of a body above 1 MiB, numbered from 0

    body       msgpack, a binary form of JSON; from 64 KiB on  00 | size u32 | the msgpack in ZSTD
               (an array in msgpack never starts with 00)
               if the body is in chunks: the footer of PIP-381 instead, {"numParts":N,"length":L}

*Outstanding* rows were delivered and are not acknowledged yet. *Dead letters* are rows that were delivered too often.
They are written to another ledger.

Rules
- A record is durable before its number is returned. Numbers rise, so two batches of a checkpoint never share a number.
- Chunks and their footer are written, replaced and deleted in one transaction, and read by one statement. If the chunks
  differ from the footer, the record is damaged, and a read of the record raises `Corrupt`.
- After Spark has committed the batch of record *n*, the rows of the next batch are chosen, and their record is stored.
  The same transaction deletes all other records, except record -1. Reason: Spark repeats no earlier batch, and no
  checkpoint names a later record.
- Record -1 has the dead letters that are not written to their ledger yet.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable

import msgspec

from pyspark_ledger.ledger.database.database import Records
from pyspark_ledger.ledger.database.record_tables import RecordTable
from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.message.compression import ZSTD, compress, decompress
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord, change_cursor
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.position_chunks import FOOTER_FIRST, in_chunks, parse_footer
from pyspark_ledger.ledger.protocol.cursors import DeliveredRange

_OF_CURSOR = ("ledger TEXT NOT NULL REFERENCES ledger_row ON DELETE CASCADE", "cursor TEXT NOT NULL")
DELIVERY_TABLE = RecordTable(
    "delivery",
    (*_OF_CURSOR, "record INTEGER NOT NULL", "body BLOB NOT NULL"),
    "PRIMARY KEY (ledger, cursor, record)",
    rowid=True,
)
DELIVERY_CHUNK_TABLE = RecordTable(
    "delivery_chunk",
    (*_OF_CURSOR, "record INTEGER NOT NULL", "chunk INTEGER NOT NULL", "body BLOB NOT NULL"),
    "PRIMARY KEY (ledger, cursor, record, chunk)",
    rowid=True,
)
DEAD = -1
BODY_BYTES_MAX = 2**29
_DEFLATED, _DEFLATED_FROM = 0x00, 64 * 1024
_HEAD = struct.Struct(">BI")
_FOOTER = bytes([FOOTER_FIRST])
_RECORD_MAX = 2**63 - 1
_DAMAGED = "Restore the store from a copy, or reset the cursor, which deletes its records of deliveries"
# One statement reads a record and its chunks from the same state of the file.
_ONE = """
SELECT found.record, CAST(found.body AS BLOB), part.chunk, CAST(part.body AS BLOB)
FROM (SELECT ledger, cursor, record, body FROM delivery WHERE ledger = ? AND cursor = ? AND {which}) AS found
LEFT JOIN delivery_chunk AS part USING (ledger, cursor, record) ORDER BY part.chunk"""


class DeliveryRecord(msgspec.Struct, frozen=True, array_like=True):
    """Record of a batch. `shares` are the rows of the batch. `waiting` are outstanding rows of earlier batches.

    `position` is the start of the next batch. `since_ms` is the time of the first record after the newest reset of the
    cursor, 0 if the record is older than this field.
    """

    record: int
    position: Position
    shares: list[DeliveredRange]
    waiting: list[DeliveredRange] = []
    since_ms: int = 0


_RECORD = msgspec.msgpack.Decoder(DeliveryRecord)


class DeliveryRecords(Records):
    """Records of delivered batches of a store. Any thread may call any method."""

    def get(self, ledger: str, cursor: str, record: int) -> DeliveryRecord | None:
        return self._one("record = ?", ledger, cursor, record)

    def newest(self, ledger: str, cursor: str) -> DeliveryRecord | None:
        return self._one("record > ? ORDER BY record DESC LIMIT 1", ledger, cursor, 0)

    def put(
        self,
        ledger: str,
        cursor: str,
        record: DeliveryRecord,
        after: int,
        change: Callable[[CursorRecord], CursorRecord] | None = None,
    ) -> None:
        """Store the record that follows `after`. Delete all other records, except `after` and the dead letters.

        The same transaction applies `change` to the cursor.
        """

        def put(c: sqlite3.Connection) -> None:
            if change is not None:
                change_cursor(c, ledger, cursor, change)
            _delete(c, "record > 0 AND record <> ?", ledger, cursor, after)
            _insert(c, ledger, cursor, record.record, record)

        self._file.change(put)

    def put_dead(self, ledger: str, cursor: str, dead: DeliveryRecord) -> None:
        self._file.change(lambda c: _insert(c, ledger, cursor, DEAD, dead))

    def forget(self, ledger: str, cursor: str, *, dead_only: bool = False) -> None:
        """Delete the records of a cursor, or with `dead_only` the record of its dead letters."""
        least, most = DEAD, DEAD if dead_only else _RECORD_MAX
        self._file.change(lambda c: _delete(c, "record BETWEEN ? AND ?", ledger, cursor, least, most))

    def _one(self, which: str, ledger: str, cursor: str, record: int) -> DeliveryRecord | None:
        rows = self._file.read(lambda c: c.execute(_ONE.format(which=which), (ledger, cursor, record)).fetchall())
        if not rows:
            return None
        number, body, *_ = rows[0]
        where = f"record {number} of batches of cursor {cursor!r} of {ledger!r} in {self._file.path}"
        chunks = {chunk: part for _, _, chunk, part in rows if chunk is not None}
        try:
            return _RECORD.decode(_inflated(_whole(body, chunks, where), where))
        except (msgspec.DecodeError, struct.error) as wrong:
            raise Corrupt(f"{where} is damaged: {wrong}", hint=_DAMAGED) from wrong


def _delete(c: sqlite3.Connection, which: str, *values: str | int) -> None:
    for table in (DELIVERY_CHUNK_TABLE, DELIVERY_TABLE):
        c.execute(f"DELETE FROM {table.row_name} WHERE ledger = ? AND cursor = ? AND {which}", values)  # noqa: S608 — ours


def _insert(c: sqlite3.Connection, ledger: str, cursor: str, number: int, record: DeliveryRecord) -> None:
    *chunks, last = in_chunks(_deflated(record))
    _delete(c, "record = ?", ledger, cursor, number)
    c.executemany(
        "INSERT INTO delivery_chunk_row (ledger, cursor, record, chunk, body) VALUES (?, ?, ?, ?, ?)",
        [(ledger, cursor, number, at, chunk) for at, chunk in enumerate(chunks)],
    )
    c.execute(
        "INSERT INTO delivery_row (ledger, cursor, record, body) VALUES (?, ?, ?, ?)", (ledger, cursor, number, last)
    )


def _whole(body: bytes, chunks: dict[int, bytes], where: str) -> bytes:
    """Join the chunks of a body. Raises Corrupt if their number or length differs from the footer."""
    if not body.startswith(_FOOTER):
        return body
    footer = parse_footer(body, where)
    found = sum(map(len, chunks.values()))
    if (len(chunks), found) != (footer.numParts, footer.length) or list(chunks) != list(range(len(chunks))):
        raise Corrupt(
            f"{where} states {footer.numParts} chunks of {footer.length} bytes, {len(chunks)} of {found} bytes exist",
            hint=_DAMAGED,
        )
    return b"".join(chunks.values())


def _deflated(record: DeliveryRecord) -> bytes:
    body = msgspec.msgpack.encode(record)
    if len(body) < _DEFLATED_FROM:
        return body
    if len(body) > BODY_BYTES_MAX:
        raise Refused(
            f"the record of a batch's rows has {len(body)} bytes, at most {BODY_BYTES_MAX} are allowed",
            hint="Set maxRowsPerTrigger, or acknowledge the rows of earlier batches",
        )
    return _HEAD.pack(_DEFLATED, len(body)) + compress(ZSTD, body, level=1)


def _inflated(body: bytes, where: str) -> bytes | memoryview:
    if body[:1] != bytes([_DEFLATED]):
        return body
    _, size = _HEAD.unpack_from(body)
    return decompress(ZSTD, memoryview(body)[_HEAD.size :], size, where, max_bytes=BODY_BYTES_MAX)
