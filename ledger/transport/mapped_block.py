"""Memory mapping of blocks (parts of a segment file with whole entries).

Readers on the broker's host map blocks themselves. The broker maps the blocks that it sends to remote readers. A
*frame* is an entry in a block, with its length and id.

A block can also be in a shared-memory file of the broker's cache. Its readers lock and map the file.
`ledger.cache.shared_memory` creates and evicts these files, and defines their layout.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from typing import NamedTuple

import pyarrow as pa

from pyspark_ledger.ledger.clock import pause
from pyspark_ledger.ledger.disk import opened
from pyspark_ledger.ledger.errors import Corrupt, NotFound, Unavailable
from pyspark_ledger.ledger.segment.reader import SegmentBlock

_POPULATE_READ = 22  # MADV_POPULATE_READ, Linux 5.14; not in `mmap` yet

# Called by ctypes, which releases the GIL. Python's `mmap.madvise` keeps the GIL while the disk reads, and would block
# every append of the broker.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def read_block(block: SegmentBlock) -> pa.Buffer:
    """Return the frames of a block from its file or from object storage.

    Raises the errors of `map_block` or of object storage.
    """
    if block.source is None:
        return map_block(block)
    return block.source.read_with(lambda: map_block(block), block.first_entry, block.entries)


def map_block(block: SegmentBlock) -> pa.Buffer:
    """Map exactly the frames of a block. Raises NotFound, Corrupt or Unavailable. The error names the file.

    The mapping begins at a page boundary, and the returned buffer begins at the block. The mapping exists while the
    buffer or a slice of it exists. The function loads all pages before it returns. Reason: this is faster than one
    page fault for each page. Also, an unreadable disk then causes an error, and not SIGBUS, which kills the process.
    """
    end = block.offset + block.length
    with opened(block.path) as fd:
        size = os.fstat(fd).st_size
        if size < end:
            raise Corrupt(
                f"{block.path} has {size} bytes, but entries {block.first_entry} to "
                f"{block.first_entry + block.entries - 1} end at byte {end}"
            )
        return map_range(fd, block.offset, block.length, str(block.path))


def map_range(fd: int, offset: int, length: int, where: str) -> pa.Buffer:
    """Map bytes `[offset, offset + length)` of an open file. The caller has checked that the file is large enough.

    Raises Unavailable if the disk fails.
    """
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    mapping = mmap.mmap(fd, offset + length - start, prot=mmap.PROT_READ, offset=start)
    whole = pa.py_buffer(memoryview(mapping))
    _read_pages(whole, offset, length, where)
    return whole.slice(offset - start, length)


def _read_pages(mapping: pa.Buffer, offset: int, length: int, where: str) -> None:
    if _libc.madvise(mapping.address, mapping.size, _POPULATE_READ):
        code = ctypes.get_errno()
        if code != errno.EINVAL:  # older kernels load pages at their first access
            raise Unavailable(
                f"{where}: bytes {offset} to {offset + length} cannot be read: {os.strerror(code)}",
                hint="Check the disk of the store",
            )


HEAD_BYTES = 256
_TRIES = 500


class SharedPlace(NamedTuple):
    """Location of a block in shared memory. `head` is the expected content of the first bytes of the file."""

    path: str
    head: str


def map_shared(place: SharedPlace, offset: int, length: int) -> pa.Buffer:
    """Lock a block in shared memory, and map bytes `[offset, offset + length)` of its frames.

    Raises NotFound if the broker has evicted the block.
    """
    try:
        fd = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise _gone(place) from None
    try:
        tries = 0
        while not try_lock(fd, fcntl.LOCK_SH):  # the broker has the lock while it checks or truncates the file
            tries += 1
            if tries > _TRIES:
                raise _gone(place)
            pause(1)
        wanted = place.head.encode().ljust(HEAD_BYTES, b"\0")
        if os.fstat(fd).st_size < HEAD_BYTES + offset + length or os.pread(fd, HEAD_BYTES, 0) != wanted:
            raise _gone(place)
        return map_range(fd, HEAD_BYTES + offset, length, f"{place.path}")
    finally:
        os.close(fd)


def try_lock(fd: int, kind: int) -> bool:
    """Try to lock an open file without waiting. Return whether the lock was acquired."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _gone(place: SharedPlace) -> NotFound:
    return NotFound(f"{place.path} does not contain the requested block", hint="Request the locations again")
