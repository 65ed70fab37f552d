"""Reads of blocks whose bytes the cache keeps. Concurrent readers of a block share one read of storage.

The cache keeps the bytes of blocks from object storage. With `managedLedgerCacheCopyEntries` it also keeps the bytes of
blocks in local files.

Rule: for a registered reader, the broker prefetches only the ranges that the reader announced (`prefetcher`). For any
other reader, the offloader (the code that reads object storage) prefetches the bytes after the last read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.cache.block import BlockStorage, CachedBlock
from pyspark_ledger.ledger.cache.block_storage import HeapStorage
from pyspark_ledger.ledger.cache.cache import EntryCache
from pyspark_ledger.ledger.cache.ledger_cache import BlockPart
from pyspark_ledger.ledger.cache.shared_memory import SharedBlocks, SharedMemoryReference
from pyspark_ledger.ledger.segment.format import FRAME_BYTES
from pyspark_ledger.ledger.segment.index import Integers
from pyspark_ledger.ledger.segment.reader import FrameSource, SegmentBlock, frame_table
from pyspark_ledger.ledger.transport.mapped_block import map_block

UNIT_LEAST, UNIT_MOST = 1024 * 1024, 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ReaderId:
    """Identity of a reader: the canonical name of the ledger, and the reader's name, which can be empty."""

    ledger: str
    reader: str


class LocalFile:
    """Source of a block in a local file, whose bytes the cache copies."""

    mappable = True
    stored = None

    def read_with(
        self,
        local: Callable[[], pa.Buffer],
        first_entry: int,  # noqa: ARG002 — the names are those of the interface
        entries: int,  # noqa: ARG002 — as above
        *,
        alone: bool = False,  # noqa: ARG002 — as above
    ) -> pa.Buffer:
        """Return the frames that `local` maps."""
        return local()


LOCAL_FILE = LocalFile()


