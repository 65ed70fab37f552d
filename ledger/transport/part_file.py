"""Writer of a staged part: a file with the rows of one Spark task for one ledger, which no reader sees.

A client on the broker's host writes the file itself. For a client on another host the broker writes it.
`ledger.log.staging` defines the layout of the file and reads it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.checksum import Buffer, crc32c
from pyspark_ledger.ledger.protocol.commits import StagedPart, StagingPlace

FRAME = struct.Struct(">Iq")


class PartFile:
    """Writer of one part. Each entry is written as a frame: its length, its number in the part, its bytes."""

    def __init__(self, place: StagingPlace) -> None:
        self._place = place
        self._fd = disk.open_file(Path(place.path), writable=True)
        self._entries = self._rows = self._length = self._crc = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()

    def rest(self) -> None:
        """Close the file to free its descriptor. The next write opens the file again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def write(self, entry: Sequence[Buffer], rows: int) -> None:
        """Write one entry with `rows` rows. `entry` has the bytes of the entry as a list of buffers."""
        if self._fd < 0:
            self._fd = disk.open_file(Path(self._place.path), writable=True)
        size = sum(memoryview(buffer).nbytes for buffer in entry)
        frame = [FRAME.pack(size, self._entries), *entry]
        disk.write_all(self._fd, frame, self._length, Path(self._place.path))
        for buffer in frame:
            self._crc = crc32c(buffer, self._crc)
        self._entries += 1
        self._rows += rows
        self._length += FRAME.size + size

    def close(self) -> StagedPart:
        """Close the file. Return the description of the part, which the task sends in its commit message."""
        self.rest()
        return StagedPart(self._place.part, self._entries, self._rows, self._length, self._crc)


def frame_header(length: int, ordinal: int) -> bytes:
    """Return the 12 bytes before an entry of a part."""
    return FRAME.pack(length, ordinal)
