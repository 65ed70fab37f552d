"""Append stream of one producer at the broker: entries in, ordered acknowledgements out, bounded memory.

    append completed ─▶ answered at once, by the thread that completed it     if the reply channel has room
                    └▶ answered by the stream's own thread, which waits       until no answer is pending

Invariants
- The reading thread takes batches and queues their entries with the log.
- Reading stops while the bytes in flight exceed the limit of one producer or of all producers together. The flow
  control of gRPC or of the local socket then throttles the producer.
- A producer gets its answers in the order in which it sent the entries. One thread at a time answers, the oldest
  append first: an append that completes early waits for the appends before it.
- The thread that completes an append also syncs other logs. It therefore never waits for this producer.
- After the first error no append is answered. Appends in flight are only waited for.
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
from pyspark_ledger.ledger.protocol.actions import ENTRY_SCHEMA, Appended, WireError


class Replies(Protocol):
    """Reply channel to the producer."""

    def write(self, message: bytes) -> None:
        """Send one answer. Waits for room."""

    def write_at_once(self, message: bytes) -> bool:
        """Send one answer if there is room now. Return whether the answer was sent."""


class AppendResponses:
    """Answers of one append stream. `on_answered` is called with the size of each part, after success and failure."""

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
        """Answer a part once it is durable or has failed. Called by the reading thread only."""
        self._parts.append(part)
        part.future.add_done_callback(self._completed)

    def close(self) -> None:
        """End the answering thread. Called after all parts were answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _completed(self, _: Future[Position] | None = None) -> None:
        # The lock's holder may have checked just before this append completed. It checks again after its release.
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
        """Answer all completed parts; return False if there was no room. Called with `_answer_lock` held."""
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
            # Errors are answered now: `serve` notices an error only when the producer sends more. It may be waiting.
            if answer is not None and write(msgspec.msgpack.encode(answer)) is False:
                return False
            self.error = failed
        except Exception as error:  # noqa: BLE001 — the stream raises it when it ends
            self.error = failed or error
        return True

    def _send_pending(self) -> None:
        """Answer pending parts on the stream's own thread, waiting for room in the reply channel."""
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
    """Return the answer to a producer. Return None for an error that is no `LedgerError`: it ends the stream."""
    if failed is None:
        return Appended(part.future.result(), part.entries)
    if isinstance(failed, LedgerError):
        return Appended(EARLIEST, 0, WireError(failed.code, failed.message, failed.hint))
    return None


class AppendStream:
    """Server of one producer, over gRPC or the local socket."""

    def __init__(
        self,
        ledger: ManagedLedger,
        replies: Replies,
        in_flight_max: int,
        in_flight_of_all: InFlightBytes,
    ) -> None:
        self._ledger = ledger
        self._of_all = in_flight_of_all
        self._replies = replies
        self._max = in_flight_max
        self._session = AppendSession()
        self._in_flight = self._unanswered = 0
        self._room = threading.Condition()

    def serve(self, sent: Iterator[list[memoryview]]) -> None:
        """Append all entries of the stream. Return when all are acknowledged.

        Raises the error of the first append in the stream that failed.
        """
        answers = AppendResponses(self._replies, self._on_answered)
        refused: LedgerError | None = None
        try:
            for entries in sent:
                self._wait_for_room(sum(map(len, entries)), answers)
                if answers.error is not None:
                    break
                self._append(entries, answers)
        except LedgerError as error:
            refused = error
        finally:
            with self._room:
                self._room.wait_for(lambda: not self._unanswered)
            answers.close()
            self._of_all.give(self._in_flight)  # bytes of refused entries
        # An earlier append of the stream counts as the first failure, even if its error arrived later.
        first = answers.error or refused
        if first is not None:
            raise first

    def _append(self, entries: list[memoryview], answers: AppendResponses) -> None:
        """Queue the entries of a batch. Raises Refused after queueing the entries before the refused entry.

        A batch carries entries of different callers. An entry must not fail because a later entry is refused.
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
    """Return the entries of a batch as slices of its data buffer. Raises Refused if the schema or the offsets are
    wrong.

    Arrow does not check the offsets of a received batch. They are therefore checked here before any slicing.
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
