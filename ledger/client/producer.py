"""Pipelined producer: it sends further entries before earlier entries are acknowledged, and keeps their order.

One thread at a time sends. Entries that arrive while it sends form the next batch, so that small entries are sent
together. The receiver thread reads the acknowledgements, which have the order of the entries. An *entry* is one append
with its rows. The *log* is the sequence of the ledger's entries.

Invariants
- The bytes of unacknowledged entries never exceed the limit: `append` waits until earlier entries are acknowledged.
  Exception: if nothing is in flight, an entry above the limit is sent alone.
- One thread at a time uses the writing end of the stream, and no thread uses it after it was closed. Reason: otherwise
  gRPC aborts the process.
- With an idle timeout, the stream ends if there was no append for this time. It may take twice as long.
- Only the process that created a producer may use it. Reason: a forked child shares the stream and the ring buffer of
  entries (`ledger.transport.shared_ring`). The child would overwrite its parent's entries.
- After an error the producer sends nothing more. A refused entry fails with the broker's error. All later entries fail
  with `Unavailable`, because it is unknown whether the log has them. The producer never sends an entry twice.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Self

import msgspec
import pyarrow as pa
from pyarrow import flight

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.client.append_transport import SentEntry, open_stream
from pyspark_ledger.ledger.client.broker_connection import BrokerConnection
from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, NotFound, Refused, Unavailable, Unsupported
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import AppendCommand, Appended
from pyspark_ledger.ledger.transport.errors import from_flight

# Limits of a batch. They are small, so that many small entries form several batches. While the broker syncs a batch,
# the producer fills the next batch.
_BATCH_BYTES_MAX = 1024 * 1024
_BATCH_ENTRIES_MAX = 1024
# Errors with which the broker refuses one entry. Before such an error it has acknowledged all earlier entries.
REFUSALS = (Refused, Corrupt, NotFound, Unsupported)
_ENTRY_BYTES_MAX = 2**31 - 2**20  # limit of gRPC: 2**31 bytes, less the bytes that Arrow adds
_APPENDED = msgspec.msgpack.Decoder(Appended)


class _Process:
    """Id of this process. It is kept here, because `os.getpid` for each message would be slow."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.pid = os.getpid()


this_process = _Process()


@dataclass(slots=True, eq=False)
class _Sent:
    held: SentEntry
    size: int
    future: Future[Position] = field(default_factory=Future)

    def __post_init__(self) -> None:
        # After this call, `cancel` returns False, because a caller cannot cancel an entry in flight.
        self.future.set_running_or_notify_cancel()


