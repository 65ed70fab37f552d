"""Batches of staging streams, received within a share of the bytes in flight of all producers.

    announcement ─▶ wait for room ─▶ receive the batch ─▶ write it to the part ─▶ give the room back

Rules
- A stream that announces its large batches receives one when there is room for it. Until then gRPC's flow control
  stops the sender.
- At most `_SILENT_MAX` streams that announce nothing are served at once. Others wait for up to `_SECONDS`, and are then
  refused. Such a stream is that of an earlier release, or of another program.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import flight

from pyspark_ledger.ledger.broker.limits import InFlightBytes
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.transport.announced_batch import announced_size, require_announced

_SILENT_MAX = 2
_SECONDS = 60


class StagedBatches:
    """Receiver of the staging streams of one broker."""

    def __init__(self, in_flight: InFlightBytes, *, seconds: float = _SECONDS) -> None:
        self._in_flight = in_flight
        self._seconds = seconds
        self._silent = threading.BoundedSemaphore(_SILENT_MAX)

    def received(self, chunks: Iterator[flight.FlightStreamChunk], *, announced: bool) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a stream. `announced` means that the stream announces its large batches.

        Raises Refused for a large batch without an announcement. Raises Unavailable if too many streams announce
        nothing.
        """
        if announced:
            yield from self._announced(chunks)
            return
        if not self._silent.acquire(timeout=self._seconds):
            raise Unavailable(
                f"{_SILENT_MAX} staging streams that do not announce their batches are being served, no more are "
                f"allowed, and this stream has waited for {self._seconds} s",
                hint="Use one release of pyspark-ledger on the driver and on the executors",
            )
        try:
            for chunk in chunks:
                yield chunk.data
        finally:
            self._silent.release()

    def _announced(self, chunks: Iterator[flight.FlightStreamChunk]) -> Iterator[pa.RecordBatch]:
        size, number = 0, -1
        try:
            for chunk in chunks:
                following = announced_size(chunk)
                if following:
                    self._in_flight.give_expected(number)
                    size, number = following, self._in_flight.expect(following)
                    continue
                require_announced(chunk.data, size)
                yield chunk.data
                self._in_flight.give_expected(number)
                size = 0
        finally:
            self._in_flight.give_expected(number)
