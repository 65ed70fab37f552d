"""Producer of messages for asyncio: many tasks await their sends, and the batches are those of `ledger.client`.

    send ─▶ outbox ─▶ one thread sends all of it ─▶ a batch is durable ─▶ one wake-up for all of its messages

Rules
- The messages have the order of the calls of `send`: the outbox is a queue, and one thread at a time empties it.
- A cancelled `send` is not sent if it is still in the outbox. Else it is sent, and nobody learns its id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, Self

import pyarrow as pa

from pyspark_ledger.ledger.aio.calls import Calls, Twin
from pyspark_ledger.ledger.client.message_producer import MessageProducer
from pyspark_ledger.ledger.client.partitioned_producer import PartitionedProducer
from pyspark_ledger.ledger.position import MessageId
from pyspark_ledger.ledger.rows.row_type import Row

_PIECE = 1000  # messages that the thread sends without a pause for the event loop
_Waiting = list[tuple[Future[Any], "asyncio.Future[Any]"]]


class Producer(Twin, Generic[Row]):
    """Producer of messages to one ledger, or to its partitions. Close it, or use `async with`."""

    def __init__(self, calls: Calls, twin: MessageProducer[Row] | PartitionedProducer[Row]) -> None:
        super().__init__(calls, twin)
        self._outbox: deque[tuple[Callable[[], Future[Any]], asyncio.Future[Any]]] = deque()
        self._emptying: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def name(self) -> str:
        """Name of the producer. Each entry states it."""
        return str(self.twin.name)

    @property
    def last_sequence_id(self) -> int:
        """Sequence id of the last message that was passed to the broker, acknowledged or not. -1 if there is none."""
        return int(self.twin.last_sequence_id)

    async def send(
        self,
        value: Row | bytes | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
        ordering_key: bytes | None = None,
        sequence_id: int | None = None,
    ) -> MessageId:
        """Send a message. Return its id when it is durable. `MessageProducer.send` explains the arguments."""
        call: Callable[[], Future[MessageId]]
        if key is None and properties is None and not event_time_ms and ordering_key is None and sequence_id is None:
            call = partial(self.twin.send, value)
        else:
            call = partial(
                self.twin.send,
                value,
                key=key,
                properties=properties,
                event_time_ms=event_time_ms,
                ordering_key=ordering_key,
                sequence_id=sequence_id,
            )
        result: MessageId = await self._put(call)
        return result

    async def send_column(
        self, values: pa.Array, *, keys: pa.Array | None = None, event_times_ms: pa.Array | None = None
    ) -> MessageId | list[MessageId]:
        """Send a message for each value of a column. Return the last id, of each partition if there are several."""
        result: MessageId | list[MessageId] = await self._put(
            partial(self.twin.send_column, values, keys=keys, event_times_ms=event_times_ms)
        )
        return result

    async def flush(self) -> None:
        """Send the open batch, and wait until all messages sent so far are durable."""
        await self._emptied()
        await self.calls.start(self.twin.flush)

    async def close(self) -> None:
        """Send the open batch, wait until all messages are durable, and end the stream."""
        await self._emptied()
        await self.calls.start(self.twin.close)

    def _put(self, call: Callable[[], Future[Any]]) -> asyncio.Future[Any]:
        self.calls.require_own_loop()
        result: asyncio.Future[Any] = self.calls.loop.create_future()
        self._outbox.append((call, result))
        if self._emptying is None:
            self._emptying = self.calls.loop.create_future()
            self.calls.loop.call_soon(self._empty)  # after the other tasks that are ready to send
        return result

    async def _emptied(self) -> None:
        self.calls.require_own_loop()
        while self._emptying is not None:
            await asyncio.shield(self._emptying)

    def _empty(self) -> None:
        self.calls.start(self._send_piece).add_done_callback(self._sent)

    def _sent(self, _: asyncio.Future[None]) -> None:
        if self._outbox:
            self._empty()
        elif self._emptying is not None:
            self._emptying.set_result(None)
            self._emptying = None

    def _send_piece(self) -> None:
        """Send the messages of the outbox. Runs in a thread."""
        sent: dict[int, _Waiting] = {}
        for _ in range(min(len(self._outbox), _PIECE)):
            call, result = self._outbox.popleft()
            if result.done():  # cancelled
                continue
            try:
                future = call()
            except Exception as error:  # noqa: BLE001 — raised by the `send` that waits
                self.calls.post(partial(_fail, result, error))
                continue
            batch = getattr(
                future, "batch", future
            )  # of a `MessageFuture`: all messages of a batch are durable together
            sent.setdefault(id(batch), []).append((future, result))
        for waiting in sent.values():
            waiting[-1][0].add_done_callback(partial(self._settled, waiting))

    def _settled(self, waiting: _Waiting, _: Future[Any]) -> None:
        self.calls.post(partial(_settle, waiting))


def _settle(waiting: _Waiting) -> None:
    for future, result in waiting:
        if result.done():
            continue
        if (error := future.exception()) is not None:
            result.set_exception(error)
        else:
            result.set_result(future.result())


def _fail(result: asyncio.Future[Any], error: Exception) -> None:
    if not result.done():
        result.set_exception(error)
