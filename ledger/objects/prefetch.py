"""Sequential reads of object ranges with prefetching.

Rules
- Each range is fetched in pieces. While the caller uses a piece, the next pieces are fetched.
- At most `in_flight` pieces, and the piece in use, are in memory.
- Pieces are returned in order.
- The end of the `with` block cancels the remaining fetches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import NamedTuple, Self

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.objects.object_store import ObjectStore

PIECE_BYTES = 16 * 1024 * 1024
IN_FLIGHT = 3


class ObjectRange(NamedTuple):
    """Bytes `[start, end)` of an object."""

    name: str
    start: int
    end: int


class RangePrefetcher:
    """Prefetcher of ranges in order, in pieces of at most `piece_bytes`, with at most `in_flight` fetches at once."""

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
        self._pending = deque(_split(ranges, piece_bytes))
        self._fetches: deque[tuple[int, Future[Buffer]]] = deque()
        self._pool = ThreadPoolExecutor(in_flight, thread_name_prefix="read-ahead")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pending.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def pieces(self, number: int) -> Iterator[Buffer]:
        """Yield the pieces of range `number`. Drops all earlier ranges, so a caller must ask for ranges in order."""
        while True:
            self._submit_fetches()
            if not self._fetches or self._fetches[0][0] > number:
                return
            owner, future = self._fetches.popleft()
            if owner == number:
                yield future.result()
            else:
                future.cancel()

    def _submit_fetches(self) -> None:
        while self._pending and len(self._fetches) < self._in_flight:
            owner, piece = self._pending.popleft()
            length = piece.end - piece.start
            self._fetches.append((owner, self._pool.submit(self._store.get_range, piece.name, piece.start, length)))


def _split(ranges: Sequence[ObjectRange], piece_bytes: int) -> Iterator[tuple[int, ObjectRange]]:
    for number, whole in enumerate(ranges):
        for start in range(whole.start, whole.end, piece_bytes):
            yield number, ObjectRange(whole.name, start, min(start + piece_bytes, whole.end))
