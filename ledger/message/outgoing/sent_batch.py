"""Result of sending the messages of one entry, and a future for each message.

Rules
- All futures of an entry share one result. So a future costs little until a caller waits for it or adds a callback.
- `MessageFuture` is a `concurrent.futures.Future`. It creates the lock and the state of that class on first use.
- A message in flight cannot be cancelled: `cancel` returns False.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from pyspark_ledger.ledger.position import MessageId, Position

_STATE = frozenset({"_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"})


class SentBatch:
    """Result of sending consecutive messages of one entry. Any thread may call its methods."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._lock = threading.Lock()
        self._done = threading.Event()
        self.is_settled = False
        self.error: BaseException | None = None
        self._position: Position | None = None
        self._is_batch = False
        self._waiting: list[MessageFuture] = []

    def succeed(self, position: Position, *, is_batch: bool) -> None:
        """Set the position of the entry. If `is_batch`, a message's batch index is its number in the entry."""
        self._position, self._is_batch = position, is_batch
        self._settle()

    def fail(self, error: BaseException) -> None:
        """Set the error of all messages."""
        self.error = error
        self._settle()

    def wait(self, seconds: float | None) -> None:
        """Wait for the result. Raises TimeoutError after `seconds`."""
        if not self._done.wait(seconds):
            raise TimeoutError

    def id_of(self, number: int) -> MessageId:
        """Return the id of message `number` of a settled batch. Raises the error of the batch."""
        if self._position is None:
            assert self.error is not None  # noqa: S101 — a settled batch has a position or an error
            raise self.error
        index = number if self._is_batch else -1
        return MessageId(self._position.ledger_id, self._position.entry_id, index, self._partition)

    def complete(self, future: MessageFuture) -> None:
        """Create a future's own state, and complete the future when the batch is settled."""
        with self._lock:
            if "_done_callbacks" in future.__dict__:
                return
            Future.__init__(future)
            future.set_running_or_notify_cancel()
            if not self.is_settled:
                self._waiting.append(future)
                return
        self._complete(future)

    def _settle(self) -> None:
        with self._lock:
            self.is_settled = True
            self._done.set()
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            self._complete(future)

    def _complete(self, future: MessageFuture) -> None:
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.id_of(future.number))


class MessageFuture(Future[MessageId]):
    """Id of a message of a batch, once the message is durable."""

    __slots__ = ("_batch", "number")

    def __init__(self, batch: SentBatch, number: int) -> None:  # `complete` creates the state of Future
        self._batch = batch
        self.number = number

    def __getattr__(self, name: str) -> Any:
        if name not in _STATE:
            raise AttributeError(name)
        self._batch.complete(self)
        return self.__dict__[name]

    def done(self) -> bool:
        return self._batch.is_settled

    def result(self, timeout: float | None = None) -> MessageId:
        batch = self._batch
        if not batch.is_settled:
            batch.wait(timeout)
        return batch.id_of(self.number)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        batch = self._batch
        if not batch.is_settled:
            batch.wait(timeout)
        return batch.error
