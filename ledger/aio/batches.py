"""Loops and rows of a ledger for `async for`. A loop that waits holds no thread.

Rules
- `ledger.consumer.batches` decides everything. A thread of the store fills it; the event loop hands the batch out.
- A batch is handed out in the event loop, after the last point at which a task can be cancelled. So a cancelled `anext`
  loses no batch: the next one returns it.
- A waiting loop is registered in the client's watch, which wakes its event loop (`end_watch.parking`).
- The loop begins at its first use. So errors of its arguments are raised there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from pyspark_ledger.ledger.aio.calls import Calls, Twin, awaited
from pyspark_ledger.ledger.client.end_watch import Parked, parking
from pyspark_ledger.ledger.consumer import batch, batches, deliveries
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.rows.row_type import Row

_WAIT_MS_MAX = 60_000  # of one wait. The watch wakes the loop before, if there are news

T = TypeVar("T")
B = TypeVar("B")


class DeliveredBatch(Twin, Generic[Row]):
    """Rows that were delivered to this worker, as `pyspark_ledger.DeliveredBatch`."""

    twin: deliveries.DeliveredBatch[Row]

    acknowledge = awaited(deliveries.DeliveredBatch.acknowledge)
    nack = awaited(deliveries.DeliveredBatch.nack)

    def __repr__(self) -> str:
        return repr(self.twin)

    @property
    def ledger(self) -> str:
        """Short name of the ledger or partition."""
        return self.twin.ledger

    @property
    def start(self) -> Position:
        """Position of the first row."""
        return self.twin.start

    @property
    def position(self) -> Position:
        """Position after the rows."""
        return self.twin.position

    @property
    def table(self) -> pa.Table:
        """The rows."""
        return self.twin.table

    @property
    def num_rows(self) -> int:
        """The number of rows, at least 1."""
        return self.twin.num_rows

    @property
    def redeliveries(self) -> int:
        """The number of earlier deliveries of the rows."""
        return self.twin.redeliveries

    def rows(self) -> Iterator[Row]:
        """Yield the rows as objects of the ledger's class, as dictionaries without one, in the order of the log."""
        return self.twin.rows()


class Batches(Generic[B]):
    """Iterator over batches for `async for`. Close it, or use `async with`.

    `close` ends the iteration, also from another task. An `anext` that waits then raises StopAsyncIteration. With
    `ack="after"`, one task iterates: a batch is acknowledged when any task asks for the next one.
    """

    def __init__(
        self, calls: Calls, opens: Callable[[], batches.Batches[Any]], give: Callable[[Any], B] = lambda found: found
    ) -> None:
        self.calls = calls
        self._opens = opens
        self._give = give
        self._twin: batches.Batches[Any] | None = None
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        self._filling: asyncio.Future[bool | Parked] | None = None
        self._parked: Parked | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<async batches, {'not begun' if self._twin is None else self._twin}>"

    def __del__(self) -> None:
        if self._parked is not None:  # an abandoned loop: the watch has no other way to learn of it
            self.calls.drop(self._parked.leave)

    async def __aenter__(self) -> Self:
        """Begin the loop: find its start, and acquire the lease of its cursor."""
        self.calls.require_own_loop()
        async with self._turn:
            await self._ask(self._begin)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> B:
        """Return the next batch. Wait for its rows without a thread."""
        self.calls.require_own_loop()
        async with self._turn:
            if self._twin is None and not self._closed:
                await self._ask(self._begin)
            if self._twin is None:
                raise StopAsyncIteration
            fill = partial(self._fill, self._twin, self._twin.until())
            while isinstance(filled := await self._ask(fill), Parked):
                timer = self.calls.loop.call_later(filled.milliseconds / 1000, self._news.set)
                try:
                    await self._news.wait()
                finally:
                    timer.cancel()
            if not filled:
                raise StopAsyncIteration
            return self._give(self._twin.hand_out())

    async def close(self) -> None:
        """End the iteration, and wake an `anext` that waits. Returns when the lease of a cursor is released."""
        self._closed = True
        if self._filling is not None and self._twin is None:
            await asyncio.wait([self._filling])
        if self._twin is not None and not self.calls.ended:
            await asyncio.shield(self.calls.start(self._end))
        if self._filling is not None:  # a step that runs releases the lease itself, at its end
            await asyncio.wait([self._filling])
        self._news.set()

    aclose = close

    async def _ask(self, call: Callable[[], bool | Parked]) -> bool | Parked:
        """Make a call in a thread. If an earlier call still runs, because its task was cancelled, return its result."""
        if self._filling is None:
            self._news.clear()
            self._filling = self.calls.start(call)
        filling = self._filling
        try:
            return await asyncio.shield(filling)
        finally:
            if filling.done():
                self._filling = None

    def _begin(self) -> bool:
        if self._twin is None:
            self._twin = self._opens()
        return True

    def _fill(self, twin: batches.Batches[Any], until: int | None) -> bool | Parked:
        self._leave()
        with parking(partial(self.calls.post, self._news.set)):
            try:
                return twin.fill(until, _WAIT_MS_MAX)
            except Parked as parked:
                self._parked = parked.with_traceback(None)  # whose frames would keep this loop
                return parked

    def _end(self) -> None:
        if self._twin is not None:
            self._twin.close()
        self._leave()

    def _leave(self) -> None:
        parked, self._parked = self._parked, None
        if parked is not None:
            parked.leave()


async def items(calls: Calls, opens: Callable[[], Iterator[T]], piece: int) -> AsyncIterator[T]:
    """Yield what an iterator yields in a thread, `piece` at a time."""
    iterator = await calls.start(opens)
    while found := await calls.start(lambda: list(islice(iterator, piece))):
        for item in found:
            yield item


def of_ledger(calls: Calls, opens: Callable[[], batches.Batches[batch.Batch[Row]]]) -> Batches[batch.Batch[Row]]:
    """Return the loop of `follow`."""
    return Batches(calls, opens)


def of_cursor(
    calls: Calls, opens: Callable[[], batches.Batches[deliveries.DeliveredBatch[Row]]]
) -> Batches[DeliveredBatch[Row]]:
    """Return the loop of a cursor."""

    def give(found: deliveries.DeliveredBatch[Row]) -> DeliveredBatch[Row]:
        return DeliveredBatch(calls, found)

    return Batches(calls, opens, give)
