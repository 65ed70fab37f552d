"""CRC32C of any buffer, without a copy.

`google_crc32c` takes only objects whose buffer needs no release, which excludes `memoryview` and `bytearray`; an
array over the same bytes passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c
import numpy as np

if TYPE_CHECKING:
    from ledger.entry import Buffer


def crc32c(buffer: Buffer, start: int = 0) -> int:
    """The CRC32C of a buffer, or of one that follows bytes whose CRC32C is `start`."""
    if isinstance(buffer, bytes):
        return int(google_crc32c.extend(start, buffer))
    return int(google_crc32c.extend(start, np.frombuffer(buffer, dtype=np.uint8)))
