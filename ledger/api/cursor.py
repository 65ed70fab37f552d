"""Durable cursor: the position of one reader in a ledger, and the rows after it that the reader has acknowledged.

An *entry* is one append with its rows. A *log* is the sequence of a ledger's entries. A *segment* is one file of a
ledger.

    billing = orders.cursor("billing")
    for batch in billing.batches(ack="after"):              # waits for new rows
        work(batch.table)
    table, position = billing.read()
    billing.acknowledge(position)
    billing.acknowledge_rows([(3, 17), (3, 18, 2)])         # entries, and rows of entries, in any order

Rules
- A read does not move the cursor, and returns only unacknowledged rows.
- An acknowledgement is durable when the call returns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Generic

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.api.handle import Handle, closed_client
from pyspark_ledger.ledger.api.ledger_admin import LedgerAdmin
from pyspark_ledger.ledger.api.views import cursor_view
from pyspark_ledger.ledger.client.schemas import registered_columns
from pyspark_ledger.ledger.consumer.batch import MAX_BYTES, BatchLimits
from pyspark_ledger.ledger.consumer.deliveries import ACK_TIMEOUT, cursor_batches
from pyspark_ledger.ledger.consumer.opened_rows import OpenedRows, require_positions, rows_as_table
from pyspark_ledger.ledger.display.ledger_picture import cursor_html, cursor_text
from pyspark_ledger.ledger.names import short_name
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.positions.row_selection import RowSelection
from pyspark_ledger.ledger.protocol.actions import AcknowledgeCommand, AskEnd
from pyspark_ledger.ledger.protocol.cursors import (
    AskAckedRanges,
    CursorProperties,
    DeleteCursor,
    DescribeCursor,
    MarkDelete,
    ResetCursor,
    SkipEntries,
)
from pyspark_ledger.ledger.protocol.reads import OpenRead
from pyspark_ledger.ledger.rows.row_type import Row, RowType
from pyspark_ledger.ledger.times import Time

if TYPE_CHECKING:
    from pyspark_ledger.ledger.consumer.batches import Batches
    from pyspark_ledger.ledger.consumer.deliveries import DeliveredBatch
    from pyspark_ledger.ledger.protocol.cursors import CursorState


class Cursor(Handle, Generic[Row]):
    """Durable cursor of a ledger. Retention keeps the rows that the cursor has not acknowledged.

    An acknowledged row stays acknowledged, except after `reset` or `seek`.
    """

    def __init__(self, ledger: LedgerAdmin, name: str, row_type: RowType[Row] | None = None) -> None:
        self.ledger = ledger
        self.name = name
        self.row_type = row_type

    def __repr__(self) -> str:
        return cursor_text(cursor_view(self.ledger.client, self.ledger.name, self.name), self.name)

    def _repr_html_(self) -> str:
        """Return the picture of the cursor on its ledger for a notebook."""
        return cursor_html(cursor_view(self.ledger.client, self.ledger.name, self.name), self.name)

    def close(self) -> None:
        """Refuse all later calls of this object. The durable cursor keeps its position, and the ledger stays open."""
        ledger = copy(self.ledger)
        ledger.client = closed_client(f"the cursor {self.name!r} of ledger {short_name(ledger.name)!r}")
        self.ledger = ledger

    def state(self, *, precise: bool = True) -> CursorState:
        """Return the cursor's position and backlog.

        Without `precise` the broker reads no file. It estimates the rows and bytes of the backlog from averages.
        """
        request = DescribeCursor(self.ledger.name, self.name, precise=precise)
        return self.ledger.client.ask(request)

    def batches(
        self,
        max_rows: int | None = None,
        max_bytes: int = MAX_BYTES,
        wait: float | None = None,
        ack: str = "explicit",
        ack_timeout: float = ACK_TIMEOUT,
        max_redeliveries: int | None = None,
    ) -> Batches[DeliveredBatch[Row]]:
        """Return a loop over the unacknowledged rows, in batches of limited size, which waits for new rows.

        A batch has at most `max_rows` rows and `max_bytes` bytes, as stored, and ends between entries. A larger entry
        is a batch of its own. The loop ends after `wait` seconds without a row: 0 ends it at the end of the ledger,
        None never. It also ends at the end of a terminated ledger. Use `with`, or call `close`.

        With `ack` = "explicit" you acknowledge each batch. With "after" the loop acknowledges a batch when you ask for
        the next one, or at its end. After `break`, an exception or `close` it acknowledges nothing more. A batch that
        is not acknowledged within `ack_timeout` seconds is redelivered. Instead of a redelivery after
        `max_redeliveries`, its rows become dead letters: they move to the ledger `<ledger>-<cursor>-DLQ`.

        The loop holds the cursor's lease. Raises Refused, with the holder, if another reader has it.

            with orders.cursor("billing").batches(ack="after", wait=5) as batches:
                for batch in batches: work(batch.table)
        """
        limits = BatchLimits(max_rows, max_bytes, wait)
        client, ledger = self.ledger.client, self.ledger.name
        return cursor_batches(client, ledger, self.name, limits, ack, ack_timeout, max_redeliveries, self.row_type)

    def read(self) -> tuple[pa.Table, Position]:
        """Return all unacknowledged rows, and the position to acknowledge after you have processed them."""
        rows = OpenedRows(self.ledger.client, OpenRead(self.ledger.name, EARLIEST, cursor=self.name))
        return rows.table(), rows.end

    def read_between(self, start: Position, end: Position) -> tuple[pa.Table, Position]:
        """Return the unacknowledged rows of `[start, end)`, and the end of the range.

        A repeated call returns the same rows, without the rows that were acknowledged in between.
        """
        require_positions(start=start, end=end)
        return OpenedRows(self.ledger.client, OpenRead(self.ledger.name, start, end, self.name)).table(), end

    def replay(self, positions: Iterable[Position]) -> tuple[pa.Table, set[Position]]:
        """Return the unacknowledged rows of these entries, to read rows again. The cursor does not move.

        Also return the positions of those entries whose rows are all acknowledged.
        """
        wanted = sorted(set(positions))
        require_positions(**{f"positions[{number}]": position for number, position in enumerate(wanted)})
        if not wanted:
            return self._table([]), set()
        asked = AskAckedRanges(self.ledger.name, self.name, PositionRange(wanted[0], wanted[-1].next()))
        selection = RowSelection(self.ledger.client.ask(asked).info)
        first = self.state(precise=False).next_position
        done = {position for position in wanted if position < first or selection.skips(position)}
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
        """Acknowledge everything before `position`."""
        require_positions(position=position)
        self.ledger.client.ask(MarkDelete(self.ledger.name, self.name, position))

    def acknowledge_rows(self, positions: Iterable[tuple[int, int] | tuple[int, int, int]]) -> CursorState:
        """Acknowledge entries `(segment id, entry)` and rows of entries `(segment id, entry, row)`, in any order.

        The acknowledgements are durable when the call returns. A repeated acknowledgement has no effect. Raises Refused
        for a position outside of the log, and then acknowledges nothing.
        """
        from pyspark_ledger.ledger.client.acknowledge import acknowledge

        lines = np.array([(*place, -1)[:3] for place in positions], dtype=np.int64).reshape(-1, 3)
        command = AcknowledgeCommand(self.ledger.name, self.name)
        return acknowledge(self.ledger.client, command, [acknowledge_batch(*lines.T)])

    def skip(self, entries: int) -> CursorState:
        """Acknowledge the next `entries` unacknowledged entries; -1 acknowledges the whole backlog."""
        start, end = (
            self.state(precise=False).next_position,
            self.ledger.client.ask(AskEnd(self.ledger.name)).end,
        )
        request = SkipEntries(self.ledger.name, self.name, entries, start, end)
        return self.ledger.client.ask(request)

    def set_properties(self, values: Mapping[str, str], remove: Iterable[str] = ()) -> dict[str, str]:
        """Set and remove properties of the cursor. Return all its properties."""
        request = CursorProperties(self.ledger.name, self.name, dict(values), list(remove))
        state = self.ledger.client.ask(request)
        return state.properties

    def reset(self, position: Position) -> None:
        """Move the cursor to a position, also backwards. EARLIEST is the log's start, LATEST its end.

        Raises Refused for another position before the log's start or after its end.
        """
        require_positions(position=position)
        self.ledger.client.ask(ResetCursor(self.ledger.name, self.name, position))

    def seek(self, time: Time) -> Position:
        """Move the cursor to the first entry that the broker stored at or after a time. Return its position.

        `Ledger.position_at` explains the forms of a time.
        """
        position = self.ledger.position_at(time)
        self.reset(position)
        return position

    def delete(self) -> None:
        """Delete the cursor. After that, retention can delete the rows that it had not acknowledged."""
        self.ledger.client.ask(DeleteCursor(self.ledger.name, self.name))

    def _table(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        return rows_as_table(batches, registered_columns(self.ledger.client.ask, self.ledger.name))
