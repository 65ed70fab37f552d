"""Ring buffer in shared memory, through which a producer passes entries to the broker on its host.

The local socket then carries only the offset and the length of each entry.

    entry entry …  free …  (after the last byte comes the first; each entry is contiguous)
    0                                                    size

The producer creates an anonymous file (memfd) and passes its descriptor to the broker, which maps the file for reading.
The producer must not change an entry after it has sent the offset, until the broker acknowledges the entry.

A faulty producer could change bytes after the broker has checked their checksum and before the broker writes them. The
broker therefore copies an entry of up to `COPIED_BYTES_MAX` bytes before the check. This copy costs less than 3 % of an
append. The copy of a larger entry would cost up to 10 %, so the broker writes such an entry from shared memory. A
producer can also send an entry in a separate file. The broker copies that entry unless the kernel forbids writes to the
file (F_SEAL_WRITE).

Invariants
- The file can never shrink, because the kernel forbids it (F_SEAL_SHRINK). The broker maps no file without this seal.
  Reason: access to a mapping of a truncated file kills the process.
- Space is released in the order of allocation. No two entries share space.
- A ring of twice a producer's in-flight limit always has room for the entries within this limit. Proof: the ring has at
  most two free parts. Suppose that a new entry of n bytes fits into neither. Then less than 2n bytes are free. So the
  bytes in flight and the new entry exceed both n and size - n bytes. The larger of these two numbers is at least half
  the ring, which is the limit.
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
    """Producer's end of the ring. Callers must have the producer's lock."""

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
        at = max(at, start + 1)  # an empty entry also needs an offset of its own
        self._live.append((start, at))
        self._head = at
        return start

    def release(self) -> None:
        """Release the space of the oldest entry. Called when the entry was acknowledged or has failed."""
        self._live.popleft()
        if not self._live:
            self._head = 0  # the next entry starts at 0 again, so that an often empty ring uses few pages

    def free(self) -> None:
        """Release the file and the memory. Called after the last write. A repeated call does nothing."""
        self.close()
        self._memory.release()
        self._map.close()

    def close(self) -> None:
        """Close the file. The memory stays mapped."""
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
            raise Refused(f"a packet of {len(places)} bytes is no sequence of pairs of offset and length (16 bytes)")
        memory, size = self._memory, len(self._memory)
        entries = []
        for start, length in _PLACE.iter_unpack(places):
            if not 0 <= start <= start + length <= size:
                raise Refused(f"an entry of {length} bytes at offset {start} is outside a ring of {size} bytes")
            entry = memory[start : start + length]
            entries.append(memoryview(entry.tobytes()) if length <= COPIED_BYTES_MAX else entry)
        return entries


def pack_places(places: Sequence[tuple[int, int]]) -> bytes:
    return b"".join([_PLACE.pack(start, length) for start, length in places])


def sealed_file(size: int, content: Sequence[Buffer] = ()) -> int:
    """Return the descriptor of an anonymous file whose size cannot change. With `content` nobody can write to it."""
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
    """Map a file read-only. The file must not be able to shrink. The producer can still write to the file.

    Raises Unsupported if the file can shrink.
    """
    size = os.fstat(fd).st_size
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0:
        raise Unsupported(f"a file of {size} bytes that can shrink was passed as a producer's memory")
    return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ)) if size else memoryview(b"")


def entry_file(fd: int) -> memoryview:
    """Return the entry in a file that cannot shrink.

    If the kernel forbids writes to the file, the result is a mapping, otherwise a copy.
    """
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _UNCHANGING != _UNCHANGING:
        return memoryview(map_sealed(fd).tobytes())
    size = os.fstat(fd).st_size
    # MAP_PRIVATE, because kernels before 6.7 refuse a shared mapping of a file with F_SEAL_WRITE.
    return memoryview(mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)) if size else memoryview(b"")


_CREDENTIALS = struct.Struct("3i")


def is_same_user(peer: socket.socket) -> bool:
    """Return whether the peer of a local socket is a process of this process's user."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    return bool(user == os.geteuid())


def entry_batch(entries: Sequence[Buffer]) -> pa.RecordBatch:
    """Return a batch of entries. Several entries are copied into one buffer. A single entry is not copied."""
    sizes = [memoryview(entry).nbytes for entry in entries]
    data = pa.py_buffer(entries[0]) if len(entries) == 1 else pa.py_buffer(b"".join(map(memoryview, entries)))
    offsets = np.zeros(len(entries) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    column = pa.Array.from_buffers(pa.binary(), len(entries), [None, pa.py_buffer(offsets), data])
    return pa.RecordBatch.from_arrays([column], schema=ENTRY_SCHEMA)