class Producer:
    """Producer of entries for one ledger, over one stream. Any thread may append.

    The log has the order of the calls.
    """

    def __init__(
        self,
        client: BrokerConnection,
        ledger: str,
        name: str | None = None,
        *,
        max_in_flight_bytes: int = 64 << 20,
        idle_timeout_ms: int | None = None,
    ) -> None:
        self.ledger = ledger
        self.name = name or f"producer-{new_id()}"
        self._address = client.address
        self._process = this_process.pid
        self._max = max_in_flight_bytes
        self._changed = threading.Condition()
        self._queued: deque[_Sent] = deque()
        self._in_flight: deque[_Sent] = deque()
        self._bytes = self._queued_bytes = 0
        self._closing = False
        self._idle_timeout_seconds = None if idle_timeout_ms is None else idle_timeout_ms / 1000
        self._used = True  # whether `append` was called since the last check of the idle timeout
        self._error: LedgerError | None = None
        self._send_error: LedgerError | None = None
        self._writing = threading.Lock()
        self._over = False
        welcome = client.hello()  # waits for a broker that restarts; `open_stream` does not wait
        self.epoch = welcome.epoch
        try:
            self._stream = open_stream(client, welcome, AppendCommand(ledger, self.name), max_in_flight_bytes)
        except (pa.ArrowException, flight.FlightError, OSError) as error:
            raise from_flight(error, self._address) from None
        self._sender = threading.Thread(target=self._send, name=f"send {ledger}", daemon=True)
        self._receiver = threading.Thread(target=self._receive, name=f"receive {ledger}", daemon=True)
        self._sender.start()
        self._receiver.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    def append(self, *entry: Buffer) -> Future[Position]:
        """Send one entry, as one or more buffers. The future returns the entry's position when the entry is durable."""
        self.require_own_process()
        size = 0
        for buffer in entry:
            size += len(buffer) if isinstance(buffer, bytes) else memoryview(buffer).nbytes
        if size > _ENTRY_BYTES_MAX:
            raise Refused(f"an entry has {size} bytes, at most {_ENTRY_BYTES_MAX} can be sent")
        with self._changed:
            self._changed.wait_for(lambda: self._has_room(size) or self._error)
            if self._error is not None:
                raise self._error
            if self._closing:
                raise Unavailable(f"the producer {self.name!r} of {self.ledger!r} is closed")
            sent = _Sent(self._stream.hold(entry, size), size)
            self._used = True
            self._bytes += size
            self._queued.append(sent)
            self._queued_bytes += size
            # The calling thread sends if nothing is in flight or a batch is full. Reason: to wake the sender thread
            # takes longer than to send, and the sender thread could wait milliseconds for Python's GIL.
            here = not self._in_flight or self._queued_bytes >= _BATCH_BYTES_MAX
            here = here and self._writing.acquire(blocking=False)
            if not here:
                self._changed.notify_all()
        if here:
            try:
                self._send_batch()
            finally:
                self._writing.release()
            if self._queued:
                with self._changed:
                    self._changed.notify_all()
        return sent.future

    def require_own_process(self) -> None:
        """Raise Refused unless this process created the producer."""
        if this_process.pid != self._process:
            raise Refused(
                f"the producer {self.name!r} of {self.ledger!r} was made by process {self._process}, "
                f"this is {this_process.pid}",
                hint="Make a producer in each process that appends",
            )

    def _has_room(self, size: int) -> bool:
        return not self._bytes or (self._bytes + size <= self._max and self._stream.has_room(size))

    def flush(self) -> None:
        """Wait until everything appended so far is durable. Raises the error that ended the stream."""
        self.require_own_process()
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._error)
            if self._error is not None:
                raise self._error

    @property
    def is_in_flight(self) -> bool:
        """Whether at least one entry is not acknowledged yet."""
        return self._bytes > 0

    @property
    def is_over(self) -> bool:
        """Whether the stream accepts no more entries."""
        return self._closing or self._ended

    @property
    def error(self) -> LedgerError | None:
        """Error that ended the stream; None if there is none yet."""
        return self._error

    def end(self) -> None:
        """End the stream after all entries in flight. Does not wait."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self) -> None:
        """Wait for the entries in flight and end the stream. Raises the error that ended the stream."""
        self.require_own_process()
        self.end()
        self._sender.join()
        self._receiver.join()
        if self._error is not None:
            raise self._error

    def _send(self) -> None:
        """Send the entries that their callers do not send themselves. Runs on the sender thread."""
        while self._has_more():
            with self._writing:
                self._send_batch()
        with self._writing:
            self._write([])

    def _has_more(self) -> bool:
        """Wait for entries. Return False at the end of the stream."""
        with self._changed:
            while not self._changed.wait_for(
                lambda: self._ended or self._queued or self._closing, self._idle_timeout_seconds
            ):
                self._closing = not (self._used or self._bytes)
                self._used = False
            return bool(self._queued) and not self._ended

    def _send_batch(self) -> None:
        """Send the queued entries, up to the size of a batch. The caller has the lock `_writing`."""
        if batch := self._next_batch():
            self._write([(sent.held, sent.size) for sent in batch])

    def _write(self, entries: list[tuple[SentEntry, int]]) -> None:
        """Send entries. An empty list ends the stream."""
        if self._over:
            return
        try:
            if entries:
                self._stream.send(entries)
            else:
                self._stream.finish()
        except (flight.FlightError, OSError) as error:
            # If the broker has sent an error, the receiver thread reads it. The broker's error then replaces this
            # error.
            self._send_failed(from_flight(error, self._address))
        except Exception as error:  # noqa: BLE001 — after any error the waiting callers must continue
            self._send_failed(Refused(f"entries of the producer {self.name!r} cannot be sent: {error!r}"))

    def _send_failed(self, error: LedgerError) -> None:
        """Stop sending and end the stream. The receiver thread then sets this error for the appends in flight."""
        with self._changed:
            self._send_error = self._send_error or error
            self._changed.notify_all()

    @property
    def _ended(self) -> bool:
        return self._error is not None or self._send_error is not None

    def _next_batch(self) -> list[_Sent]:
        with self._changed:
            batch: list[_Sent] = []
            size = 0
            while self._queued and not self._ended and len(batch) < _BATCH_ENTRIES_MAX:
                sent = self._queued[0]
                size += sent.size
                if batch and size > _BATCH_BYTES_MAX:
                    break
                batch.append(self._queued.popleft())
                self._queued_bytes -= sent.size
            self._in_flight.extend(batch)
            return batch

    def _receive(self) -> None:
        error: LedgerError | None = None
        try:
            while (reply := self._stream.read()) is not None:
                appended = _APPENDED.decode(reply)
                if appended.error is not None:
                    error = appended.error.error()
                    self._settle(error)
                    break
                self._acknowledge(appended)
            with self._writing:
                self._over = True
                self._stream.close()
        except Exception as raised:  # noqa: BLE001 — after any error the waiting callers must continue
            error = error or from_flight(raised, self._address)
            with self._writing:
                self._over = True
                self._stream.drop()
        finally:
            self._settle(error)
        with self._changed:
            self._stream.free()  # all memory is released

    def _acknowledge(self, appended: Appended) -> None:
        with self._changed:
            if appended.entries > len(self._in_flight):
                raise LedgerError(
                    f"the broker acknowledged {appended.entries} entries, {len(self._in_flight)} are in flight"
                )
            done = [self._in_flight.popleft() for _ in range(appended.entries)]
            for sent in done:
                self._bytes -= sent.size
                self._stream.release(sent.held)
            self._changed.notify_all()
        first = appended.first
        for i, sent in enumerate(done):
            sent.future.set_result(Position(first.ledger_id, first.entry_id + i))

    def _settle(self, error: LedgerError | None) -> None:
        """Fail all appends in flight. Called at the end of the stream."""
        with self._changed:
            left = [*self._in_flight, *self._queued]
            if error is None:
                error = self._send_error
            if error is None and (left or not self._closing):
                error = Unavailable(f"the broker at {self._address} ended the stream", hint="Create a new producer")
            self._error = error
            self._in_flight.clear()
            self._queued.clear()
            self._bytes = 0
            self._changed.notify_all()
        if error is None:
            return
        if left and isinstance(error, REFUSALS):
            left.pop(0).future.set_exception(error)
            error = Unavailable(
                f"an earlier entry failed: {error.message}",
                hint="Create a new producer; check the end of the log before you append these entries again",
            )
        unknown = f"{error.message}; it is unknown whether {len(left)} entries in flight are in the log"
        for sent in left:
            sent.future.set_exception(type(error)(unknown, hint=error.hint))
