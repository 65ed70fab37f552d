"""Where blocks of offloaded ledgers are in this host's shared memory, for readers that map them.

Rules
- A few blocks at a time: what is answered is there, so it is read first if need be, and a range may be larger than all
  of the cache. The reader asks for the rest when it has mapped these.
- What was answered keeps its name until its reader asks for what follows, or for two seconds.
- Where there is no shared memory, or no room in it, blocks are sent, and for a while nobody tries again.
- What readers have mapped stays taken, whatever the cache lets go of. So they may have half of its limit: with more in
  their hands blocks are sent, and a reader that stands still, or keeps what it has read, leaves the others the rest.
  They are asked when so much was told since that it may matter.
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
_AGAIN_MS = 10_000


class SharedReads:
    """Answers places. Any thread may call it."""

    def __init__(
        self,
        reads: OffloadedReads,
        shared: SharedBlocks,
        home_of: Callable[[SegmentBlock], FrameSource | None],
        clock: Clock,
    ) -> None:
        self._reads = reads
        self._home_of = home_of
        self._shared = shared
        self._clock = clock
        self._kept: dict[tuple[ReaderId, Position], tuple[int, list[SharedMemoryReference]]] = {}
        self._none_until: int | None = None
        self._in_hands = self._told = 0
        self._lock = threading.Lock()

    def places(self, blocks: Sequence[SegmentBlock], reading: ReaderId) -> tuple[list[BlockPlace], int]:
        """Places of the first of these blocks, which are cached as bytes, and of how many; none: send them."""
        now = self._clock()
        self._let_go(now, (reading, Position(blocks[0].ledger_id, blocks[0].first_entry)))
        if not self._shared or not self._reads.unit_bytes or (self._none_until is not None and now < self._none_until):
            return [], 0
        if self._is_crowded():
            return [], 0
        self._reads.mapped = True
        places, helds, size = list[BlockPlace](), list[SharedMemoryReference](), 0
        for number, block in enumerate(blocks):
            found = [] if number and size >= self._window() else self._in_memory(block, reading, helds)
            if not found:
                if not places:
                    self._none_until = now + _AGAIN_MS
                break
            places += found
            size += block.length
        else:
            number = len(blocks)
        with self._lock:
            if places:
                end = Position(places[-1].ledger_id, places[-1].first_entry + places[-1].entries)
                self._kept[reading, end] = (now + _KEPT_MS, helds)
                self._told += size
        return places, number

    def finished(self, reading: ReaderId) -> None:
        """A reader has mapped all that it was answered: it begins with something else."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == reading]:
                del self._kept[key]

    def expire(self) -> None:
        if self._kept:
            self._let_go(self._clock(), None)

    def _is_crowded(self) -> bool:
        """Whether readers have as much mapped as they may."""
        if self._in_hands + self._told <= self._reads.room_bytes:
            return False
        found = self._reads.in_hands()
        with self._lock:
            self._in_hands, self._told = found, 0
        return found > self._reads.room_bytes

    def _window(self) -> int:
        return min(_WINDOW_BYTES, self._reads.unit_bytes)

    def _in_memory(
        self, block: SegmentBlock, reading: ReaderId, helds: list[SharedMemoryReference]
    ) -> list[BlockPlace]:
        home = self._home_of(block)
        if home is None:
            return []
        places = list[BlockPlace]()
        for part in self._reads.parts(block, home, reading):
            held, (offset, length) = part.held, part.block.cut(part.first, part.end)
            if not isinstance(held, SharedMemoryReference):
                # It was read before anybody was known to map blocks: a copy, for this reader.
                held, offset = self._reads.copied(part), 0
            if held is None:
                return []
            helds.append(held)
            places.append(
                BlockPlace(
                    block.ledger_id, part.first, part.end - part.first, held.place.path, offset, length, held.place.head
                )
            )
        return places

    def _let_go(self, now: int, done: tuple[ReaderId, Position] | None) -> None:
        with self._lock:
            for key in [key for key, (until, _) in self._kept.items() if until <= now or key == done]:
                del self._kept[key]
