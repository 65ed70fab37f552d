"""Time at which the next object of the write-ahead log is due. No input or output.

Each object costs a request. So the batches (groups of changes) of many clients share objects, and wait for each other.
The batch of a single client does not wait.

Rules
- A full object is due at once.
- Any other object is due one flush interval after the previous object.
- Exception: a lone batch is due at once. A batch is lone if no other batch waits or is in flight, and the previous
  object has bytes of at most one file.
- Exception: while the bytes of two full objects are in flight, only a full object is due. Reason: the bucket takes
  bytes more slowly than clients send them. Smaller objects would take more requests and no less time.
- An idle log gets one object without parts, `idle_ms` after the last object with parts. It states that the objects
  before it were acknowledged. So a reader notices if one of them is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_ledger.ledger.wal.packing import Packer


class FlushSchedule:
    """Schedule of one writer. Times are milliseconds of a monotonic clock. Not thread-safe."""

    def __init__(self, interval_ms: int, object_bytes: int, idle_ms: int) -> None:
        self._interval_ms = interval_ms
        self._idle_ms = idle_ms
        self._object_bytes = object_bytes
        self._flushed_ms: int | None = None
        self._files = 0

    def due_ms(self, now_ms: int, packer: Packer, in_flight: Sequence[int]) -> int | None:
        """Return the time at which the next object is due, which may be in the past.

        `in_flight` are the sizes in bytes of the objects in flight. Returns None if no object is due before another
        batch or an acknowledgement arrives.
        """
        if not len(packer):
            is_stated = bool(in_flight) or not self._files
            return None if is_stated or self._flushed_ms is None else self._flushed_ms + self._idle_ms
        lone = len(packer) == 1 and not any(in_flight) and self._files <= 1
        if self._flushed_ms is None or lone or packer.size >= self._object_bytes:
            return now_ms
        return None if sum(in_flight) >= 2 * self._object_bytes else self._flushed_ms + self._interval_ms

    def flushed(self, now_ms: int, files: int) -> None:
        """Record that an object was packed at `now_ms`. `files` is the number of files whose bytes it contains.

        All metadata records of an object count as one file. An object without parts has no file.
        """
        self._flushed_ms, self._files = now_ms, files
