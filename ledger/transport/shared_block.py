"""The reader's half of a block in shared memory: its file is mapped under a shared lock.

`ledger.cache.shared_memory` makes the files and says how they are laid out and let go of.
"""

from __future__ import annotations

import fcntl
import os
from typing import NamedTuple

import pyarrow as pa

from pyspark_ledger.ledger.clock import pause
from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.transport.mapped_block import map_range

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
