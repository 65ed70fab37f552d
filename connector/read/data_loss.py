"""What a reader was to read and cannot any more: which ledger, which entries, how much, why, and what to do. Values.

Causes: *trimmed* by retention; the ledger was *deleted*; it was deleted and *made again* under the same name; a *file*
or object that its record lists is missing. How much is known to the entry where the broker kept account of what it
trimmed, and not at all of a ledger that is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pyspark_ledger.ledger.errors import DataLoss, LedgerError
from pyspark_ledger.ledger.names import short_name
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import LogStatus, LogStatuses, TrimmedEntries

Cause = Literal["trimmed", "deleted", "made again", "missing file"]
_SAID: dict[Cause, str] = {
    "trimmed": "its retention trimmed them",
    "deleted": "the ledger was deleted",
    "made again": "the ledger was deleted and made again",
    "missing file": "their file is missing",
}
_KEEP: dict[Cause, str] = {
    "trimmed": "A subscription, or a longer retention, keeps what is not read yet. ",
    "deleted": "",
    "made again": "",
    "missing file": "Bring the file back from a copy of the store. ",
}
_GO_ON = (
    "To go on without them, set option 'failOnDataLoss' to false; to read what there is from its beginning, start with "
    "a new checkpoint and subscription"
)


@dataclass(frozen=True, slots=True)
class DataLossRange:
    """Entries of one ledger that are gone. Counts are None where nobody knows."""

    ledger: str
    cause: Cause
    range: PositionRange
    entries: int | None = None
    rows: int | None = None
    size_bytes: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        counted = "how many is not known"
        if self.entries is not None:
            counted = f"{self.entries} entries, {self.rows} rows, {self.size_bytes} bytes"
        more = f" ({self.detail})" if self.detail else ""
        return f"ledger {short_name(self.ledger)!r} has lost {self.range}, {counted}: {_SAID[self.cause]}{more}"

    def error(self) -> DataLoss:
        return DataLoss(str(self), hint=_KEEP[self.cause] + _GO_ON)

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
        """What retention took."""
        if not trimmed.known:
            return cls(ledger, "trimmed", trimmed.range)
        return cls(ledger, "trimmed", trimmed.range, trimmed.entries, trimmed.rows, trimmed.size_bytes)

    @classmethod
    def of_missing_file(cls, ledger: str, left: PositionRange, error: LedgerError) -> DataLossRange:
        """What lies in a ledger's file that is not there: all of that ledger, from where the reader stood."""
        after = Position(left.start.ledger_id + 1, 0)
        return cls(ledger, "missing file", PositionRange(left.start, min(after, left.end)), detail=error.message)


def find_loss(ledger: str, incarnation: str, left: PositionRange, survey: LogStatuses) -> DataLossRange | None:
    """What of `left` is gone, by a survey in which that was the ledger's reading; None when all is there."""
    found = next((log for log in survey.logs if log.name == ledger), None)
    if found is None:
        return DataLossRange(ledger, "deleted", left)
    return loss_of(found, incarnation, left)


def loss_of(log: LogStatus, incarnation: str, left: PositionRange) -> DataLossRange | None:
    """The same of one surveyed log."""
    if log.incarnation != incarnation:
        return recreated_loss(log, incarnation, left)
    return None if log.trimmed is None else DataLossRange.of_trimmed(log.name, log.trimmed)


def recreated_loss(log: LogStatus, incarnation: str, left: PositionRange) -> DataLossRange:
    """The reader began with another incarnation of a log."""
    detail = f"its incarnation is now {log.incarnation}, the reader began with {incarnation}"
    return DataLossRange(log.name, "made again", left, detail=detail)
