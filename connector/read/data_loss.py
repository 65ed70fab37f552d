"""Description of lost entries that a reader needs: ledger, range, counts, cause, and the hint for the user.

The *incarnation* of a ledger is an id that changes when the ledger is deleted and created again.

Causes
- *trimmed*: retention deleted the entries. Counts are exact if the broker recorded them at that time.
- *deleted*: the ledger was deleted. Counts are unknown.
- *made again*: the ledger was deleted and created again under the same name. Counts are unknown.
- *missing file*: a file or object that the ledger's metadata lists does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pyspark_ledger.ledger.errors import DataLoss, LedgerError
from pyspark_ledger.ledger.names import short_name
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import LogStatus, LogStatuses, TrimmedEntries

Cause = Literal["trimmed", "deleted", "made again", "missing file"]
_CAUSES: dict[Cause, str] = {
    "trimmed": "its retention deleted them",
    "deleted": "the ledger was deleted",
    "made again": "the ledger was deleted and created again",
    "missing file": "their file is missing",
}
_HINTS: dict[Cause, str] = {
    "trimmed": "A subscription, or a longer retention, keeps unread entries. ",
    "deleted": "",
    "made again": "",
    "missing file": "Restore the file from a copy of the store. ",
}
_CONTINUE_HINT = (
    "To continue without them, set option 'failOnDataLoss' to false. To read the existing entries from the beginning, "
    "start with a new checkpoint and a new subscription"
)


@dataclass(frozen=True, slots=True)
class DataLossRange:
    """Lost entries of one ledger. Counts are None if unknown."""

    ledger: str
    cause: Cause
    range: PositionRange
    entries: int | None = None
    rows: int | None = None
    size_bytes: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        counts = "their number is unknown"
        if self.entries is not None:
            counts = f"{self.entries} entries, {self.rows} rows, {self.size_bytes} bytes"
        more = f" ({self.detail})" if self.detail else ""
        return f"ledger {short_name(self.ledger)!r} has lost {self.range}, {counts}: {_CAUSES[self.cause]}{more}"

    def error(self) -> DataLoss:
        return DataLoss(str(self), hint=_HINTS[self.cause] + _CONTINUE_HINT)

    def to_json(self) -> dict[str, Any]:
        return {
            "bytes": self.size_bytes,
            "cause": self.cause,
            "entries": self.entries,
            "from": str(self.range.start),
            "ledger": self.ledger,
            "rows": self.rows,
            "to": str(self.range.end),
        }

    @classmethod
    def of_trimmed(cls, ledger: str, trimmed: TrimmedEntries) -> DataLossRange:
        """Return the loss of entries that retention deleted."""
        if not trimmed.known:
            return cls(ledger, "trimmed", trimmed.range)
        return cls(ledger, "trimmed", trimmed.range, trimmed.entries, trimmed.rows, trimmed.size_bytes)

    @classmethod
    def of_missing_file(cls, ledger: str, left: PositionRange, error: LedgerError) -> DataLossRange:
        """Return the loss if a segment's file is missing: the rest of the segment, from the reader's position on."""
        after = Position(left.start.ledger_id + 1, 0)
        return cls(ledger, "missing file", PositionRange(left.start, min(after, left.end)), detail=error.message)


def find_loss(ledger: str, incarnation: str, left: PositionRange, statuses: LogStatuses) -> DataLossRange | None:
    """Return the lost entries of `left`; None if all exist. `statuses` has the state of the ledger from `left` on."""
    status = next((log for log in statuses.logs if log.name == ledger), None)
    if status is None:
        return DataLossRange(ledger, "deleted", left)
    return loss_of(status, incarnation, left)


def loss_of(log: LogStatus, incarnation: str, left: PositionRange) -> DataLossRange | None:
    """Return the lost entries of `left`, from the status of the ledger; None if all exist."""
    if log.incarnation != incarnation:
        return recreated_loss(log, incarnation, left)
    return None if log.trimmed is None else DataLossRange.of_trimmed(log.name, log.trimmed)


def recreated_loss(log: LogStatus, incarnation: str, left: PositionRange) -> DataLossRange:
    """Return the loss of all of `left`, because the ledger has another incarnation than the reader."""
    detail = f"its incarnation is now {log.incarnation}, the reader began with {incarnation}"
    return DataLossRange(log.name, "made again", left, detail=detail)
