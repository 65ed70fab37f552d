"""Durable cursors for asyncio: `ledger.api.cursor` and `ledger.api.joined_cursor`, awaited."""

from __future__ import annotations

from functools import partial
from typing import Generic

from pyspark_ledger.ledger.aio.batches import Batches, DeliveredBatch, of_cursor
from pyspark_ledger.ledger.aio.calls import Twin, awaited
from pyspark_ledger.ledger.api import cursor as api
from pyspark_ledger.ledger.api import joined_cursor as joined
from pyspark_ledger.ledger.consumer.batch import MAX_BYTES
from pyspark_ledger.ledger.consumer.deliveries import ACK_TIMEOUT
from pyspark_ledger.ledger.rows.row_type import Row


class _Looping(Twin, Generic[Row]):
    """Cursor with a loop over its unacknowledged rows."""

    twin: api.Cursor[Row] | joined.JoinedCursor[Row]

    @property
    def name(self) -> str:
        """Name of the cursor."""
        return self.twin.name

    def batches(
        self,
        max_rows: int | None = None,
        max_bytes: int = MAX_BYTES,
        wait: float | None = None,
        ack: str = "explicit",
        ack_timeout: float = ACK_TIMEOUT,
        max_redeliveries: int | None = None,
    ) -> Batches[DeliveredBatch[Row]]:
        """Return a loop over the unacknowledged rows. `pyspark_ledger.Cursor.batches` explains the arguments.

        async with billing.batches() as batches:
            async for batch in batches:
                await work(batch.table); await batch.acknowledge()
        """
        opens = partial(self.twin.batches, max_rows, max_bytes, wait, ack, ack_timeout, max_redeliveries)
        return of_cursor(self.calls, opens)


class Cursor(_Looping[Row]):
    """Durable cursor of a ledger, as `pyspark_ledger.Cursor`."""

    twin: api.Cursor[Row]

    close = awaited(api.Cursor.close)
    state = awaited(api.Cursor.state)
    read = awaited(api.Cursor.read)
    read_between = awaited(api.Cursor.read_between)
    replay = awaited(api.Cursor.replay)
    acknowledge = awaited(api.Cursor.acknowledge)
    acknowledge_rows = awaited(api.Cursor.acknowledge_rows)
    skip = awaited(api.Cursor.skip)
    set_properties = awaited(api.Cursor.set_properties)
    reset = awaited(api.Cursor.reset)
    seek = awaited(api.Cursor.seek)
    delete = awaited(api.Cursor.delete)


class JoinedCursor(_Looping[Row]):
    """Durable cursor of one name in several ledgers, as that of `LedgerStore.cursor`."""

    twin: joined.JoinedCursor[Row]

    close = awaited(joined.JoinedCursor.close)
    state = awaited(joined.JoinedCursor.state)
    read = awaited(joined.JoinedCursor.read)
    read_between = awaited(joined.JoinedCursor.read_between)
    replay = awaited(joined.JoinedCursor.replay)
    acknowledge = awaited(joined.JoinedCursor.acknowledge)
    acknowledge_rows = awaited(joined.JoinedCursor.acknowledge_rows)
    skip = awaited(joined.JoinedCursor.skip)
    set_properties = awaited(joined.JoinedCursor.set_properties)
    reset = awaited(joined.JoinedCursor.reset)
    seek = awaited(joined.JoinedCursor.seek)
    delete = awaited(joined.JoinedCursor.delete)

    async def cursors(self) -> list[Cursor[Row]]:
        """Return the cursor of each ledger or partition. Raises NotFound if the cursor was deleted."""
        return [Cursor(self.calls, each) for each in await self.calls.start(self.twin.cursors)]
