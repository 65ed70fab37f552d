"""Managed ledger for asyncio: `ledger.api.ledger` and `ledger.api.partitioned_ledger`, awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from typing import Any, Generic, overload

import pyarrow as pa

from pyspark_ledger.ledger.aio.batches import Batches, items, of_ledger
from pyspark_ledger.ledger.aio.calls import Calls, Opening, Twin, awaited
from pyspark_ledger.ledger.aio.cursor import Cursor, JoinedCursor
from pyspark_ledger.ledger.aio.producer import Producer
from pyspark_ledger.ledger.api import ledger as api
from pyspark_ledger.ledger.api import partitioned_ledger as partitioned
from pyspark_ledger.ledger.consumer.batch import MAX_BYTES, Batch
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.protocol.ledgers import Policies
from pyspark_ledger.ledger.rows.row_type import Row

_ROWS = 1000  # that a thread reads for one wake-up of the event loop


class Ledger(Twin, Generic[Row]):
    """Managed ledger of a store, as `pyspark_ledger.Ledger`."""

    twin: api.Ledger[Row]

    close = awaited(api.Ledger.close)
    read = awaited(api.Ledger.read)
    end = awaited(api.Ledger.end)
    describe = awaited(api.Ledger.describe)
    schema = awaited(api.Ledger.schema)
    register_payload_schemas = awaited(api.Ledger.register_payload_schemas)
    policy = awaited(api.Ledger.policy)
    forget_policy = awaited(api.Ledger.forget_policy)
    trim = awaited(api.Ledger.trim)
    offload = awaited(api.Ledger.offload)
    offload_status = awaited(api.Ledger.offload_status)
    seal = awaited(api.Ledger.seal)
    terminate = awaited(api.Ledger.terminate)
    change_properties = awaited(api.Ledger.change_properties)
    position_at = awaited(api.Ledger.position_at)

    @property
    def name(self) -> str:
        """Full name of the ledger."""
        return self.twin.name

    async def set_policy(self, **values: int) -> Policies:
        """Set policies of the ledger by name. They override the namespace's policies and the broker's settings."""
        return await self.calls.start(partial(self.twin.set_policy, **values))

    @overload
    async def append(
        self: Ledger[dict[str, Any]], rows: pa.Table | pa.RecordBatch | Iterable[Mapping[str, object]] | bytes
    ) -> Position: ...

    @overload
    async def append(self, rows: Row | Iterable[Row]) -> Position: ...

    async def append(
        self,
        rows: pa.Table | pa.RecordBatch | Iterable[Mapping[str, object]] | bytes | Row | Iterable[Row],
    ) -> Position:
        """Append rows, or one message as bytes. Return the position after them, when they are durable.

        If the task is cancelled, the rows are appended all or not at all.
        """
        return await self.calls.start(partial(self.twin.append, rows))  # type: ignore[arg-type]  # `append` is overloaded

    def producer(
        self,
        name: str | None = None,
        *,
        compression: str = "none",
        batching_max_messages: int = 1000,
        batching_max_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 1,
        max_pending_bytes: int = 64 * 1024 * 1024,
        chunk_max_bytes: int | None = None,
    ) -> Opening[Producer[Row]]:
        """Open a producer of messages: `async with orders.producer() as producer`, or `await` it and close it."""
        opens = partial(
            self.twin.producer,
            name,
            compression=compression,
            batching_max_messages=batching_max_messages,
            batching_max_bytes=batching_max_bytes,
            batching_max_publish_delay_ms=batching_max_publish_delay_ms,
            max_pending_bytes=max_pending_bytes,
            chunk_max_bytes=chunk_max_bytes,
        )
        return Opening(self._producer(opens))

    def rows(self, start: Position = EARLIEST, end: Position | None = None) -> AsyncIterator[Row]:
        """Yield the rows of `[start, end)` as objects of the ledger's type; as dictionaries without a type."""
        return items(self.calls, partial(self.twin.rows, start, end), _ROWS)

    def batches(self, start: Position = EARLIEST, end: Position | None = None) -> AsyncIterator[pa.RecordBatch]:
        """Yield the rows of `[start, end)` in the order of the log. Without `end`, read up to the present end."""
        return items(self.calls, partial(self.twin.batches, start, end), 1)

    scan = awaited(api.Ledger.scan)

    def follow(
        self,
        start: Position = EARLIEST,
        *,
        max_rows: int | None = None,
        max_bytes: int = MAX_BYTES,
        wait: float | None = None,
    ) -> Batches[Batch[Row]]:
        """Return an iterator over the rows from `start` on, in batches. `pyspark_ledger.Ledger.follow` explains it.

        async for batch in orders.follow(start=saved): ...
        """
        opens = partial(self.twin.follow, start, max_rows=max_rows, max_bytes=max_bytes, wait=wait)
        return of_ledger(self.calls, opens)

    def cursor(self, name: str, start: Position = EARLIEST) -> Opening[Cursor[Row]]:
        """Return the durable cursor of this name. Create it at `start` if it does not exist."""
        return Opening(self._cursor(partial(self.twin.cursor, name, start)))

    async def _producer(self, opens: Any) -> Producer[Row]:
        return Producer(self.calls, await self.calls.start(opens))

    async def _cursor(self, opens: Any) -> Cursor[Row]:
        return Cursor(self.calls, await self.calls.start(opens))


