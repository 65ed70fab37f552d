"""Writer of a staged part: the rows of one Spark task for one ledger, which no reader sees before the commit.

    entries ─▶ PartWriter: layout, numbers, checksum ─▶ sink ─┬─ PartFile      file in the store, on the broker's host
                                                              ├─ PartStream    to the broker (`ledger.client`)
                                                              └─ PartUpload    object in the bucket (`offload.direct`)

A *run* is the entries of one committed batch. Its last entry, the *marker*, has no rows. A *frame* is an entry with its
length and its number in the file. A *stamp* before an entry has the time and the row number that the broker gives it.
A part has one of two layouts:

    frames     length u32, ordinal i64, entry; one after another (`ledger.log.staging`)
    segment    the blocks of a segment file (`ledger.segment.format`), so that the part can become a segment

In segment layout each entry has a *wide* stamp before it, a stamp of fixed length. In a file the task writes zeros
there, and the broker overwrites them at the commit. No other bytes change after the end of the part. The marker is the
last entry.

Rules
- The checksum of a part in segment layout covers the frame header, the magic number and the checksum of each entry. It
  does not cover the entries' other bytes, which the entries' own checksums protect. So the task does not read these
  bytes a second time.
- The task syncs a large file in segment layout when it closes the part. So the syncs of a batch run in parallel.
"""

from __future__ import annotations

import os
import re
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, Self

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


class PartCounts(NamedTuple):
    """Numbers of a complete part. `sizes` and `counts` have bytes and rows of each entry, and of the marker."""

    entries: int
    rows: int
    length: int
    crc32c: int
    block_bytes: int
    sizes: array[int]
    counts: array[int]


class PartSink(Protocol):
    """Place of the bytes of one part."""

    def append(self, buffers: Sequence[Buffer], size: int, final: int) -> None:
        """Add the `size` bytes of an entry at the end. From now on, no byte before the offset `final` changes.

        The first buffer has the entry's frame, and, in segment layout, also all bytes between the frames.
        """

    def overwrite(self, offset: int, data: bytes) -> None:
        """Replace bytes that are not final."""

    def rest(self) -> None:
        """Free what the sink needs only during a write, such as a file descriptor."""

    def close(self, counts: PartCounts) -> StagedPart:
        """End the part. Return its description."""

    def abort(self) -> None:
        """Free everything. Does nothing after `close`."""


class PartWriter:
    """Writer of one part. The task sends the result of `close` in its commit message."""

    def __init__(self, sink: PartSink, run: PartRun | None, stamp: bytes, where: str) -> None:
        """With a `run`, the part has segment layout with `stamp` before each entry. `where` names it in errors."""
        self._sink = sink
        self._run = run
        self._layout = None if run is None else SegmentLayout(run.block_bytes, stamp, where)
        self._rows = self._length = self._crc = 0
        self._sizes, self._counts = array("I"), array("I")

    @classmethod
    def to_file(cls, place: StagingPlace, run: PartRun | None = None) -> Self:
        """Return the writer of a file. With a `run`, the file has segment layout, if the broker wants it."""
        run = run if place.segment_from >= 0 else None
        return cls(PartFile(place, place.segment_from if run is not None else -1), run, NO_STAMP, place.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sink.abort()

    def write(self, entry: Sequence[Buffer], rows: int) -> None:
        """Write one entry with `rows` rows. `entry` has its bytes as a list of buffers."""
        size = sum(memoryview(buffer).nbytes for buffer in entry)
        header = FRAME.pack(size, len(self._sizes))
        if self._layout is None:
            for buffer in (header, *entry):
                self._crc = crc32c(buffer, self._crc)
            self._append([header, *entry], FRAME.size + size, self._length)
        else:
            self._crc = crc32c(header + entry_head(entry), self._crc)
            self._append_stamped(self._layout, entry, size)
        self._sizes.append(size)
        self._counts.append(rows)
        self._rows += rows

    def rest(self) -> None:
        """Free the file's descriptor. The next write opens the file again."""
        self._sink.rest()

    def close(self) -> StagedPart:
        """End the part. Return its description."""
        entries, block_bytes = len(self._sizes), 0
        if self._run is not None and self._layout is not None and entries:
            marker = marker_of(self._run, entries, self._rows)
            self._append_stamped(self._layout, [marker], len(marker))
            self._sizes.append(len(marker))
            self._counts.append(0)
            self._sink.overwrite(self._layout.block_start, self._layout.last_header())
            block_bytes = self._run.block_bytes
        numbers = (entries, self._rows, self._length, self._crc, block_bytes)
        return self._sink.close(PartCounts(*numbers, self._sizes, self._counts))

    def abort(self) -> None:
        """Give the part up, after an error. Does nothing after `close`."""
        self._sink.abort()

    def _append(self, buffers: Sequence[Buffer], size: int, final: int) -> None:
        self._sink.append(buffers, size, final)
        self._length += size

    def _append_stamped(self, layout: SegmentLayout, entry: Sequence[Buffer], size: int) -> None:
        """Write an entry in segment layout. The header of the open block changes when the part ends."""
        buffers = layout.add(entry, size)
        self._append(buffers, layout.length - self._length, layout.block_start)


class PartFile:
    """File of a part. `sync_from` is the length from which `close` syncs the file; negative: never."""

    def __init__(self, place: StagingPlace, sync_from: int) -> None:
        self._place = place
        self._path = Path(place.path)
        self._sync_from = sync_from
        self._length = self._written_back = 0
        self._fd = -1
        if os.fstat(self._opened()).st_size:
            self.rest()
            raise Refused(f"the staged part {self._path} is not empty", hint="A part is written once, by one task")

    def append(self, buffers: Sequence[Buffer], size: int, _final: int) -> None:
        disk.write_all(self._opened(), buffers, self._length, self._path, size)
        self._length += size
        # The write-back of a file that will be synced starts early, so that the device works while the task writes.
        if 0 <= self._sync_from <= self._length and self._length - self._written_back >= _WRITE_BACK_BYTES:
            disk.begin_sync(self._opened(), self._written_back, self._length - self._written_back)
            self._written_back = self._length

    def overwrite(self, offset: int, data: bytes) -> None:
        disk.write_all(self._opened(), [data], offset, self._path)

    def rest(self) -> None:
        """Close the file to free its descriptor. The next write opens the file again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self, counts: PartCounts) -> StagedPart:
        if counts.entries and 0 <= self._sync_from <= self._length:
            disk.sync_data(self._opened())
        self.rest()
        return StagedPart(self._place.part, *counts[:5])

    def abort(self) -> None:
        self.rest()

    def _opened(self) -> int:
        if self._fd < 0:
            self._fd = disk.open_below(self._path, len(Path(self._place.part).parts))
        return self._fd


def entry_head(entry: Sequence[Buffer]) -> bytes:
    """Return the magic number and the checksum of an entry, from its first buffer."""
    return bytes(memoryview(entry[0])[:HEAD_BYTES])
