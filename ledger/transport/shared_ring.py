"""Memory that a producer shares with the broker of its host, so that entries need not be sent through a socket.

    entry entry …  free …  (wraps round; an entry never does)
    0                                                    size

The producer owns an anonymous file (memfd) and passes its descriptor to the broker, which maps it for reading. An entry
stays as it is from the moment that its place is sent until it is acknowledged.

A producer that breaks this rule changes what the broker has checked and not written yet. An entry of up to
`COPIED_BYTES_MAX` bytes is therefore copied before its check, which costs less than 3 % of an append. The copy of a
larger one would cost up to 10 %: such an entry is written from shared memory. An entry in a file of its own is sealed
against writing, or copied.

Invariants
- The file can never shrink: it is sealed, and the broker maps no other. A mapping of a file that was cut kills its
  process.
- Places are given back in the order in which they were taken, and every entry has one of its own.
- With twice as much room as a producer may have in flight, every entry within that limit finds a place: when neither
  end of the ring has room for it, what is in flight and the entry exceed half the ring together. In a smaller ring an
  entry waits until others are settled; in an empty one there is always room.
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
    """The producer's end. Not thread-safe: the producer's lock guards it."""

    def __init__(self, size: int) -> None:
        self.fd = sealed_file(size)
        self._map = mmap.mmap(self.fd, size)
        self._memory = memoryview(self._map)
        self.size = size
        self._head = 0
        self._live: deque[tuple[int, int]] = deque()

    def has_room(self, length: int) -> bool:
        """Whether `write` would take an entry of this length."""
        return self._room(max(length, 1)) >= 0

    def write(self, buffers: Sequence[Buffer], length: int) -> int:
        """Copy an entry of `length` bytes into the ring; returns its offset, or -1 when there is no room."""
        start = at = self._room(max(length, 1))
        if start < 0:
            return start
        for buffer in buffers:
            view = buffer if isinstance(buffer, bytes) else memoryview(buffer).cast("B")
            self._memory[at : at + len(view)] = view
            at += len(view)
        at = max(at, start + 1)  # an entry without a byte has a place, too
        self._live.append((start, at))
        self._head = at
        return start

    def release(self) -> None:
        """The oldest entry is settled; its place is free."""
        self._live.popleft()
        if not self._live:
            self._head = 0  # what is used seldom stays within few pages

    def free(self) -> None:
        """Let go of the memory, too: nothing is written any more. May be repeated."""
        self.close()
        self._memory.release()
        self._map.close()

    def close(self) -> None:
        """Let go of the file; the memory lives for as long as anybody has a view of it."""
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
    """The broker's end."""

    def __init__(self, fd: int) -> None:
        """Map what a producer passed; raises OSError, or Unsupported for a file that could shrink."""
        self._memory = map_sealed(fd)

    def entries(self, places: bytes) -> list[memoryview]:
        """The entries at places that a producer sent; raises Refused for one outside the ring."""
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
    """An anonymous file that keeps its size for ever, and its content, if that is given."""
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
    """All of such a file, for reading. Its producer may write to it at any time."""
    size = os.fstat(fd).st_size
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0:
        raise Unsupported(f"a file of {size} bytes that can shrink was passed as a producer's memory")
    return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ)) if size else memoryview(b"")


def entry_file(fd: int) -> memoryview:
    """The entry that such a file holds: the file's own memory if nobody can write to it any more, else a copy."""
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _UNCHANGING != _UNCHANGING:
        return memoryview(map_sealed(fd).tobytes())
    size = os.fstat(fd).st_size
    # Private: a kernel before 6.7 maps no file shared that is sealed against writing.
    return memoryview(mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)) if size else memoryview(b"")


_CREDENTIALS = struct.Struct("3i")


def is_same_user(peer: socket.socket) -> bool:
    """Whether the process at the other end of a local socket has this user's rights, no more and no less."""
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    return bool(user == os.geteuid())


def entry_batch(entries: Sequence[Buffer]) -> pa.RecordBatch:
    """A batch of entries; a single one is referenced, several are joined."""
    sizes = [memoryview(entry).nbytes for entry in entries]
    data = pa.py_buffer(entries[0]) if len(entries) == 1 else pa.py_buffer(b"".join(map(memoryview, entries)))
    offsets = np.zeros(len(entries) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    column = pa.Array.from_buffers(pa.binary(), len(entries), [None, pa.py_buffer(offsets), data])
    return pa.RecordBatch.from_arrays([column], schema=ENTRY_SCHEMA)
