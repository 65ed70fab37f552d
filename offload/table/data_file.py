"""A data file of a table as the table's own log states it: which positions it can hold, and of which log. Values.

Rules: bounds are inclusive and never too narrow: where the log says nothing, a file may hold anything. Statistics of
texts are cut at 32 characters, so a bound may be a beginning of what it bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange

POSITION, INCARNATION, PUBLISH_TIME = "__position", "__incarnation", "__publishTime"
"""The columns that say where a row stood: position, incarnation of the log, and when it was published."""
STATED_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file. `rows` is -1 where it is not stated; `kept` says of each row whether it is still there, all if empty.

    `values` are those of the columns by which the table is partitioned: they stand in no file.
    """

    path: str
    size_bytes: int
    rows: int = -1
    low: Position = EARLIEST
    high: Position = LATEST
    incarnations: tuple[str, str] | None = None
    values: tuple[tuple[str, object], ...] = ()
    live_rows: bytes = b""
    newest_ms: int | None = None

    @property
    def has_bounds(self) -> bool:
        """Whether it is stated which positions it holds."""
        return self.high != LATEST

    def may_contain(self, incarnation: str, range_: PositionRange) -> bool:
        """Whether a row of that log in the range can be here."""
        if not (self.low < range_.end and range_.start <= self.high):
            return False
        if self.incarnations is None:
            return True
        low, high = self.incarnations
        return low <= incarnation and incarnation[:STATED_CHARACTERS] <= high

    def belongs_to(self, incarnation: str) -> bool:
        """Whether all rows here are of that log, as stated."""
        return self.incarnations is not None and all(
            bound[:STATED_CHARACTERS] == incarnation[:STATED_CHARACTERS] for bound in self.incarnations
        )

    def is_within(self, range_: PositionRange) -> bool:
        """Whether all rows here are in the range, as stated."""
        return self.has_bounds and range_.start <= self.low and self.high < range_.end


def bounds(
    low_ledger: int, low_entry: int | None, high_ledger: int, high_entry: int | None
) -> tuple[Position, Position]:
    """The first and last position that a file can hold, by the least and greatest of ledger ids and entry ids.

    Entry ids bound nothing where there is more than one ledger: they begin anew in each.
    """
    if low_ledger == high_ledger and low_entry is not None and high_entry is not None:
        return Position(low_ledger, low_entry), Position(high_ledger, high_entry)
    return Position(low_ledger, 0), Position(high_ledger, LATEST.entry_id)
