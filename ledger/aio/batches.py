"""Loops and rows of a ledger for `async for`. A loop that waits holds no thread.

Rules
- `ledger.consumer.batches` decides everything. A thread of the store fills it; the event loop hands the batch out.
- A batch is handed out in the event loop, after the last point at which a task can be cancelled. So a cancelled `anext`
  loses no batch: the next one returns it.
- A *step* reads a batch, or begins to wait. A loop that waits is registered in the client's watch
  (`end_watch.parking`), whose thread starts the next step. So the event loop runs once for a batch.
- The loop begins at its first use. So errors of its arguments are raised there.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
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

_WAIT_MS_MAX = 60_000  # of a step that does not wait in a thread, so it is not used up

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
        self._filling: asyncio.Future[bool] | None = None
        self._until: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._parked: Parked | None = None
        self._state = threading.Lock()  # of the next two
        self._waits = False  # for news, or for the timer
        self._has_news = False
        self._on_news = partial(_look, weakref.ref(self), calls)
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
            await self._ask(partial(self.calls.start, self._begin))
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
                await self._ask(partial(self.calls.start, self._begin))
            if self._twin is None:
                raise StopAsyncIteration
            self._until = self._twin.until()
            if self._filling is not None:
                self.look()  # the step of a cancelled call, which has another time and no timer
            try:
                filled = await self._ask(partial(self.calls.submit, self._fill))
            finally:
                self._until = None  # after a cancelled call, the time ends no loop
                self._set_timer(None)
            if not filled:
                raise StopAsyncIteration
            return self._give(self._twin.hand_out())

    async def close(self) -> None:
        """End the iteration, and wake an `anext` that waits. Returns when the lease of a cursor is released."""
        self._closed = True
        if self.calls.ended:
            return
        if self._filling is not None and self._twin is None:
            await asyncio.wait([self._filling])
        if self._twin is not None:
            await asyncio.shield(self.calls.start(self._end))
        if self._filling is not None:  # a step that runs releases the lease itself, at its end
            await asyncio.wait([self._filling])

    aclose = close

    def settle(self, filled: bool, error: BaseException | None = None) -> None:
        """Give the step's result to the `anext` that waits, or to the next one. Called in the event loop."""
        if self._filling is None or self._filling.done():
            return
        if error is None:
            self._filling.set_result(filled)
        else:
            self._filling.set_exception(error)

    def look(self) -> None:
        """Make the step again if it waits. Any thread may call this method."""
        with self._state:
            self._has_news, waits, self._waits = True, self._waits, False
        if waits:
            self.calls.submit(self._fill)

    async def _ask(self, start: Callable[[], object]) -> bool:
        """Start a step in a thread, and return its result. A step of a cancelled call goes on: return its result."""
        if self._filling is None:
            filling: asyncio.Future[bool] = self.calls.loop.create_future()
            self.calls.require_open()
            start()
            self._filling = filling
        filling = self._filling
        self.calls.waiting.add(self)
        try:
            return await asyncio.shield(filling)
        finally:
            self.calls.waiting.discard(self)
            if filling.done():
                self._filling = None

    def _begin(self) -> None:
        try:
            if self._twin is None:
                self._twin = self._opens()
        except BaseException as error:  # noqa: BLE001 — raised where the step is awaited
            self.calls.post(partial(self.settle, False, error))
        else:
            self.calls.post(partial(self.settle, True))

    def _fill(self) -> None:
        """Read the next batch. Without a batch, the step ends, and `look` makes it again."""
        try:
            while (filled := self._filled()) is None:
                with self._state:
                    if not self._has_news:
                        self._waits = True
                        return
        except BaseException as error:  # noqa: BLE001 — raised where the step is awaited
            self.calls.post(partial(self.settle, False, error))
        else:
            self.calls.post(partial(self.settle, filled))

    def _filled(self) -> bool | None:
        """Return whether there is a batch, False at the end of the loop, or None if the step has to wait."""
        assert self._twin is not None  # noqa: S101 — begun
        self._leave()
        self._has_news = False  # before the read: what comes from now on may be in it or not
        try:
            with parking(self._on_news):
                return self._twin.fill(self._until, _WAIT_MS_MAX)
        except Parked as parked:
            self._parked = parked.with_traceback(None)  # whose frames would keep this loop
            if parked.milliseconds < _WAIT_MS_MAX:
                self.calls.post(partial(self._set_timer, parked.milliseconds))
            return None

    def _set_timer(self, milliseconds: int | None) -> None:
        """Make the step again after this time. None: only after news."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if milliseconds is None else self.calls.loop.call_later(milliseconds / 1000, self.look)

    def _end(self) -> None:
        if self._twin is not None:
            self._twin.close()
        self._leave()

    def _leave(self) -> None:
        parked, self._parked = self._parked, None
        if parked is not None:
            parked.leave()


def _look(batches: weakref.ref[Batches[Any]], _: Calls) -> None:
    """Tell a loop of news. The watch keeps this call, and so the loops of `Calls.waiting`, but no abandoned loop."""
    if (found := batches()) is not None:
        found.look()


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
