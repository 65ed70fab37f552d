"""Memory that a producer shares with the broker of its host, so that entries are not sent through a socket.

    [magic 8  nonce 16  …]  entry entry …  free …  (wraps round; an entry never does)
     0                      64                                              size

The producer owns an anonymous file (memfd) and names it by process and descriptor; the broker opens it through /proc,
which only the same user on the same host can do, and compares the nonce. An entry stays as it is from the moment that
its place is sent until it is acknowledged.

Invariants
- The file can never shrink: it is sealed, and the broker maps no other. A mapping of a file that was cut kills its
  process.
- Places are given back in the order in which they were taken.
- With twice as much room as a producer may have in flight, every entry within that limit finds a place: when neither
  end of the ring has room for it, what is in flight and the entry exceed half the ring together.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
from collections import deque
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ledger.entry import Buffer
from ledger.errors import Refused, Unsupported
from ledger.protocol import RingPlace

_MAGIC = b"ledgring"
_NONCE_BYTES = 16
_HEAD_BYTES = 64
_PLACE = np.dtype("<i8")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class RingWriter:
    """The producer's end. Not thread-safe: the producer's lock guards it."""

    def __init__(self, capacity: int) -> None:
        size = _HEAD_BYTES + capacity
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._fd = os.memfd_create("ledger-producer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, size)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
            self._memory = memoryview(mmap.mmap(self._fd, size))
        except BaseException:
            os.close(self._fd)
            raise
        self._memory[: len(_MAGIC) + _NONCE_BYTES] = _MAGIC + self._nonce
        self._size = size
        self._head = _HEAD_BYTES
        self._live: deque[tuple[int, int]] = deque()

    def place(self) -> RingPlace:
        """Where the broker finds it."""
        return RingPlace(os.getpid(), self._fd, self._size, self._nonce.hex())

    def write(self, buffers: Sequence[Buffer], length: int) -> int:
        """Copy an entry of `length` bytes into the ring; returns its offset, or -1 when there is no room."""
        start = at = self._room(max(length, 1))
        if start < 0:
            return start
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            self._memory[at : at + len(view)] = view
            at += len(view)
        at = max(at, start + 1)  # an entry without a byte has a place of its own, too
        self._live.append((start, at))
        self._head = at
        return start

    def view(self, offset: int, length: int) -> memoryview:
        """An entry in the ring."""
        return self._memory[offset : offset + length]

    def release(self) -> None:
        """The oldest entry is settled; its place is free."""
        self._live.popleft()
        if not self._live:
            self._head = _HEAD_BYTES  # what is used seldom stays within few pages

    def close(self) -> None:
        """Let go of the file; the memory lives for as long as anybody has a view of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _room(self, length: int) -> int:
        tail = self._live[0][0] if self._live else self._size
        if self._live and tail < self._head:
            if length <= self._size - self._head:
                return self._head
            return _HEAD_BYTES if length <= tail - _HEAD_BYTES else -1
        return self._head if length <= tail - self._head else -1


class RingReader:
    """The broker's end."""

    def __init__(self, place: RingPlace) -> None:
        """Map a producer's ring; raises OSError, or Unsupported, when this process cannot or should not."""
        fd = os.open(f"/proc/{place.pid}/fd/{place.fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0:
                raise Unsupported(f"descriptor {place.fd} of process {place.pid} can shrink")
            if os.fstat(fd).st_size != place.size or place.size < _HEAD_BYTES:
                raise Unsupported(f"descriptor {place.fd} of process {place.pid} is no ring of {place.size} bytes")
            self._memory = pa.py_buffer(mmap.mmap(fd, place.size, prot=mmap.PROT_READ))
        finally:
            os.close(fd)
        head = self._memory.slice(0, len(_MAGIC) + _NONCE_BYTES).to_pybytes()
        if head != _MAGIC + bytes.fromhex(place.nonce):
            raise Unsupported(f"descriptor {place.fd} of process {place.pid} is not the ring that was promised")

    def entries(self, places: pa.Buffer) -> list[pa.Buffer]:
        """The entries at places that a producer sent; raises Refused for one outside the ring."""
        numbers = np.frombuffer(places, dtype=np.uint8)
        if numbers.size % (2 * _PLACE.itemsize):
            raise Refused(f"{numbers.size} bytes of places are no pairs of offset and length")
        pairs = numbers.view(_PLACE).reshape(-1, 2)
        starts, lengths = pairs[:, 0], pairs[:, 1]
        size = self._memory.size
        wrong = (starts < _HEAD_BYTES) | (lengths < 0) | (lengths > size) | (starts > size - lengths)
        if wrong.any():
            start, length = pairs[int(np.argmax(wrong))].tolist()
            raise Refused(f"an entry of {length} bytes at {start} lies outside a ring of {size} bytes")
        return [self._memory.slice(start, length) for start, length in pairs.tolist()]


def pack_places(places: Sequence[tuple[int, int]]) -> pa.Buffer:
    """Offsets and lengths as they are sent."""
    return pa.py_buffer(np.array(places, dtype=_PLACE))
