"""What of a managed ledger was trimmed, ledger by ledger: a row of sixty bytes each, for as long as the log exists.

    trimmed       entries, rows and bytes of each ledger that retention took, by ledger id

A reader that comes back after a trim is told how much it has lost, though the ledgers are gone from the list.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from pyspark_ledger.ledger.database.database import Records
from pyspark_ledger.ledger.database.record_tables import RecordTable
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from pyspark_ledger.ledger.protocol.actions import LedgerSegment

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


def remember_trimmed(c: sqlite3.Connection, name: str, before: ManagedLedgerInfo, kept: Collection[int]) -> None:
    """Keep account of the ledgers of a record that are not `kept`; their side rows must still be there."""
    for gone in before.ledgerInfo:
        if gone.ledgerId not in kept:
            row = c.execute("SELECT rows FROM segment WHERE ledger_id = ?", (gone.ledgerId,)).fetchone()
            values = (gone.ledgerId, name, gone.entries, row[0] if row else 0, gone.size, gone.timestamp)
            c.execute("INSERT OR REPLACE INTO trimmed_row VALUES (?, ?, ?, ?, ?, ?)", values)


class TrimmedRecords(Records):
    """The rows of one store."""

    def of(self, name: str) -> list[LedgerSegment]:
        """What was trimmed off a managed ledger, oldest first."""
        query = "SELECT ledger_id, entries, size_bytes, rows, close_ms FROM trimmed WHERE ledger = ? ORDER BY ledger_id"
        return [LedgerSegment(*row) for row in self._file.read(lambda c: c.execute(query, (name,)).fetchall())]
