"""Writer of a staged part: a file with the rows of one Spark task for one ledger, which no reader sees.

A *run* is the entries of one committed batch. Its last entry, the *marker*, has no rows. A *frame* is an entry with its
length and its number in the file. A *stamp* before an entry has the time and the row number that the broker gives it.

A client on the broker's host writes the file itself. For a client on another host the broker writes it. A part has one
of two layouts:

    frames     length u32, ordinal i64, entry; one after another (`ledger.log.staging`)
    segment    the blocks of a segment file (`ledger.segment.format`), so that the part can become a segment

In segment layout each entry has a *wide* stamp before it, a stamp of fixed length. The task writes zeros there, and the
broker overwrites them at the commit. No other bytes change after the task has closed the file. The marker is the last
entry.

Rules
- The checksum of a part in segment layout covers the frame header, the magic number and the checksum of each entry. It
  does not cover the entries' other bytes, which the entries' own checksums protect. So the task does not read these
  bytes a second time.
- The task syncs a large part in segment layout when it closes the part. So the syncs of a batch run in parallel.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.checksum import Buffer, crc32c
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.entry import BrokerStamp, wide_stamp
from pyspark_ledger.ledger.protocol.commits import PartRun, StagedPart, StagingPlace
from pyspark_ledger.ledger.transport.segment_layout import SegmentLayout, marker_of

FRAME = struct.Struct(">Iq")
HEAD_BYTES = 6
"""Magic number and checksum at the start of an entry."""
PART_NAME = re.compile(r"[0-9a-f]{32}/\d{1,19}/[0-9a-f-]{36}\.part")
"""Form of a part's name, its path below the folder `staging`."""
NO_STAMP = wide_stamp(BrokerStamp(0, 1))
_WRITE_BACK_BYTES = 8 * 1024 * 1024


class PartFile:
    """Writer of one part. With a `run`, the part has segment layout, if the broker wants it."""

    def __init__(self, place: StagingPlace, run: PartRun | None = None) -> None:
        self._place = place
        self._path = Path(place.path)
        self._fd = -1
        if os.fstat(self._opened()).st_size:
            self.rest()
            raise Refused(f"the staged part {self._path} is not empty", hint="A part is written once, by one task")
        self._entries = self._rows = self._length = self._crc = 0
        self._written_back = 0
        self._run = run if place.segment_from >= 0 else None
        self._layout = None if self._run is None else SegmentLayout(self._run.block_bytes, NO_STAMP, str(self._path))

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
        size = sum(memoryview(buffer).nbytes for buffer in entry)
        header = FRAME.pack(size, self._entries)
        if self._layout is None:
            for buffer in (header, *entry):
                self._crc = crc32c(buffer, self._crc)
            self._append([header, *entry], FRAME.size + size)
        else:
            self._crc = crc32c(header + entry_head(entry), self._crc)
            self._append_stamped(self._layout, entry, size)
        self._entries += 1
        self._rows += rows

    def close(self) -> StagedPart:
        """Close the file. Return the description of the part, which the task sends in its commit message."""
        if self._run is not None and self._layout is not None and self._entries:
            self._close_segment(self._run, self._layout)
        self.rest()
        block_bytes = self._run.block_bytes if self._run is not None and self._entries else 0
        return StagedPart(self._place.part, self._entries, self._rows, self._length, self._crc, block_bytes)

    def _append(self, buffers: Sequence[Buffer], size: int) -> None:
        disk.write_all(self._opened(), buffers, self._length, self._path, size)
        self._length += size

    def _append_stamped(self, layout: SegmentLayout, entry: Sequence[Buffer], size: int) -> None:
        """Write an entry in segment layout."""
        buffers = layout.add(entry, size)
        self._append(buffers, layout.length - self._length)
        self._write_back()

    def _write_back(self) -> None:
        """Start the write-back of a part that will be synced, so that the device works while the task writes."""
        if self._length >= self._place.segment_from and self._length - self._written_back >= _WRITE_BACK_BYTES:
            disk.begin_sync(self._opened(), self._written_back, self._length - self._written_back)
            self._written_back = self._length

    def _close_segment(self, run: PartRun, layout: SegmentLayout) -> None:
        """Write the marker and the length of the last block. Sync the file if it can become a segment."""
        marker = marker_of(run, self._entries, self._rows)
        self._append_stamped(layout, [marker], len(marker))
        disk.write_all(self._opened(), [layout.last_header()], layout.block_start, self._path)
        if self._length >= self._place.segment_from:
            disk.sync_data(self._opened())

    def _opened(self) -> int:
        if self._fd < 0:
            self._fd = disk.open_below(self._path, len(Path(self._place.part).parts))
        return self._fd


def frame_header(length: int, ordinal: int) -> bytes:
    """Return the 12 bytes before an entry of a part."""
    return FRAME.pack(length, ordinal)


def entry_head(entry: Sequence[Buffer]) -> bytes:
    """Return the magic number and the checksum of an entry, from its first buffer."""
    return bytes(memoryview(entry[0])[:HEAD_BYTES])
