"""Stream over buffers in memory, as the body of a request of boto3. Large bodies are not copied.

Rule: `read` returns up to `READ_BYTES` at once, also if the caller asks for less. Reason: urllib3 asks for 16 KiB at a
time. Reads of this size would take more processor time in Python than the request itself.
"""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from pyspark_ledger.ledger.checksum import Buffer

READ_BYTES = 1024 * 1024
# A smaller body is joined to one `bytes`. Reason: boto3 waits for the server's permission before it sends a stream.
_JOINED_BYTES = 64 * 1024


class BufferStream(io.RawIOBase):
    """Stream over the bytes of `buffers`, one buffer after another."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        super().__init__()
        self._views = [memoryview(buffer).cast("B") for buffer in buffers if memoryview(buffer)]
        self._ends = list(accumulate(len(view) for view in self._views))
        self._size = self._ends[-1] if self._ends else 0
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True  # boto3 rewinds a body before it sends the body again

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = min(max(start + offset, 0), self._size)
        return self._position

    def read(self, size: int | None = -1) -> bytes | memoryview:
        if size is None or size < 0:
            return b"".join(iter(self._next, b""))
        return self._next() if size else b""

    def _next(self) -> bytes | memoryview:
        """Return the next bytes of one buffer, or empty bytes at the end."""
        at = bisect_right(self._ends, self._position)
        if at == len(self._views):
            return b""
        view = self._views[at]
        start = self._position - self._ends[at] + len(view)
        piece = view[start : start + READ_BYTES]
        self._position += len(piece)
        return piece


def body_of(data: bytes | Sequence[Buffer]) -> bytes | BufferStream:
    """Return the body of a request: bytes if it is small, otherwise a stream."""
    if isinstance(data, bytes):
        return data
    stream = BufferStream(data)
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return bytes(stream.read()) if size < _JOINED_BYTES else stream