class OffloadedReads:
    """Reads of storage through the cache. Any thread may call any method."""

    def __init__(self, cache: EntryCache, shared: SharedBlocks | None) -> None:
        self._cache = cache
        self._shared = shared
        self.mapped = False
        """True as soon as a reader on this host maps blocks. Before that, no block is put into shared memory."""

    @property
    def unit_bytes(self) -> int:
        """Approximate size in bytes of one prefetch; 0 if the cache is too small for prefetching."""
        unit = min(self._cache.limits.size // 16, UNIT_MOST)
        return unit if unit >= UNIT_LEAST else 0

    @property
    def room_bytes(self) -> int:
        """Maximum bytes that readers can have mapped: half of the cache's limit."""
        return self._cache.limits.size // 2

    def mapped_bytes(self) -> int:
        """Return the bytes of cached and evicted blocks that readers have mapped."""
        return self._cache.mapped_bytes()

    def is_known(self, reading: ReaderId) -> bool:
        """Return whether the reader is registered, so that the broker prefetches the ranges that it announces."""
        return bool(self.unit_bytes) and reading.reader in self._cache.ledger(reading.ledger).readers

    def bypassing(self, blocks: Iterable[SegmentBlock], reading: ReaderId, *, maps: bool) -> list[bool]:
        """Return for each block in object storage whether its reader fetches the block by itself.

        `maps`: the reader maps blocks of this broker. Then the broker fills unused memory with blocks for this reader.
        A query that starts later finds them there. To a reader on another host, the broker would have to send them.
        """
        unused = self._cache.unused(reading.ledger, reading.reader) if maps else 0
        found = list[bool]()
        for block in blocks:
            end = block.first_entry + block.entries
            own = self._cache.bypasses(reading.ledger, reading.reader, block.ledger_id, block.first_entry, end)
            if own and block.length <= unused:
                own, unused = False, unused - block.length
            found.append(own)
        return found

    def read(self, block: SegmentBlock, source: FrameSource, reading: ReaderId) -> pa.Buffer:
        fetched = self._fetched(block, source, alone=self.is_known(reading))
        parts = self._parts(fetched, block, reading)
        return _joined([fetched.frames(p.first, p.end) if p.held is None else _cut(p) for p in parts])

    def parts(self, block: SegmentBlock, source: FrameSource, reading: ReaderId) -> list[BlockPart]:
        """Return a block as the parts that are cached separately. A part keeps its memory until it is released."""
        return self._parts(self._fetched(block, source, alone=self.is_known(reading)), block, reading)

    def copied(self, part: BlockPart) -> SharedMemoryReference | None:
        """Copy a part from the broker's own memory into shared memory. Return a reference, which keeps the copy.

        Returns None if shared memory has no room.
        """
        frames = _cut(part)
        storage = None if self._shared is None else self._shared.put(part.block.ledger_id, part.first, frames)
        if storage is None:
            return None
        reference = storage.acquire()
        block = CachedBlock(part.block.ledger_id, part.first, part.end, frames.size, part.block.edges, storage)
        self._cache.release_uncached(block)
        return reference

    def _parts(self, fetched: _Fetched, block: SegmentBlock, reading: ReaderId) -> list[BlockPart]:
        first, end = block.first_entry, block.first_entry + block.entries
        return self._cache.fetch(reading.ledger, reading.reader, block.ledger_id, first, end, fetched.load)

    def _fetched(self, block: SegmentBlock, source: FrameSource, *, alone: bool) -> _Fetched:
        return _Fetched(self._cache, block, source, self._shared if self.mapped else None, alone=alone)

    def append(self, block: SegmentBlock, ledger: str) -> None:
        """Cache a copy of a newly appended block."""
        fetched = _Fetched(self._cache, block, LOCAL_FILE, None, alone=True)
        self._cache.append(ledger, fetched.load(block.first_entry, block.first_entry + block.entries))

    def prefetch(self, block: SegmentBlock, source: FrameSource, ledger: str) -> int:
        """Load the frames of a block into the cache. Return the number of bytes read from storage."""
        fetched = self._fetched(block, source, alone=True)
        first, end = block.first_entry, block.first_entry + block.entries
        return self._cache.ahead(ledger, block.ledger_id, first, end, fetched.load)

    def is_missing(self, block: SegmentBlock, ledger: str) -> bool:
        """Return whether the cache lacks any part of the block."""
        with self._cache.still():
            end = block.first_entry + block.entries
            return bool(self._cache.ledger(ledger).cache.missing(block.ledger_id, block.first_entry, end))


class _Fetched:
    """Loader of the entries of one block, from the local file if it still exists, or else from object storage."""

    def __init__(
        self, cache: EntryCache, block: SegmentBlock, source: FrameSource, shared: SharedBlocks | None, *, alone: bool
    ) -> None:
        self._cache = cache
        self._block = block
        self._source = source
        self._shared = shared
        self._alone = alone

    def frames(self, first: int, end: int) -> pa.Buffer:
        """Return the frames of entries `[first, end)`."""
        block = self._block
        with self._cache.permits.held(block.length * (end - first) // block.entries):
            return self._source.read_with(lambda: _local(block, first, end), first, end - first, alone=self._alone)

    def load(self, first: int, end: int) -> CachedBlock:
        frames, ledger_id = self.frames(first, end), self._block.ledger_id
        shared = self._shared.put(ledger_id, first, frames) if self._shared is not None else None
        storage: BlockStorage = HeapStorage(frames) if shared is None else shared

        def edges(first: int, end: int) -> Integers:
            starts, lengths = frame_table(storage.frames, ledger_id, first, end - first)
            return np.append(starts - FRAME_BYTES, starts[-1:] + lengths[-1:])

        return CachedBlock(ledger_id, first, end, frames.size, edges, storage, offloaded=not self._source.mappable)


def _local(block: SegmentBlock, first: int, end: int) -> pa.Buffer:
    """Return the frames of some entries of a block in a local file."""
    frames = map_block(block)
    starts, lengths = frame_table(frames, block.ledger_id, block.first_entry, block.entries)
    begin = int(starts[first - block.first_entry]) - FRAME_BYTES
    stop = int(starts[end - 1 - block.first_entry] + lengths[end - 1 - block.first_entry])
    return frames.slice(begin, stop - begin)


def _cut(part: BlockPart) -> pa.Buffer:
    offset, length = part.block.cut(part.first, part.end)
    return part.held.frames.slice(offset, length) if part.held is not None else None


def _joined(parts: list[pa.Buffer]) -> pa.Buffer:
    return parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(memoryview(part) for part in parts))
