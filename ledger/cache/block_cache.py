"""The seam through which every block goes to a reader: what was read, what was mapped, what is kept.

A cached block of a local ledger has the ledger's file as its home: the cache keeps the mapping and the account, and
copies nothing. Handing out a place for somebody else to map is counted beside it.

Invariants: the bytes kept never exceed the limit; the least recently used go first; a block that is larger than the
limit is handed out and not kept.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Protocol

import pyarrow as pa

from ledger.disk import opened
from ledger.errors import Corrupt, Unavailable
from ledger.protocol import CacheMetrics
from ledger.segment_reader import SegmentBlock

_Key = tuple[int, int, int]
_POPULATE_READ = 22  # MADV_POPULATE_READ, Linux 5.14; not in `mmap` yet

# The method of `mmap` holds the interpreter while the disk reads, and with it every append of the broker.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class BlockSource(Protocol):
    """Where the broker gets the frames of a block from. Any thread may call it."""

    def read(self, block: SegmentBlock) -> pa.Buffer:
        """Exactly the frames of the block; valid for as long as the buffer is referenced."""
        ...

    def hand_out(self, blocks: Sequence[SegmentBlock]) -> None:
        """Count blocks whose places were answered to a reader that maps them itself: storage reads."""
        ...

    def metrics(self) -> CacheMetrics:
        """What was counted since the start."""
        ...


class BlockCache:
    """Blocks that were read lately, least recently used first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._blocks: OrderedDict[_Key, pa.Buffer] = OrderedDict()
        self._lock = threading.Lock()
        self._size = self._hits = self._misses = self._hit_bytes = self._miss_bytes = 0
        self._mapped_entries = self._mapped_bytes = 0

    def read(self, block: SegmentBlock) -> pa.Buffer:
        """The frames of a block, from the cache or mapped from its file."""
        key = (block.ledger_id, block.offset, block.length)
        with self._lock:
            kept = self._blocks.get(key)
            if kept is not None:
                self._blocks.move_to_end(key)
                self._hits += block.entries
                self._hit_bytes += block.length
                return kept
        buffer = read_block(block)
        with self._lock:
            self._misses += block.entries
            self._miss_bytes += buffer.size
            if buffer.size <= self._limit and key not in self._blocks:
                self._blocks[key] = buffer
                self._size += buffer.size
            self._make_room()
        return buffer

    def forget(self, ledger_ids: Collection[int]) -> None:
        """Let go of ledgers that were deleted: a mapping would keep their space on the disk."""
        with self._lock:
            for key in [key for key in self._blocks if key[0] in ledger_ids]:
                self._size -= self._blocks.pop(key).size

    def resize(self, limit_bytes: int) -> None:
        """Keep at most so many bytes from now on."""
        with self._lock:
            self._limit = limit_bytes
            self._make_room()

    def _make_room(self) -> None:
        while self._size > self._limit:
            _, buffer = self._blocks.popitem(last=False)
            self._size -= buffer.size

    def hand_out(self, blocks: Sequence[SegmentBlock]) -> None:
        """Count blocks that readers map themselves."""
        with self._lock:
            self._mapped_entries += sum(block.entries for block in blocks)
            self._mapped_bytes += sum(block.length for block in blocks)

    def metrics(self) -> CacheMetrics:
        """What was counted since the start."""
        with self._lock:
            return CacheMetrics(
                self._hits,
                self._misses,
                self._hit_bytes,
                self._miss_bytes,
                self._size,
                self._mapped_entries,
                self._mapped_bytes,
            )


def read_block(block: SegmentBlock) -> pa.Buffer:
    """The frames of a block, from its file or from object storage; raises as `map_block` and its home do."""
    if block.home is None:
        return map_block(block)
    return block.home.read_with(lambda: map_block(block), block.first_entry, block.entries)


def map_block(block: SegmentBlock) -> pa.Buffer:
    """Map the frames of a block and nothing else; raises NotFound, Corrupt or Unavailable naming the file.

    The mapping begins at a page, the buffer at the block; it lives for as long as any slice of the buffer. Its pages
    are there on return: faster than a fault for each, and a disk that cannot read them is an error and no SIGBUS.
    """
    start = block.offset - block.offset % mmap.ALLOCATIONGRANULARITY
    end = block.offset + block.length
    with opened(block.path) as fd:
        size = os.fstat(fd).st_size
        if size < end:
            raise Corrupt(
                f"{block.path} has {size} bytes, entries {block.first_entry} to "
                f"{block.first_entry + block.entries - 1} end at {end}"
            )
        mapping = mmap.mmap(fd, end - start, prot=mmap.PROT_READ, offset=start)
    whole = pa.py_buffer(memoryview(mapping))
    _read_pages(whole, block)
    return whole.slice(block.offset - start, block.length)


def _read_pages(mapping: pa.Buffer, block: SegmentBlock) -> None:
    if _libc.madvise(mapping.address, mapping.size, _POPULATE_READ):
        code = ctypes.get_errno()
        if code != errno.EINVAL:  # a kernel without it reads pages when they are touched
            end = block.offset + block.length
            raise Unavailable(
                f"{block.path}: bytes {block.offset} to {end} cannot be read: {os.strerror(code)}",
                hint="Look at the disk of the store",
            )
