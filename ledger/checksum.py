"""CRC32C of any buffer, without a copy of its bytes.

`google_crc32c` refuses `memoryview` and `bytearray`. It accepts a NumPy array over the same bytes, so the functions
here pass such an array.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa


Buffer: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"


def crc32c(buffer: Buffer, start: int = 0) -> int:
    """Return the CRC32C of a buffer.

    If `start` is the CRC32C of earlier bytes, the result is the CRC32C of the earlier bytes and the buffer together.
    """
    if isinstance(buffer, bytes):
        return int(google_crc32c.extend(start, buffer))
    return int(google_crc32c.extend(start, np.frombuffer(buffer, dtype=np.uint8)))


def crc32c_of_ranges(data: npt.NDArray[np.uint8], starts: Iterable[int], ends: Iterable[int]) -> Iterator[int]:
    """Yield the CRC32C of each range `[start, end)` of one buffer."""
    extend = google_crc32c.extend
    return (extend(0, data[start:end]) for start, end in zip(starts, ends, strict=True))
