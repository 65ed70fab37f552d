"""Ring buffer in memory that a producer shares with the broker of its host, so that no entry crosses a socket.

    entry entry …  free …  (wraps round; an entry never does)
    0                                                    size

The producer owns an anonymous file (memfd) and passes its descriptor to the broker, which maps it for reading. The
producer must not change an entry from the moment that it sends its offset until the entry is acknowledged.

A producer that breaks this rule changes bytes that the broker has checked and not written yet. An entry of up to
`COPIED_BYTES_MAX` bytes is therefore copied before its check, which costs less than 3 % of an append. The copy of a
larger entry would cost up to 10 %: such an entry is written from shared memory. An entry in a file of its own is sealed
against writing, or copied.

Invariants
- The file can never shrink: it is sealed, and the broker maps no unsealed file. Access to a mapping of a truncated file
  kills the process.
- Space is released in the order of allocation, and each entry has its own space.
- A ring of twice a producer's in-flight limit always has room within that limit. If neither end of the ring has room,
  the bytes in flight and the new entry exceed half the ring together.
- In a smaller ring an entry waits until earlier entries are acknowledged. An empty ring always has room.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.ledger.protocol.actions import ENTRY_SCHEMA

COPIED_BYTES_MAX = 4 * 1024
_PLACE = struct.Struct("<qq")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_UNCHANGING = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE


class RingWriter:
    """Producer's end of the ring. Not thread-safe: the producer's lock guards it."""

    def __init__(self, size: int) -> None:
        self.fd = sealed_file(size)
        self._map = mmap.mmap(self.fd, size)
        self._memory = memoryview(self._map)
        self.size = size
        self._head = 0
        self._live: deque[tuple[int, int]] = deque()

    def has_room(self, length: int) -> bool:
        """Return whether `write` has room for an entry of this length."""
        return self._room(max(length, 1)) >= 0

    def write(self, buffers: Sequence[Buffer], length: int) -> int:
        """Copy an entry of `length` bytes into the ring. Return its offset, or -1 if there is no room."""
        start = at = self._room(max(length, 1))
        if start < 0:
            return start
        for buffer in buffers:
            view = buffer if isinstance(buffer, bytes) else memoryview(buffer).cast("B")
            self._memory[at : at + len(view)] = view
            at += len(view)
        at = max(at, start + 1)  # an empty entry needs an offset of its own, too
        self._live.append((start, at))
        self._head = at
        return start

    def release(self) -> None:
        """Release the space of the oldest entry, which was acknowledged or has failed."""
        self._live.popleft()
        if not self._live:
            self._head = 0  # starts at 0 again: a seldom used ring touches few pages

    def free(self) -> None:
        """Release the file and the memory. Called after the last write; may be called again."""
        self.close()
        self._memory.release()
        self._map.close()

    def close(self) -> None:
        """Close the file. The memory stays mapped while a view of it exists."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _room(self, length: int) -> int:
        tail = self._live[0][0] if self._live else self.size
        if self._live and tail < self._head:
            if length <= self.size - self._head:
                return self._head
            return 0 if length <= tail else -1
        return self._head if length <= tail - self._head else -1


class RingReader:
    """Broker's end of the ring."""

    def __init__(self, fd: int) -> None:
        """Map the file of a producer. Raises OSError, or Unsupported if the file can shrink."""
        self._memory = map_sealed(fd)

    def entries(self, places: bytes) -> list[memoryview]:
        """Return the entries at the offsets that a producer sent. Raises Refused if an entry is outside the ring."""
        if len(places) % _PLACE.size:
            raise Refused(f"{len(places)} bytes of places are no pairs of offset and length")
        memory, size = self._memory, len(self._memory)
        entries = []
        for start, length in _PLACE.iter_unpack(places):
            if not 0 <= start <= start + length <= size:
                raise Refused(f"an entry of {length} bytes at {start} lies outside a ring of {size} bytes")
            entry = memory[start : start + length]
            entries.append(memoryview(entry.tobytes()) if length <= COPIED_BYTES_MAX else entry)
        return entries


def pack_places(places: Sequence[tuple[int, int]]) -> bytes:
    return b"".join([_PLACE.pack(start, length) for start, length in places])


def sealed_file(size: int, content: Sequence[Buffer] = ()) -> int:
    """Return the descriptor of an anonymous file of fixed size. With `content` the content is fixed, too."""
    fd = os.memfd_create("ledger-producer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        for buffer in content:
            view = memoryview(buffer).cast("B")
            while len(view):
                view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | (fcntl.F_SEAL_WRITE if content else 0))
    except BaseException:
        os.close(fd)
        raise
    return fd


def map_sealed(fd: int) -> memoryview:
    """Map a sealed file for reading. Its producer may write to the file at any time."""
    size = os.fstat(fd).st_size
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0:
        raise Unsupported(f"a file of {size} bytes that can shrink was passed as a producer's memory")
    return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ)) if size else memoryview(b"")


def entry_file(fd: int) -> memoryview:
    """Return the entry in a sealed file: a mapping if the file is sealed against writing, else a copy."""
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _UNCHANGING != _UNCHANGING:
        return memoryview(map_sealed(fd).tobytes())
    size = os.fstat(fd).st_size
    # Private: kernels before 6.7 refuse a shared mapping of a file that is sealed against writing.
    return memoryview(mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)) if size else memoryview(b"")


_CREDENTIALS = struct.Struct("3i")


def is_same_user(peer: socket.socket) -> bool:
    """Return whether the peer of a local socket has exactly this user's rights."""
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    return bool(user == os.geteuid())


def entry_batch(entries: Sequence[Buffer]) -> pa.RecordBatch:
    """Return a batch of entries. A single entry is referenced; several entries are copied into one buffer."""
    sizes = [memoryview(entry).nbytes for entry in entries]
    data = pa.py_buffer(entries[0]) if len(entries) == 1 else pa.py_buffer(b"".join(map(memoryview, entries)))
    offsets = np.zeros(len(entries) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    column = pa.Array.from_buffers(pa.binary(), len(entries), [None, pa.py_buffer(offsets), data])
    return pa.RecordBatch.from_arrays([column], schema=ENTRY_SCHEMA)
