"""Result of sending the messages of one entry, and a future for each message.

Rules
- All futures of an entry share one result. A `MessageFuture` has two fields, and the garbage collector does not track
  it. Reason: a loop that keeps its futures would spend a quarter of its time in the collector.
- Python never frees a cycle of references with an untracked object. So a batch references no `MessageFuture`. Each
  caller gets a copy of the batch's error, because the traceback of a raised error references the caller's futures.
- A `MessageFuture` behaves as a `concurrent.futures.Future`. When a caller needs the lock, state or callbacks of a
  `Future`, a real `Future` is created for the message.
- A message in flight cannot be cancelled: `cancel` returns False.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from copy import copy
from typing import Any

import msgspec

from pyspark_ledger.ledger.position import MessageId, Position

# Attributes of a future that `concurrent.futures.wait`, `as_completed` and asyncio use, except `result`.
_STANDARD = frozenset({"_condition", "_state", "_waiters", "add_done_callback", "cancel", "cancelled", "running"})


class SentBatch:
    """Result of sending consecutive messages of one entry. Any thread may call its methods."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._lock = threading.Lock()
        self._done = threading.Event()
        self.is_settled = False
        self.error: BaseException | None = None  # each caller gets a copy
        self._position: Position | None = None
        self._is_batch = False
        self._standard: dict[int, _StandardFuture] = {}

    def succeed(self, position: Position, *, is_batch: bool) -> None:
        """Set the position of the entry. If `is_batch`, a message's batch index is its number in the entry."""
        self._position, self._is_batch = position, is_batch
        self._settle()

    def fail(self, error: BaseException) -> None:
        """Set the error of all messages."""
        self.error = copy(error)
        self._settle()

    def wait(self, seconds: float | None) -> None:
        """Wait for the result. Raises TimeoutError after `seconds`."""
        if not self._done.wait(seconds):
            raise TimeoutError

    def id_of(self, number: int) -> MessageId:
        """Return the id of message `number` of a settled batch. Raises the error of the batch."""
        if self._position is None:
            assert self.error is not None  # noqa: S101 — a settled batch has a position or an error
            raise copy(self.error)
        index = number if self._is_batch else -1
        return MessageId(self._position.ledger_id, self._position.entry_id, index, self._partition)

    def standard_future(self, number: int) -> Future[MessageId]:
        """Return the `concurrent.futures.Future` of a message. Creates it on the first call."""
        with self._lock:
            future = self._standard.get(number)
            if future is None:
                future = self._standard[number] = _StandardFuture(self, number)
                if self.is_settled:
                    future.settle(self.error)
            return future

    def _settle(self) -> None:
        with self._lock:
            self.is_settled = True
            self._done.set()
            waiting = list(self._standard.values())
        for future in waiting:
            future.settle(self.error)


class MessageFuture(msgspec.Struct, frozen=True, gc=False):
    """Id of a message of a batch, once the message is durable."""

    batch: SentBatch
    number: int

    def __getattr__(self, name: str) -> Any:
        if name not in _STANDARD:
            raise AttributeError(name)
        return getattr(self.batch.standard_future(self.number), name)

    def __repr__(self) -> str:
        return repr(self.batch.standard_future(self.number))

    @property  # type: ignore[misc]  # a property without a setter; `object.__class__` has a setter
    def __class__(self) -> type:
        """The class `Future`, so that `isinstance(self, Future)` is true. asyncio makes this test."""
        return Future

    def done(self) -> bool:
        return self.batch.is_settled

    def result(self, timeout: float | None = None) -> MessageId:
        batch = self.batch
        if not batch.is_settled:
            batch.wait(timeout)
        return batch.id_of(self.number)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        batch = self.batch
        if not batch.is_settled:
            batch.wait(timeout)
        return batch.error and copy(batch.error)


class _StandardFuture(Future[MessageId]):
    """Future for callbacks, and for functions that wait for several futures.

    Equals the `MessageFuture` of its message.
    """

    def __init__(self, batch: SentBatch, number: int) -> None:
        super().__init__()
        self.batch, self.number = batch, number
        self.set_running_or_notify_cancel()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _StandardFuture | MessageFuture) and (
            (other.batch, other.number) == (self.batch, self.number)
        )

    def __hash__(self) -> int:
        return hash(MessageFuture(self.batch, self.number))

    def settle(self, error: BaseException | None) -> None:
        """Set the result and call the callbacks, once."""
        if error is None:
            self.set_result(self.batch.id_of(self.number))
        else:
            self.set_exception(copy(error))
        self._done_callbacks.clear()  # type: ignore[attr-defined]  # callbacks may reference a `MessageFuture`

    def result(self, timeout: float | None = None) -> MessageId:
        return MessageFuture(self.batch, self.number).result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return MessageFuture(self.batch, self.number).exception(timeout)
