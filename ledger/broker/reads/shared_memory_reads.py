"""Shared-memory locations of blocks from object storage, for readers on the broker's host.

Rules
- A reply has the locations of a few blocks only, because a range can be larger than the cache. The broker loads these
  blocks before it replies. The reader maps them, and then requests the next blocks.
- After the reply, the broker keeps the file of a block until the reader requests the next blocks, but at most for two
  seconds. A reader can use a file that it has mapped even after the file was deleted.
- If shared memory is missing or full, the broker sends blocks instead. It tries shared memory again after
  `_RETRY_DELAY_MS`.
- A mapped block uses memory even after the cache has evicted it. If readers have mapped more than half of the cache's
  limit, the broker sends blocks instead. So a reader that has stopped cannot use up the whole cache.
- A count of the mapped bytes takes long. So the broker adds the bytes of each reply to the last count. It counts again
  only if this sum exceeds the limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pyspark_ledger.ledger.broker.reads.offloaded_reads import OffloadedReads, ReaderId
from pyspark_ledger.ledger.cache.shared_memory import SharedBlocks, SharedMemoryReference
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.reads import BlockPlace
from pyspark_ledger.ledger.segment.reader import FrameSource, SegmentBlock

_WINDOW_BYTES = 8 * 1024 * 1024
_KEPT_MS = 2_000
_RETRY_DELAY_MS = 10_000


class SharedReads:
    """Service that puts blocks into shared memory and returns their locations. Any thread may call any method."""

    def __init__(
        self,
        reads: OffloadedReads,
        shared: SharedBlocks,
        home_of: Callable[[SegmentBlock], FrameSource | None],
        clock: Clock,
    ) -> None:
        self._reads = reads
        self._source_of = home_of
        self._shared = shared
        self._clock = clock
        self._references: dict[tuple[ReaderId, Position], tuple[int, list[SharedMemoryReference]]] = {}
        self._retry_ms: int | None = None
        self._mapped_bytes = self._answered_bytes = 0
        self._lock = threading.Lock()

    def places(self, blocks: Sequence[SegmentBlock], reading: ReaderId) -> tuple[list[BlockPlace], int]:
        """Return the shared-memory locations of the first of `blocks`, and the number of these blocks.

        Returns no locations if the broker must send the blocks.
        """
        now = self._clock()
        self._release_expired(now, (reading, Position(blocks[0].ledger_id, blocks[0].first_entry)))
        if not self._shared or not self._reads.unit_bytes or (self._retry_ms is not None and now < self._retry_ms):
            return [], 0
        if self._is_crowded():
            return [], 0
        self._reads.mapped = True
        places, references, size = list[BlockPlace](), list[SharedMemoryReference](), 0
        for number, block in enumerate(blocks):
            found = [] if number and size >= self._window() else self._in_memory(block, reading, references)
            if not found:
                if not places:
                    self._retry_ms = now + _RETRY_DELAY_MS
                break
            places += found
            size += block.length
        else:
            number = len(blocks)
        with self._lock:
            if places:
                end = Position(places[-1].ledger_id, places[-1].first_entry + places[-1].entries)
                self._references[reading, end] = (now + _KEPT_MS, references)
                self._answered_bytes += size
        return places, number

    def finished(self, reading: ReaderId) -> None:
        """Release the blocks whose locations a reader got. The reader has mapped them, and starts another range."""
        with self._lock:
            for key in [key for key in self._references if key[0] == reading]:
                del self._references[key]

    def expire(self) -> None:
        if self._references:
            self._release_expired(self._clock(), None)

    def _is_crowded(self) -> bool:
        """Return whether readers have mapped more than half of the cache's limit."""
        if self._mapped_bytes + self._answered_bytes <= self._reads.room_bytes:
            return False
        mapped_bytes = self._reads.mapped_bytes()
        with self._lock:
            self._mapped_bytes, self._answered_bytes = mapped_bytes, 0
        return mapped_bytes > self._reads.room_bytes

    def _window(self) -> int:
        return min(_WINDOW_BYTES, self._reads.unit_bytes)

    def _in_memory(
        self, block: SegmentBlock, reading: ReaderId, references: list[SharedMemoryReference]
    ) -> list[BlockPlace]:
        source = self._source_of(block)
        if source is None:
            return []
        places = list[BlockPlace]()
        for part in self._reads.parts(block, source, reading):
            held, (offset, length) = part.held, part.block.cut(part.first, part.end)
            if not isinstance(held, SharedMemoryReference):
                # The part is in the broker's own memory, because no reader mapped blocks when it was cached.
                held, offset = self._reads.copied(part), 0
            if held is None:
                return []
            references.append(held)
            places.append(
                BlockPlace(
                    block.ledger_id, part.first, part.end - part.first, held.place.path, offset, length, held.place.head
                )
            )
        return places

    def _release_expired(self, now: int, done: tuple[ReaderId, Position] | None) -> None:
        with self._lock:
            for key in [key for key, (until, _) in self._references.items() if until <= now or key == done]:
                del self._references[key]
