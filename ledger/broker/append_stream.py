"""One producer's append stream at the broker: entries in, acknowledgements out, in order, with bounded memory.

The reading thread takes batches and queues their entries with the log; a second thread waits for each in turn and
answers. Reading stops while more bytes wait for the disk than one producer, or all together, may have in flight, so
that the flow control of gRPC or of the local socket holds the producer back.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import flight

from ledger.broker.admission import InFlightBytes
from ledger.deduplication import AppendSession
from ledger.errors import LedgerError, Refused
from ledger.managed_ledger import ManagedLedger
from ledger.position import EARLIEST, Position
from ledger.protocol import ENTRY_SCHEMA, Appended, WireError


class Replies(Protocol):
    """Where answers go."""

    def write(self, message: bytes) -> None:
        """Send one."""
        ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    future: Future[Position]
    entries: int
    size: int


class AppendStream:
    """Serves one producer, however its entries come."""

    def __init__(
        self,
        ledger: ManagedLedger,
        writer: Replies,
        in_flight_max: int,
        in_flight_of_all: InFlightBytes,
    ) -> None:
        self._ledger = ledger
        self._of_all = in_flight_of_all
        self._writer = writer
        self._max = in_flight_max
        self._session = AppendSession()
        self._in_flight = 0
        self._room = threading.Condition()
        self._error: BaseException | None = None
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()

    def serve(self, sent: Iterator[list[pa.Buffer]]) -> None:
        """Append everything that comes; returns when all of it is acknowledged, raises what failed first."""
        answering = threading.Thread(target=self._answer, name="answer", daemon=True)
        answering.start()
        refused: LedgerError | None = None
        try:
            for entries in sent:
                self._wait_for_room(sum(entry.size for entry in entries))
                if self._error is not None:
                    break
                self._append(entries)
        except LedgerError as error:
            refused = error
        finally:
            self._waiting.put(None)
            answering.join()
            self._of_all.give(self._in_flight)  # what was refused
        # What came earlier in the stream failed first, though it may be known later.
        first = self._error or refused
        if first is not None:
            raise first

    def _append(self, entries: list[pa.Buffer]) -> None:
        """Queue the entries of a batch; where one of them is refused, those before it, and raise.

        Entries of different callers travel in one batch: none may fail because of what stands behind it.
        """
        try:
            self._queue(entries)
        except LedgerError:
            if len(entries) < 2:
                raise
            for entry in entries:
                self._queue([entry])

    def _queue(self, entries: list[pa.Buffer]) -> None:
        for part in self._ledger.append_parts(entries, self._session):
            self._waiting.put(_Waiting(part.future, part.entries, part.size))

    def _wait_for_room(self, size: int) -> None:
        with self._room:
            self._room.wait_for(lambda: self._in_flight == 0 or self._in_flight + size <= self._max or self._error)
        self._of_all.take(size, lambda: self._in_flight == 0 or self._error)
        with self._room:
            self._in_flight += size

    def _answer(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            if self._error is None:
                try:
                    first = waiting.future.result()
                    self._writer.write(msgspec.msgpack.encode(Appended(first, waiting.entries)))
                except LedgerError as error:
                    self._error = error
                    self._tell(error)
                except Exception as error:  # noqa: BLE001 — it is raised again by `serve`, which waits for this thread
                    self._error = error
            with self._room:
                self._in_flight -= waiting.size
                self._room.notify()
            self._of_all.give(waiting.size)

    def _tell(self, error: LedgerError) -> None:
        """Answer with the error now: `serve` hears of it only when the producer sends more, and it may be waiting."""
        said = WireError(error.code, error.message, error.hint)
        with suppress(pa.ArrowException, flight.FlightError, OSError):  # of a producer that is gone
            self._writer.write(msgspec.msgpack.encode(Appended(EARLIEST, 0, said)))


def entries_of(batch: pa.RecordBatch) -> list[pa.Buffer]:
    """The entries of a batch as slices of its one data buffer; raises Refused for anything that is not that.

    Arrow believes the offsets of a batch that came over the wire: they are compared here, before anything is sliced.
    """
    if batch.schema != ENTRY_SCHEMA or batch.column(0).null_count:
        raise Refused(f"a batch has the columns {batch.schema.to_string()!r}, expected {ENTRY_SCHEMA.to_string()!r}")
    column = batch.column(0)
    if not len(column):
        return []
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    size = 0 if data is None else data.size
    if len(edges) != len(column) + 1 or edges[0] < 0 or edges[-1] > size or (np.diff(edges) < 0).any():
        raise Refused(f"a batch of {len(column)} entries has offsets that do not fit its {size} bytes")
    if data is None:
        data = pa.py_buffer(b"")
    return [data.slice(start, end - start) for start, end in pairwise(edges.tolist())]
