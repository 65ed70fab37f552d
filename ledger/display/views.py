"""Values that pictures and texts of a store, a ledger or a cursor are drawn from."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.positions.position_set import LedgerRuns
from pyspark_ledger.ledger.protocol.actions import LedgerDescription
from pyspark_ledger.ledger.protocol.cursors import CursorState


@dataclass(frozen=True, slots=True)
class CursorView:
    """Cursor, and the ranges of whole entries that it acknowledged beyond its first unacknowledged position."""

    state: CursorState
    acknowledged: tuple[LedgerRuns, ...] = ()
    leased: bool = False


@dataclass(frozen=True, slots=True)
class LedgerView:
    """Ledger or partition. `described` is the broker's reply; None if no broker answered.

    `problem` is the error's text.

    `cursors` and `partitions` are only the first of all `described.cursors` and `described.partitions`.
    """

    name: str
    described: LedgerDescription | None = None
    cursors: tuple[CursorView, ...] = ()
    partitions: tuple[LedgerView, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StoreView:
    """Store at a directory or an address. `ledgers` are the first of `ledger_count` ledgers."""

    location: str
    ledgers: tuple[LedgerView, ...] = ()
    ledger_count: int = 0
    problem: str = ""
