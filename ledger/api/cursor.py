"""A durable place in a ledger, in a few lines of Python.

    billing = orders.cursor("billing")
    table, position = billing.read()
    billing.acknowledge(position)
    billing.acknowledge_rows([(3, 17), (3, 18, 2)])         # entries, and rows of entries, in any order

Rules: reading moves nothing, and gives only what is not acknowledged. Acknowledging is durable when it returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.api.ledger_admin import LedgerAdmin
from pyspark_ledger.ledger.api.rows import OpenedRows, require_positions, rows_as_table
from pyspark_ledger.ledger.api.schemas import registered_columns
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.positions.row_selection import RowSelection
from pyspark_ledger.ledger.protocol.actions import AcknowledgeCommand, AskEnd
from pyspark_ledger.ledger.protocol.cursors import (
    AskAckedRanges,
    CursorProperties,
    MarkDelete,
    NameCursor,
    ResetCursor,
    SkipEntries,
)
from pyspark_ledger.ledger.protocol.reads import OpenRead

if TYPE_CHECKING:
    from pyspark_ledger.ledger.protocol.cursors import CursorState


class Cursor:
    """A durable place in a ledger. Acknowledging is monotone; what is not acknowledged is kept."""

    def __init__(self, ledger: LedgerAdmin, name: str) -> None:
        self.ledger = ledger
        self.name = name

    def __repr__(self) -> str:
        return f"Cursor({self.ledger.name}, {self.name})"

    def state(self, *, precise: bool = True) -> CursorState:
        """Where it stands, and what it has left. Not `precise`: rows and bytes from averages, no file is read."""
        request = NameCursor(self.ledger.name, self.name, precise=precise)
        found: CursorState = self.ledger.client.call("cursor.describe", request)
        return found

    def read(self) -> tuple[pa.Table, Position]:
        """Everything not acknowledged, and the position to acknowledge when it is done with."""
        rows = OpenedRows(self.ledger.client, OpenRead(self.ledger.name, EARLIEST, cursor=self.name))
        return rows.table(), rows.end

    def read_between(self, start: Position, end: Position) -> tuple[pa.Table, Position]:
        """What of a range is not acknowledged, read again as often as wanted; and the end of the range."""
        require_positions(start=start, end=end)
        return OpenedRows(self.ledger.client, OpenRead(self.ledger.name, start, end, self.name)).table(), end

    def replay(self, positions: Iterable[Position]) -> tuple[pa.Table, set[Position]]:
        """The rows of these entries again, and which of the entries were left out: all of them is acknowledged.

        The cursor does not move. Of an entry that is acknowledged in part the other rows come.
        """
        wanted = sorted(set(positions))
        require_positions(**{f"positions[{number}]": position for number, position in enumerate(wanted)})
        if not wanted:
            return self._table([]), set()
        asked = AskAckedRanges(self.ledger.name, self.name, PositionRange(wanted[0], wanted[-1].next()))
        selection = RowSelection(self.ledger.client.call("cursor.holes", asked).info)
        first = self.state(precise=False).next_position
        done = {position for position in wanted if position < first or selection.passes_over(position)}
        batches = [
            batch
            for position in wanted
            if position not in done
            for batch in OpenedRows(
                self.ledger.client, OpenRead(self.ledger.name, position, position.next()), selection
            ).batches()
        ]
        return self._table(batches), done

    def acknowledge(self, position: Position) -> None:
        """Everything before `position` is done with."""
        require_positions(position=position)
        self.ledger.client.call("cursor.mark_delete", MarkDelete(self.ledger.name, self.name, position))

    def acknowledge_rows(self, positions: Iterable[tuple[int, int] | tuple[int, int, int]]) -> CursorState:
        """Acknowledge entries `(ledger, entry)` and rows of entries `(ledger, entry, row)`, in any order.

        Durable when it returns. What is acknowledged already is ignored; what is not in the log is refused, and then
        nothing of the call is acknowledged.
        """
        from pyspark_ledger.ledger.client.acknowledge import acknowledge

        lines = np.array([(*place, -1)[:3] for place in positions], dtype=np.int64).reshape(-1, 3)
        command = AcknowledgeCommand(self.ledger.name, self.name)
        return acknowledge(self.ledger.client, command, [acknowledge_batch(*lines.T)])

    def skip(self, entries: int) -> CursorState:
        """Acknowledge the next `entries` entries that are left; -1 clears the whole backlog."""
        start, end = (
            self.state(precise=False).next_position,
            self.ledger.client.call("end", AskEnd(self.ledger.name)).end,
        )
        request = SkipEntries(self.ledger.name, self.name, entries, start, end)
        state: CursorState = self.ledger.client.call("cursor.skip", request)
        return state

    def set_properties(self, values: Mapping[str, str], remove: Iterable[str] = ()) -> dict[str, str]:
        """Note something with the cursor; answers all there is then."""
        request = CursorProperties(self.ledger.name, self.name, dict(values), list(remove))
        state: CursorState = self.ledger.client.call("cursor.properties", request)
        return state.properties

    def reset(self, position: Position) -> None:
        """Move it anywhere, backwards too. Refused below what was trimmed and beyond the end."""
        require_positions(position=position)
        self.ledger.client.call("cursor.reset", ResetCursor(self.ledger.name, self.name, position))

    def seek(self, timestamp_ms: int) -> Position:
        """Move it to the first entry that the broker took at or after a time; where that is."""
        position = self.ledger.position_at(timestamp_ms)
        self.reset(position)
        return position

    def delete(self) -> None:
        """Forget it: it holds nothing back any more."""
        self.ledger.client.call("cursor.delete", NameCursor(self.ledger.name, self.name))

    def _table(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        return rows_as_table(batches, registered_columns(self.ledger.client, self.ledger.name))
