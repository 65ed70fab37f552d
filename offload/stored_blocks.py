"""Blocks of a store in a bucket, with their places in objects.

The plan of a read gives each task the places of its blocks. The task fetches the blocks from the bucket.

A *block* is a number of consecutive frames of one segment. A frame is an entry with its length and id. The bytes of a
block are in the data object of an uploaded segment, or in one or more objects of the write-ahead log. The page
docs/concepts.md explains the words segment, entry, log object, data object and direct segment.

Rules
- A place has a key, an offset and a length. It contains no rows and no credentials.
- The next blocks are fetched while the caller uses a block. Three fetches from segments, or eight fetches from small
  log objects, run at once. They take about 72 MiB of memory.
- The real stamps of a block of a direct segment are written into the fetched bytes.
- The first frame of a block must have the entry id that the plan states. The reader of the rows verifies the other
  frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import TracebackType
from typing import Self

import pyarrow as pa

from pyspark_ledger.ledger.client.block_reader import FrameBlock
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.objects.prefetch import ObjectRange, RangePrefetcher
from pyspark_ledger.ledger.segment.format import FRAME, FRAME_BYTES
from pyspark_ledger.ledger.segment.provisional_stamps import RealStamps, with_counted_rows

BLOCK_BYTES = 24 * 1024 * 1024
"""Maximum size of a block. Exception: one larger entry. One request fetches a block of an uploaded segment."""
_HELD_BYTES = 3 * BLOCK_BYTES
_IN_FLIGHT_MIN, _IN_FLIGHT_MAX = 3, 8


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """Entries `[first_entry, first_entry + entries)` of a segment, in the bytes of `ranges`, one after another.

    `stamps` is set if the stamps in these bytes are provisional (`ledger.segment.provisional_stamps`).
    """

    ledger_id: int
    first_entry: int
    entries: int
    ranges: tuple[ObjectRange, ...]
    stamps: RealStamps | None = None


class BlockFetcher:
    """Fetcher of blocks in order, with prefetching. Use as a context manager."""

    def __init__(self, store: ObjectStore, blocks: Sequence[StoredBlock]) -> None:
        self._store = store
        self._blocks = blocks
        self._starts = [0, *accumulate(len(block.ranges) for block in blocks)]
        ranges = [range_ for block in blocks for range_ in block.ranges]
        largest = max((range_.end - range_.start for range_ in ranges), default=1)
        in_flight = min(max(_HELD_BYTES // largest, _IN_FLIGHT_MIN), _IN_FLIGHT_MAX)
        self._prefetcher = RangePrefetcher(store, ranges, piece_bytes=2 * BLOCK_BYTES, in_flight=in_flight)

    def __enter__(self) -> Self:
        self._prefetcher.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._prefetcher.__exit__(kind, error, trace)

    def fetch(self, number: int) -> FrameBlock:
        """Return block `number`. Numbers must rise. Raises NotFound or Corrupt if its objects do not have the block."""
        block = self._blocks[number]
        numbers = range(self._starts[number], self._starts[number + 1])
        pieces = [piece for place in numbers for piece in self._prefetcher.pieces(place)]
        frames = pa.py_buffer(pieces[0] if len(pieces) == 1 else b"".join(map(memoryview, pieces)))
        found = FRAME.unpack_from(frames)[1] if frames.size >= FRAME_BYTES else -1
        if found != block.first_entry:
            place = block.ranges[0]
            raise Corrupt(
                f"{self._store.address}/{place.name} at {place.start}: entry {found}, expected {block.first_entry}"
            )
        if block.stamps is not None:
            where = f"{self._store.address}/{block.ranges[0].name} at {block.ranges[0].start}"
            frames = with_counted_rows(frames, block.ledger_id, block.first_entry, block.entries, block.stamps, where)
        return FrameBlock(block.ledger_id, block.first_entry, block.entries, frames, False)
