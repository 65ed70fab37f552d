"""Batches of staging streams, received within a share of the bytes in flight of all producers.

    announcement ─▶ wait for room ─▶ answer ─▶ receive the batch ─▶ write it to the part ─▶ give the room back

Rules
- A stream that announces its large batches sends one when there is room for it. Reason: gRPC also receives up to
  twenty megabytes of a stream that the broker does not read.
- At most `_SILENT_MAX` streams that announce nothing are served at once, and others are refused. Such a stream is that
  of an earlier release, or of another program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyarrow import flight

from pyspark_ledger.ledger.broker.limits import InFlightBytes
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.protocol.announcements import ROOM, announced_size, require_announced

_SILENT_MAX = 2


class StagedBatches:
    """Receiver of the staging streams of one broker."""

    def __init__(self, in_flight: InFlightBytes) -> None:
        self._in_flight = in_flight
        self._silent = threading.BoundedSemaphore(_SILENT_MAX)

    def received(
        self, chunks: Iterator[flight.FlightStreamChunk], answer: Callable[[bytes], object] | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a stream. `answer` answers announcements; None if the stream makes none.

        Raises Refused for a large batch without an announcement. Raises Unavailable if too many streams announce
        nothing.
        """
        if answer is not None:
            yield from self._announced(chunks, answer)
            return
        if not self._silent.acquire(blocking=False):
            raise Unavailable(
                f"this broker is receiving {_SILENT_MAX} staging streams that do not announce their batches, and "
                "allows no more",
                hint="Install the broker's release of pyspark-ledger on the driver and on the executors",
            )
        try:
            for chunk in chunks:
                yield chunk.data
        finally:
            self._silent.release()

    def _announced(
        self, chunks: Iterator[flight.FlightStreamChunk], answer: Callable[[bytes], object]
    ) -> Iterator[pa.RecordBatch]:
        size, number = 0, -1
        try:
            for chunk in chunks:
                following = announced_size(chunk)
                if following:
                    self._in_flight.give_expected(number)
                    size, number = following, self._in_flight.expect(following)
                    answer(ROOM)
                    continue
                require_announced(chunk.data, size)
                yield chunk.data
                self._in_flight.give_expected(number)
                size = 0
        finally:
            self._in_flight.give_expected(number)
