"""Records of what batches deliver, kept in the metadata for as long as a checkpoint may need them.

    delivery   (ledger, cursor, record) → what the batch delivers, what else is outstanding, where the next one reads on

    body       msgpack; from 64 KiB on  00 | size u32 | the same in ZSTD   (msgpack's array never begins with 00)

Rules
- A record is durable before its number is told. Numbers rise and are not used twice by one checkpoint.
- Who decides on the batch after record n has committed n: what is before n goes then, and so does what is after it,
  which no checkpoint has ever named. Record -1 is the batch of dead letters that is not buried yet.
"""

from __future__ import annotations

import sqlite3
import struct

import msgspec

from ledger.compression import ZSTD, compress, decompress
from ledger.delivery_calls import Share
from ledger.errors import Refused
from ledger.metadata_file import MetadataFile
from ledger.position import Position
from ledger.record_tables import RecordTable

DELIVERY_TABLE = RecordTable(
    "delivery",
    (
        "ledger TEXT NOT NULL REFERENCES ledger_row ON DELETE CASCADE",
        "cursor TEXT NOT NULL",
        "record INTEGER NOT NULL",
        "body BLOB NOT NULL",
    ),
    "PRIMARY KEY (ledger, cursor, record)",
    rowid=True,
)
DEAD, _RECORD_MAX = -1, 2**63 - 1
BODY_BYTES_MAX = 2**29
_DEFLATED, _DEFLATED_FROM = 0x00, 64 * 1024
_HEAD = struct.Struct(">BI")


class DeliveryRecord(msgspec.Struct, frozen=True, array_like=True):
    """One record. `waiting`: what was delivered before and is outstanding still, beside `shares`."""

    record: int
    position: Position
    shares: list[Share]
    waiting: list[Share] = []


_RECORD = msgspec.msgpack.Decoder(DeliveryRecord)


class DeliveryRecords:
    """The table of a store."""

    def __init__(self, file: MetadataFile) -> None:
        self._file = file

    def get(self, ledger: str, cursor: str, record: int) -> DeliveryRecord | None:
        """One record."""
        return self._one("record = ?", ledger, cursor, record)

    def newest(self, ledger: str, cursor: str) -> DeliveryRecord | None:
        """The newest record of a batch."""
        return self._one("record > ? ORDER BY record DESC LIMIT 1", ledger, cursor, 0)

    def put(self, ledger: str, cursor: str, record: DeliveryRecord, after: int) -> None:
        """Keep the record that follows `after`; of the others only that one stays, and the dead letters."""

        def change(c: sqlite3.Connection) -> None:
            c.execute(
                "DELETE FROM delivery_row WHERE ledger = ? AND cursor = ? AND record > 0 AND record <> ?",
                (ledger, cursor, after),
            )
            _insert(c, ledger, cursor, record.record, record)

        self._file.change(change)

    def put_dead(self, ledger: str, cursor: str, dead: DeliveryRecord) -> None:
        """Keep a batch of dead letters."""
        self._file.change(lambda c: _insert(c, ledger, cursor, DEAD, dead))

    def forget(self, ledger: str, cursor: str, *, dead_only: bool = False) -> None:
        """Forget the records of a cursor, or its dead letters."""
        most = DEAD if dead_only else _RECORD_MAX
        self._file.change(
            lambda c: c.execute(
                "DELETE FROM delivery_row WHERE ledger = ? AND cursor = ? AND record BETWEEN ? AND ?",
                (ledger, cursor, DEAD, most),
            )
        )

    def _one(self, which: str, ledger: str, cursor: str, record: int) -> DeliveryRecord | None:
        row = self._file.read(
            lambda c: c.execute(
                f"SELECT body FROM delivery WHERE ledger = ? AND cursor = ? AND {which}",  # noqa: S608 — as above
                (ledger, cursor, record),
            ).fetchone()
        )
        return None if row is None else _RECORD.decode(_inflated(row[0]))


def _insert(c: sqlite3.Connection, ledger: str, cursor: str, number: int, record: DeliveryRecord) -> None:
    c.execute("INSERT OR REPLACE INTO delivery_row VALUES (?, ?, ?, ?)", (ledger, cursor, number, _deflated(record)))


def _deflated(record: DeliveryRecord) -> bytes:
    body = msgspec.msgpack.encode(record)
    if len(body) < _DEFLATED_FROM:
        return body
    if len(body) > BODY_BYTES_MAX:
        raise Refused(
            f"what a batch delivers takes {len(body)} bytes to write down, {BODY_BYTES_MAX} are the most",
            hint="Set maxRowsPerTrigger, or acknowledge what was delivered before",
        )
    return _HEAD.pack(_DEFLATED, len(body)) + compress(ZSTD, body, level=1)


def _inflated(body: bytes) -> bytes | memoryview:
    if body[0] != _DEFLATED:
        return body
    _, size = _HEAD.unpack_from(body)
    return decompress(ZSTD, memoryview(body)[_HEAD.size :], size, "a record of a batch", max_bytes=BODY_BYTES_MAX)
