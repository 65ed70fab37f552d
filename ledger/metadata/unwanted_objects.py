"""Objects in object storage that no record refers to any more and that may still be there.

    unwanted      attempt (UUID), ledger id, name of the managed ledger, JSON of the driver

Rules: a row is written in the transaction that takes an attempt out of a record: a ledger that was trimmed, a managed
ledger that was deleted, an attempt that another one replaces. It goes once its objects are deleted. So a crash anywhere
in between leaves the row, and nothing in the bucket is forgotten.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from pyspark_ledger.ledger.database.database import MetadataFile
from pyspark_ledger.ledger.database.record_tables import RecordTable
from pyspark_ledger.ledger.metadata.offload_records import Driver, OffloadAttempt
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo

UNWANTED_TABLE = RecordTable(
    "unwanted",
    ("attempt TEXT PRIMARY KEY", "ledger_id INTEGER NOT NULL", "ledger TEXT NOT NULL", "driver BLOB NOT NULL"),
)
_DRIVER = msgspec.json.Decoder(Driver)


class UnwantedObjects(NamedTuple):
    """What one attempt may have left."""

    ledger: str
    ledger_id: int
    attempt: uuid.UUID
    driver: Driver


class UnwantedRecords:
    """All of a store. Any thread may call any method."""

    def __init__(self, file: MetadataFile) -> None:
        self._file = file

    def all(self) -> list[UnwantedObjects]:
        """What is still to be deleted."""
        rows = self._file.read(
            lambda c: c.execute("SELECT ledger, ledger_id, attempt, driver FROM unwanted").fetchall()
        )
        return [
            UnwantedObjects(ledger, ledger_id, uuid.UUID(attempt), _DRIVER.decode(driver))
            for ledger, ledger_id, attempt, driver in rows
        ]

    def remove(self, attempt: uuid.UUID) -> None:
        """Its objects are gone."""
        self._file.change(lambda c: c.execute("DELETE FROM unwanted_row WHERE attempt = ?", (str(attempt),)).rowcount)


def put_unwanted(c: sqlite3.Connection, name: str, before: ManagedLedgerInfo, after: ManagedLedgerInfo) -> None:
    """Note the attempts that one state of a record has and the next has not."""
    left = {attempt.attempt for _, attempt in attempts_of(after)}
    c.executemany(
        "INSERT OR REPLACE INTO unwanted_row VALUES (?, ?, ?, ?)",
        [
            (str(attempt.attempt), ledger_id, name, msgspec.json.encode(attempt.driver))
            for ledger_id, attempt in attempts_of(before)
            if attempt.attempt not in left
        ],
    )


def put_all_unwanted(c: sqlite3.Connection, names: Iterable[str]) -> None:
    """Note all attempts of ledgers whose records are about to go."""
    for name in names:
        row = c.execute("SELECT info FROM ledger WHERE name = ?", (name,)).fetchone()
        if row is not None:
            put_unwanted(c, name, ManagedLedgerInfo.FromString(row[0]), ManagedLedgerInfo())


def attempts_of(info: ManagedLedgerInfo) -> list[tuple[int, OffloadAttempt]]:
    """The attempts that a record states, by ledger id."""
    found = ((listed.ledgerId, OffloadAttempt.of(listed)) for listed in info.ledgerInfo)
    return [(ledger_id, attempt) for ledger_id, attempt in found if attempt is not None]
