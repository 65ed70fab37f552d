"""Ranges of objects as a sequence of pieces, several of which are on their way while one is used.

Rules: memory is bounded by the pieces in flight and the one in use. Pieces come in order. What is not asked for any
more is not fetched: leaving the block cancels it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple, Self

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.offload.storage.object_store import ObjectStore

PIECE_BYTES = 16 * 1024 * 1024
IN_FLIGHT = 3


class ObjectRange(NamedTuple):
    """The bytes `[start, end)` of an object."""

    name: str
    start: int
    end: int


class RangePrefetcher:
    """Fetches ranges in order, in pieces of at most `piece_bytes`, at most `in_flight` at once."""

    def __init__(
        self,
        store: ObjectStore,
        ranges: Sequence[ObjectRange],
        *,
        piece_bytes: int = PIECE_BYTES,
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self._store = store
        self._in_flight = in_flight
        self._todo = deque(_cut(ranges, piece_bytes))
        self._coming: deque[tuple[int, Future[Buffer]]] = deque()
        self._pool = ThreadPoolExecutor(in_flight, thread_name_prefix="read-ahead")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._todo.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def pieces(self, number: int) -> Iterator[Buffer]:
        """The pieces of range `number`, which is never before one that was asked for already."""
        while True:
            self._fill()
            if not self._coming or self._coming[0][0] > number:
                return
            owner, future = self._coming.popleft()
            if owner == number:
                yield future.result()
            else:
                future.cancel()

    def _fill(self) -> None:
        while self._todo and len(self._coming) < self._in_flight:
            owner, piece = self._todo.popleft()
            length = piece.end - piece.start
            self._coming.append((owner, self._pool.submit(self._store.get_range, piece.name, piece.start, length)))


def _cut(ranges: Sequence[ObjectRange], piece_bytes: int) -> Iterator[tuple[int, ObjectRange]]:
    for number, whole in enumerate(ranges):
        for start in range(whole.start, whole.end, piece_bytes):
            yield number, ObjectRange(whole.name, start, min(start + piece_bytes, whole.end))
