"""Data file of a table, with bounds of the positions and incarnations of its rows. Delta's log has these bounds.

An incarnation is the id of a log, which changes when a ledger is deleted and created again under the same name. The
page docs/concepts.md explains the words segment, entry and position.

Rules
- The bounds of a column are its smallest and its largest value in the file. No row is outside of the bounds, but the
  bounds may be wider than the rows.
- A file without statistics may contain any row.
- Delta truncates statistics of texts at 32 characters, so a bound may be a prefix of the value.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange

POSITION, INCARNATION, PUBLISH_TIME = "__position", "__incarnation", "__publishTime"
"""The columns with a row's position, the incarnation of its log, and its publish time."""
STATED_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class TableFile:
    """Data file. `rows` is -1 if Delta's log does not state the number of rows.

    `live_rows` has a bit for each row, 0 if the row is deleted. It is empty if no row is deleted. `values` are the
    values of the partition columns, which a data file does not contain.
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
        """Whether Delta's log states bounds of the positions."""
        return self.high != LATEST

    def may_contain(self, incarnation: str, range_: PositionRange) -> bool:
        """Return whether the file may contain a row of this incarnation in the range."""
        if not (self.low < range_.end and range_.start <= self.high):
            return False
        if self.incarnations is None:
            return True
        low, high = self.incarnations
        return low <= incarnation and incarnation[:STATED_CHARACTERS] <= high

    def belongs_to(self, incarnation: str) -> bool:
        """Return whether all rows are of this incarnation according to the statistics."""
        return self.incarnations is not None and all(
            bound[:STATED_CHARACTERS] == incarnation[:STATED_CHARACTERS] for bound in self.incarnations
        )

    def is_within(self, range_: PositionRange) -> bool:
        """Return whether all rows are in the range according to the statistics."""
        return self.has_bounds and range_.start <= self.low and self.high < range_.end


def bounds(
    low_ledger: int, low_entry: int | None, high_ledger: int, high_entry: int | None
) -> tuple[Position, Position]:
    """Return the first and the last position that a row of the file may have.

    Entry ids are ignored if the file has rows of several segments, because entry ids start at 0 in each segment.
    """
    if low_ledger == high_ledger and low_entry is not None and high_entry is not None:
        return Position(low_ledger, low_entry), Position(high_ledger, high_entry)
    return Position(low_ledger, 0), Position(high_ledger, LATEST.entry_id)
