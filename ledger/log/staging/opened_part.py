"""Staged part, the file that one Spark task wrote for one ledger: its entries, after a check of the file.

A *frame* is an entry with its length and number. A part consists of frames only, or has the layout of a segment file
(`ledger.transport.part_writer`). In segment layout each entry has space before it for its *stamp*: the time at which
the broker stores the entry, and its row number. A *wide* stamp uses eight bytes for each of the two numbers. Before the
commit, these numbers have no meaning and are not checked. The last entry is the *marker*, which ends the run of the
batch.

    blocks …   frame (length, number) | wide stamp | entry      frame | wide stamp | marker

Rules
- Every byte outside of stamps and entries is checked: block headers, frame headers, padding.
- The first bytes of each entry contain a checksum of the rest of the entry, which the commit verifies. The part's
  checksum covers the frame headers and these first bytes.
- The entries are views of the mapped file.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark_ledger.ledger.checksum import crc32c
from pyspark_ledger.ledger.errors import Corrupt, NotFound
from pyspark_ledger.ledger.message.entry import STAMP_MAGIC, WIDE_STAMP_BYTES
from pyspark_ledger.ledger.protocol.commits import StagedPart
from pyspark_ledger.ledger.segment.format import HEADER_BYTES, parse_header, require_block_bytes
from pyspark_ledger.ledger.segment.reader import walk_segment
from pyspark_ledger.ledger.transport.part_writer import FRAME, NO_STAMP, entry_head

_STAMP_HEAD = len(STAMP_MAGIC) + 4


@dataclass(frozen=True, slots=True)
class OpenedPart:
    """Part with its entries, in order.

    In segment layout, `offsets` has the offset of each frame in the file, also of the marker's frame.
    """

    part: StagedPart
    path: Path
    entries: Sequence[memoryview]
    offsets: Sequence[int] = ()
    marker: memoryview | None = None
    promotable: bool = False
    """Whether the part can become a segment. This happens only if all parts of its run can."""


def open_part(part: StagedPart, path: Path) -> OpenedPart:
    """Map a part and verify its length, checksum and frames.

    Raises Corrupt if they differ from `part`, and NotFound if the file was deleted.
    """
    view = _mapped(path, part)
    opened = _of_segment(view, path, part) if part.block_bytes else _of_frames(view, path, part)
    if len(opened.entries) != part.entries:
        raise Corrupt(f"staged part {path} has {len(opened.entries)} entries, its writer reported {part.entries}")
    return opened


def _of_frames(view: memoryview, path: Path, part: StagedPart) -> OpenedPart:
    _require_sum(crc32c(view), path, part)
    return OpenedPart(part, path, list(_entries(view, path)))


def _of_segment(view: memoryview, path: Path, part: StagedPart) -> OpenedPart:
    where = f"staged part {path}"
    require_block_bytes(part.block_bytes)
    for start in range(0, len(view), part.block_bytes):
        header = parse_header(view[start : start + HEADER_BYTES], f"{where} at {start}")
        expected = min(part.block_bytes, len(view) - start)
        if header.block_bytes != expected:
            raise Corrupt(f"{where} at {start}: block states {header.block_bytes} bytes, expected {expected}")
    offsets: list[int] = []
    entries: list[memoryview] = []
    for _, offset, stamped in walk_segment(view, 0, where=where):
        if stamped[:_STAMP_HEAD] != NO_STAMP[:_STAMP_HEAD] or len(stamped) <= WIDE_STAMP_BYTES:
            raise Corrupt(f"{where} at {offset}: entry begins with {bytes(stamped[:6]).hex()}, expected a wide stamp")
        offsets.append(offset)
        entries.append(stamped[WIDE_STAMP_BYTES:])
    if not entries:
        raise Corrupt(f"{where} has no marker")
    marker, found = entries.pop(), 0
    for number, entry in enumerate(entries):
        found = crc32c(FRAME.pack(len(entry), number) + entry_head([entry]), found)
    _require_sum(found, path, part)
    return OpenedPart(part, path, entries, offsets, marker)


def _require_sum(found: int, path: Path, part: StagedPart) -> None:
    if found != part.crc32c:
        raise Corrupt(f"staged part {path} has CRC32C {found:#010x}, its writer reported {part.crc32c:#010x}")


def _mapped(path: Path, part: StagedPart) -> memoryview:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(
            f"staged part {part.part} with {part.entries} entries is missing in {path.parent}",
            hint="A later batch or stagingRetentionSeconds deleted it. Run the batch again",
        ) from None
    try:
        length = os.fstat(fd).st_size
        if length != part.length:
            raise Corrupt(f"staged part {path} has {length} bytes, its writer reported {part.length}")
        return memoryview(mmap.mmap(fd, length, prot=mmap.PROT_READ)) if length else memoryview(b"")
    finally:
        os.close(fd)


def _entries(view: memoryview, path: Path) -> Iterator[memoryview]:
    offset, ordinal, end = 0, 0, len(view)
    while offset < end:
        if end - offset < FRAME.size:
            raise Corrupt(f"staged part {path} ends inside a frame header at {offset} of {end} bytes")
        length, number = FRAME.unpack_from(view, offset)
        offset += FRAME.size
        if number != ordinal or length > end - offset:
            raise Corrupt(
                f"staged part {path} has frame {number} of {length} bytes at {offset}, "
                f"expected frame {ordinal} of at most {end - offset} bytes"
            )
        yield view[offset : offset + length]
        offset += length
        ordinal += 1
