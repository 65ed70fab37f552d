"""A block of a local file, mapped: what a reader on the broker's host does, and the broker for those it sends to.

The reader's half of a block in shared memory is here, too: its file is mapped under a shared lock.
`ledger.cache.shared_memory` makes the files and says how they are laid out and let go of.
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

# The method of `mmap` holds the interpreter while the disk reads, and with it every append of the broker.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


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
    end = block.offset + block.length
    with opened(block.path) as fd:
        size = os.fstat(fd).st_size
        if size < end:
            raise Corrupt(
                f"{block.path} has {size} bytes, entries {block.first_entry} to "
                f"{block.first_entry + block.entries - 1} end at {end}"
            )
        return map_range(fd, block.offset, block.length, str(block.path))


def map_range(fd: int, offset: int, length: int, where: str) -> pa.Buffer:
    """Bytes `[offset, offset + length)` of an open file that has them, mapped; Unavailable when its disk fails."""
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    mapping = mmap.mmap(fd, offset + length - start, prot=mmap.PROT_READ, offset=start)
    whole = pa.py_buffer(memoryview(mapping))
    _read_pages(whole, offset, length, where)
    return whole.slice(offset - start, length)


def _read_pages(mapping: pa.Buffer, offset: int, length: int, where: str) -> None:
    if _libc.madvise(mapping.address, mapping.size, _POPULATE_READ):
        code = ctypes.get_errno()
        if code != errno.EINVAL:  # a kernel without it reads pages when they are touched
            raise Unavailable(
                f"{where}: bytes {offset} to {offset + length} cannot be read: {os.strerror(code)}",
                hint="Look at the disk of the store",
            )


HEAD_BYTES = 256
_TRIES = 500


class SharedPlace(NamedTuple):
    """Where a block of shared memory is, and what its file begins with."""

    path: str
    head: str


def map_shared(place: SharedPlace, offset: int, length: int) -> pa.Buffer:
    """Bytes of the frames of a block, mapped and locked; NotFound when the block is gone."""
    try:
        fd = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise _gone(place) from None
    try:
        tries = 0
        while not try_lock(fd, fcntl.LOCK_SH):  # by the broker, which looks or cuts it to nothing
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
    """Take a lock on an open file, if nobody is in the way."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _gone(place: SharedPlace) -> NotFound:
    return NotFound(f"{place.path} is not there any more, or another block", hint="Ask for the range again")
