"""Append stream of one producer: the broker receives entries, appends them, and replies in order.

    append completed ─▶ the completing thread replies at once                 if the reply channel has room
                    └▶ the stream's reply thread waits for room and replies   otherwise

Invariants
- The reading thread of a stream receives batches, which are record batches of Arrow. It passes their entries to the
  log's queue.
- The reading thread stops while too many bytes are in flight, of this producer or of all producers. The flow control of
  gRPC or of the local socket then slows the producer down. This limits the memory.
- A producer gets its replies in the order of its entries. One thread at a time replies, to the oldest append first.
  The reply to an append that completes early waits for the replies to earlier appends.
- The thread that completes an append also syncs other logs. So this thread never waits for a producer.
- After the first error the broker sends no further replies. It only waits for the appends in flight.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import pairwise
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.broker.limits import InFlightBytes
from pyspark_ledger.ledger.errors import LedgerError, Refused
from pyspark_ledger.ledger.log.deduplication import AppendSession
from pyspark_ledger.ledger.log.managed_ledger import AppendAck, ManagedLedger
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.protocol.actions import ENTRY_SCHEMA, Appended
from pyspark_ledger.ledger.protocol.ends import WireError


class Replies(Protocol):
    """Reply channel to the producer."""

    def write(self, message: bytes) -> None:
        """Send one reply. Waits until the channel has room."""

    def write_at_once(self, message: bytes) -> bool:
        """Send one reply if the channel has room now. Return whether the reply was sent."""


class AppendResponses:
    """Replies of one append stream. A *part* is a group of entries that is queued as one append.

    Calls `on_answered` with the size of each part after its reply, also if the append failed.
    """

    def __init__(self, replies: Replies, on_answered: Callable[[int], None]) -> None:
        self._replies = replies
        self._on_answered = on_answered
        self._parts: deque[AppendAck] = deque()
        self._answer_lock = threading.Lock()
        self._changed = threading.Condition()
        self._pending = self._closed = False
        self.error: BaseException | None = None
        threading.Thread(target=self._send_pending, name="answer", daemon=True).start()

    def put(self, part: AppendAck) -> None:
        """Reply to a part when it is durable or has failed. Only the reading thread calls this."""
        self._parts.append(part)
        part.future.add_done_callback(self._completed)

    def close(self) -> None:
        """End the reply thread. Called after the replies to all parts."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _completed(self, _: Future[Position] | None = None) -> None:
        # If another thread has the lock, this thread returns. The other thread checks for due replies again after it
        # has released the lock. So no completed append is overlooked.
        while self._is_due() and self._answer_lock.acquire(blocking=False):
            try:
                pending = not self._send_due(self._replies.write_at_once)
            finally:
                self._answer_lock.release()
            if pending:
                with self._changed:
                    self._pending = True
                    self._changed.notify()
                return

    def _is_due(self) -> bool:
        try:
            return self._parts[0].future.done()
        except IndexError:
            return False

    def _send_due(self, write: Callable[[bytes], bool | None]) -> bool:
        """Reply to all completed parts. Return False if the channel had no room. Called with `_answer_lock` held."""
        while self._is_due():
            part = self._parts[0]
            if self.error is None and not self._send(part, write):
                return False
            self._parts.popleft()
            self._on_answered(part.size)
        return True

    def _send(self, part: AppendAck, write: Callable[[bytes], bool | None]) -> bool:
        failed = part.future.exception()
        try:
            answer = _answer(part, failed)
            # An error is sent as a reply too. Reason: `serve` raises an error only after the producer has sent more
            # entries, and the producer may wait for this reply first.
            if answer is not None and write(msgspec.msgpack.encode(answer)) is False:
                return False
            self.error = failed
        except Exception as error:  # noqa: BLE001 — the stream raises it when it ends
            self.error = failed or error
        return True

    def _send_pending(self) -> None:
        """Reply to pending parts, and wait for room in the channel. Runs on the stream's reply thread."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                if self._closed:
                    return
                self._pending = False
            with self._answer_lock:
                self._send_due(self._replies.write)
            self._completed()


def _answer(part: AppendAck, failed: BaseException | None) -> Appended | None:
    """Return the reply to a part. Return None for an error that is no `LedgerError`: such an error ends the stream."""
    if failed is None:
        return Appended(part.future.result(), part.entries)
    if isinstance(failed, LedgerError):
        return Appended(EARLIEST, 0, WireError.of(failed))
    return None


class AppendStream:
    """Server of one producer, which is connected over gRPC or the local socket."""

    def __init__(
        self,
        ledger: ManagedLedger,
        replies: Replies,
        in_flight_max: int,
        in_flight_of_all: InFlightBytes,
        require_allowed: Callable[[int], None],
    ) -> None:
        """`require_allowed` raises Refused if a request has too many bytes."""
        self._ledger = ledger
        self._of_all = in_flight_of_all
        self._require_allowed = require_allowed
        self._replies = replies
        self._max = in_flight_max
        self._session = AppendSession()
        self._in_flight = self._unanswered = 0
        self._room = threading.Condition()

    def serve(self, sent: Iterator[list[memoryview]]) -> None:
        """Append all entries of the stream. Return when all appends are complete.

        Raises the error of the first failed append in the order of the stream.
        """
        answers = AppendResponses(self._replies, self._on_answered)
        refused: LedgerError | None = None
        try:
            for entries in sent:
                size = sum(map(len, entries))
                self._require_allowed(size)
                self._wait_for_room(size, answers)
                if answers.error is not None:
                    break
                self._append(entries, answers)
        except LedgerError as error:
            refused = error
        finally:
            with self._room:
                self._room.wait_for(lambda: not self._unanswered)
            answers.close()
            self._of_all.give(self._in_flight)  # release the bytes of refused entries
        # `refused` belongs to the last entries that were received. A queued append has earlier entries, so its error
        # comes first.
        first = answers.error or refused
        if first is not None:
            raise first

    def _append(self, entries: list[memoryview], answers: AppendResponses) -> None:
        """Queue the entries of a batch. If an entry is refused, queue the entries before it, and raise Refused.

        Reason: a batch has entries of different callers. An entry must not fail because a later entry is refused.
        """
        try:
            self._queue(entries, answers)
        except LedgerError:
            if len(entries) < 2:
                raise
            for entry in entries:
                self._queue([entry], answers)

    def _queue(self, entries: list[memoryview], answers: AppendResponses) -> None:
        for part in self._ledger.append_parts(entries, self._session):
            with self._room:
                self._unanswered += 1
            answers.put(part)

    def _wait_for_room(self, size: int, answers: AppendResponses) -> None:
        with self._room:
            self._room.wait_for(lambda: self._in_flight == 0 or self._in_flight + size <= self._max or answers.error)
        self._of_all.take(size, lambda: self._in_flight == 0 or answers.error)
        with self._room:
            self._in_flight += size

    def _on_answered(self, size: int) -> None:
        with self._room:
            self._in_flight -= size
            self._unanswered -= 1
            self._room.notify()
        self._of_all.give(size)


def entries_of(batch: pa.RecordBatch) -> list[memoryview]:
    """Return the entries of a batch as slices of its data buffer. Raises Refused for a wrong schema or wrong offsets.

    The function checks the offsets itself, because Arrow does not check the offsets of a received batch.
    """
    if batch.schema != ENTRY_SCHEMA or batch.column(0).null_count:
        raise Refused(f"a batch has the columns {batch.schema.to_string()!r}, expected {ENTRY_SCHEMA.to_string()!r}")
    column = batch.column(0)
    if not len(column):
        return []
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    size = 0 if data is None else data.size
    if len(bounds) != len(column) + 1 or bounds[0] < 0 or bounds[-1] > size or (np.diff(bounds) < 0).any():
        raise Refused(f"a batch of {len(column)} entries has offsets that do not fit its {size} bytes")
    view = memoryview(b"" if data is None else data).cast("B")
    return [view[start:end] for start, end in pairwise(bounds.tolist())]