class PartitionedLedger(Ledger[Row]):
    """Ledger with partitions, as `pyspark_ledger.ledger.api.partitioned_ledger.PartitionedLedger`."""

    twin: partitioned.PartitionedLedger[Row]

    increase_partitions = awaited(partitioned.PartitionedLedger.increase_partitions)

    async def partitions(self) -> list[Ledger[Row]]:
        """Return the partitions that exist now. Raises NotFound if the partitioned ledger was deleted."""
        return [Ledger(self.calls, part) for part in await self.calls.start(self.twin.partitions)]

    def producer(  # a `hashing_scheme` more than that of a ledger
        self,
        name: str | None = None,
        *,
        hashing_scheme: str = "murmur3_32",
        compression: str = "none",
        batching_max_messages: int = 1000,
        batching_max_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 1,
        max_pending_bytes: int = 64 * 1024 * 1024,
        chunk_max_bytes: int | None = None,
    ) -> Opening[Producer[Row]]:
        """Open a producer that sends messages to all partitions, by key or in rotation."""
        opens = partial(
            self.twin.producer,
            name,
            hashing_scheme=hashing_scheme,
            compression=compression,
            batching_max_messages=batching_max_messages,
            batching_max_bytes=batching_max_bytes,
            batching_max_publish_delay_ms=batching_max_publish_delay_ms,
            max_pending_bytes=max_pending_bytes,
            chunk_max_bytes=chunk_max_bytes,
        )
        return Opening(self._producer(opens))

    def cursor(  # type: ignore[override]  # the same calls, but with a position for each partition
        self, name: str, start: Position | Mapping[str, Position] = EARLIEST
    ) -> Opening[JoinedCursor[Row]]:
        """Return the durable cursor of this name in all partitions. Create it at `start` where it does not exist."""
        return Opening(self._joined_cursor(partial(self.twin.cursor, name, start)))

    def follow(
        self,
        start: Position | Mapping[str, Position] = EARLIEST,
        *,
        max_rows: int | None = None,
        max_bytes: int = MAX_BYTES,
        wait: float | None = None,
    ) -> Batches[Batch[Row]]:
        """Return an iterator over the rows of all partitions, in batches, which waits for new rows."""
        opens = partial(self.twin.follow, start, max_rows=max_rows, max_bytes=max_bytes, wait=wait)
        return of_ledger(self.calls, opens)

    async def _joined_cursor(self, opens: Any) -> JoinedCursor[Row]:
        return JoinedCursor(self.calls, await self.calls.start(opens))


def ledger_of(calls: Calls, twin: api.Ledger[Row]) -> Ledger[Row]:
    """Return the twin of a ledger."""
    return (PartitionedLedger if isinstance(twin, partitioned.PartitionedLedger) else Ledger)(calls, twin)
