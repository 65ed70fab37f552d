"""One producer's append stream at the broker: entries in, acknowledgements out, in order, with bounded memory.

The reading thread takes batches and queues their entries with the log; whoever completes them answers, or a thread of
the stream's own (`ledger.broker.append_answers`). Reading stops while more bytes wait for the disk than one producer,
or all together, may have in flight, so that the flow control of gRPC or of the local socket holds the producer back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ledger.broker.admission import InFlightBytes
from ledger.broker.append_answers import AppendAnswers, Replies
from ledger.deduplication import AppendSession
from ledger.errors import LedgerError, Refused
from ledger.managed_ledger import ManagedLedger
from ledger.protocol import ENTRY_SCHEMA


class AppendStream:
    """Serves one producer, however its entries come."""

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
        self._in_flight = self._untold = 0
        self._room = threading.Condition()

    def serve(self, sent: Iterator[list[memoryview]]) -> None:
        """Append everything that comes; returns when all of it is acknowledged, raises what failed first."""
        answers = AppendAnswers(self._replies, self._told)
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
                self._room.wait_for(lambda: not self._untold)
            answers.close()
            self._of_all.give(self._in_flight)  # what was refused
        # What came earlier in the stream failed first, though it may be known later.
        first = answers.error or refused
        if first is not None:
            raise first

    def _append(self, entries: list[memoryview], answers: AppendAnswers) -> None:
        """Queue the entries of a batch; where one of them is refused, those before it, and raise.

        Entries of different callers travel in one batch: none may fail because of what stands behind it.
        """
        try:
            self._queue(entries, answers)
        except LedgerError:
            if len(entries) < 2:
                raise
            for entry in entries:
                self._queue([entry], answers)

    def _queue(self, entries: list[memoryview], answers: AppendAnswers) -> None:
        for part in self._ledger.append_parts(entries, self._session):
            with self._room:
                self._untold += 1
            answers.put(part)

    def _wait_for_room(self, size: int, answers: AppendAnswers) -> None:
        with self._room:
            self._room.wait_for(lambda: self._in_flight == 0 or self._in_flight + size <= self._max or answers.error)
        self._of_all.take(size, lambda: self._in_flight == 0 or answers.error)
        with self._room:
            self._in_flight += size

    def _told(self, size: int) -> None:
        with self._room:
            self._in_flight -= size
            self._untold -= 1
            self._room.notify()
        self._of_all.give(size)


def entries_of(batch: pa.RecordBatch) -> list[memoryview]:
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
    view = memoryview(b"" if data is None else data).cast("B")
    return [view[start:end] for start, end in pairwise(edges.tolist())]
