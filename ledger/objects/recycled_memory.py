"""Memory for the bytes of large replies. When no view of a piece of memory exists any more, the piece is used again.

Reason: the first write to each new page of memory is a page fault. For a large reply, the page faults take longer than
the copy of its bytes.
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import numpy.typing as npt

_Bytes = npt.NDArray[np.uint8]
_BYTES_MIN = 1024 * 1024


class RecycledMemory:
    """Source of memory. It keeps at most `kept_max` unused pieces. Thread-safe."""

    def __init__(self, kept_max: int) -> None:
        self._free: deque[_Bytes] = deque(maxlen=kept_max)

    def __call__(self, size: int) -> memoryview:
        """Return memory of `size` bytes with any content. Sizes below 1 MiB are not recycled."""
        if size < _BYTES_MIN:
            return memoryview(bytearray(size))
        memory = self._take(size)
        view = memory[:size]
        # A view of the returned memory, also a buffer of Arrow, keeps `view` alive.
        weakref.finalize(view, self._free.append, memory)
        return view.data

    def _take(self, size: int) -> _Bytes:
        try:
            memory = self._free.pop()
        except IndexError:
            return np.empty(size, dtype=np.uint8)
        return memory if len(memory) >= size else np.empty(size, dtype=np.uint8)
