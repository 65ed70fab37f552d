"""Reader of segments: finds entries in files, and reads entries from bytes that were mapped, received or fetched.

A *frame* is an entry with its length and id. A *block* is a part of the file with whole entries. A *data object* is the
copy of a segment in object storage.

Rules
- A `SegmentBlock` is a series of whole frames inside one block of the file, without header and padding. All its entries
  are acknowledged, because the index has no other entries.
- `iter_frames` and `frame_table` check that frames with consecutive ids fill the buffer exactly. The reader of an entry
  verifies the entry's checksum.
- `walk_segment` reads a whole object, written by this project or by Pulsar. It compares every byte outside of entries:
  headers, ids and padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.segment.format import (
    FRAME,
    FRAME_BYTES,
    HEADER_BYTES,
    PADDING,
    find_wrong_padding,
    parse_header,
)
from pyspark_ledger.ledger.segment.index import EntryIndex, Integers

_NEGATIVE = 0x80000000


class StoredObject(NamedTuple):
    """Data object of a segment: its key, the address of its bucket, and the options of S3 access except credentials."""

    address: str
    key: str
    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None
    bucket_owner: str = ""


class FrameSource(Protocol):
    """Object storage as a source of a block's frames, besides the local file."""

    @property
    def stored(self) -> StoredObject | None:
        """The data object, whose bytes are the bytes of the segment; None if only the broker can read it."""

    @property
    def mappable(self) -> bool:
        """Whether readers map the local file: it exists, and object storage is not preferred."""

    def read_with(
        self, local: Callable[[], pa.Buffer], first_entry: int, entries: int, *, alone: bool = False
    ) -> pa.Buffer:
        """Return the frames of these entries from this source, or from `local`, which maps the file.

        With `alone`, no other entries are fetched in advance.
        """


@dataclass(frozen=True, slots=True)
class SegmentBlock:
    """Series of `entries` whole frames from entry `first_entry` on: bytes `[offset, offset + length)` of `path`."""

    ledger_id: int
    first_entry: int
    entries: int
    path: Path
    offset: int
    length: int
    source: FrameSource | None = None
    """Set for a segment in object storage. There, the same frames may have another total length than in the file."""


class WalkedFrame(NamedTuple):
    """Entry of an object, with the offset of its frame header."""

    entry_id: int
    offset: int
    entry: memoryview


def blocks(index: EntryIndex, path: Path, ledger_id: int, first: int, end: int, max_bytes: int) -> list[SegmentBlock]:
    """Return the blocks of the entries `[first, end)`, in order. A block has at most `max_bytes`, or one entry."""
    if not 0 <= first <= end <= index.count:
        raise Refused(f"{path}: entries [{first}, {end}) were requested, the segment has [0, {index.count})")
    if first < end:
        # A fast path for the usual case with many ledgers: the range is one small block.
        offset, stop = int(index.offsets[first]), index.end_offset(end - 1)
        packed = end - first == 1 or stop - offset == int(index.lengths[first:end].sum()) + (end - first) * FRAME_BYTES
        if packed and stop - offset <= max_bytes:
            return [SegmentBlock(ledger_id, first, end - first, path, offset, stop - offset)]
    starts = index.offsets[first:end]
    ends = starts + index.lengths[first:end] + FRAME_BYTES
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    found: list[SegmentBlock] = []
    at = 0
    for stop in (*breaks.tolist(), end - first):
        while at < stop:
            offset = int(starts[at])
            cut = int(np.searchsorted(ends[at:stop], offset + max_bytes, side="right")) + at
            cut = max(cut, at + 1)
            length = int(ends[cut - 1]) - offset
            found.append(SegmentBlock(ledger_id, first + at, cut - at, path, offset, length))
            at = cut
    return found


def iter_frames(buffer: Buffer, ledger_id: int, first_entry: int, entries: int) -> Iterator[tuple[int, memoryview]]:
    """Yield the entries of a block as `(entry id, view)`. Raises Corrupt unless they fill the block exactly."""
    view = memoryview(buffer)
    unpack, size, offset = FRAME.unpack_from, len(view), 0
    for number in range(first_entry, first_entry + entries):
        start = offset + FRAME_BYTES
        if start > size:
            raise Corrupt(_short(ledger_id, number, offset, size))
        length, entry_id = unpack(view, offset)
        offset = start + length
        if entry_id != number or offset > size:
            raise Corrupt(_unfit(ledger_id, number, entry_id, length, start, size))
        yield number, view[start:offset]
    if offset != size:
        raise Corrupt(f"block {ledger_id}:{first_entry}: {entries} entries end at byte {offset} of {size}")


def frame_table(buffer: Buffer, ledger_id: int, first_entry: int, entries: int) -> tuple[Integers, Integers]:
    """Return offsets and lengths of the entries in a block, with the checks of `iter_frames`.

    If all entries have the same length, they are checked without a loop in Python.
    """
    view = memoryview(buffer)
    if entries and len(view) % entries == 0:
        table = _uniform_table(view, first_entry, entries)
        if table is not None:
            return table
    # Without `count`, `fromiter` reads the generator to its end. There the generator checks the end of the block.
    lengths = np.fromiter(
        (len(entry) for _, entry in iter_frames(view, ledger_id, first_entry, entries)), dtype=np.int64
    )
    return np.cumsum(lengths + FRAME_BYTES) - lengths, lengths


def walk_segment(buffer: Buffer, ledger_id: int, *, where: str, entries: int | None = None) -> Iterator[WalkedFrame]:
    """Yield every entry of a whole data object, written by this project or by Pulsar.

    `entries` is the number of entries in the metadata. Raises Corrupt if the object has more or fewer, because an
    offload by Pulsar can stop without an error. Raises Unsupported for version 2 of Pulsar's format.

    A damaged length may include some padding in the last entry of a block. Only the entry's checksum reveals this. The
    reader of the entry verifies the checksum.
    """
    view = memoryview(buffer)
    offset = number = 0
    while offset < len(view):
        header = parse_header(view[offset : offset + HEADER_BYTES], f"{where} at {offset}")
        if header.first_entry != number:
            raise Corrupt(f"{where} at {offset}: block states first entry {header.first_entry}, expected {number}")
        end = offset + header.block_bytes
        if end > len(view):
            raise Corrupt(
                f"{where} at {offset}: block states {header.block_bytes} bytes, {len(view) - offset} are left"
            )
        for frame in walk_block(view, offset + HEADER_BYTES, end, number, where):
            yield frame
            number += 1
        offset = end
    if entries is not None and number != entries:
        raise Corrupt(f"{where}: segment {ledger_id} ends with entry {number - 1}, the metadata state {entries - 1}")


def walk_block(view: memoryview, offset: int, end: int, number: int, where: str) -> Iterator[WalkedFrame]:
    """Yield the frames of one block, and check the padding after them. The first frame starts at `offset`."""
    while end - offset >= FRAME_BYTES:
        length, entry_id = FRAME.unpack_from(view, offset)
        if length >= _NEGATIVE:
            break
        start = offset + FRAME_BYTES
        if entry_id != number or not 0 < length <= end - start:
            raise Corrupt(
                f"{where} at {offset}: frame of entry {entry_id} with {length} bytes, "
                f"expected entry {number} with 1 to {end - start} bytes"
            )
        yield WalkedFrame(number, offset, view[start : start + length])
        offset, number = start + length, number + 1
    if fault := padding_fault(view[offset:end]):
        raise Corrupt(f"{where} at {offset}: {fault}")


def padding_fault(rest: memoryview) -> str:
    """Describe the first wrong byte of a block's padding. Returns an empty text if the padding is right."""
    wrong = find_wrong_padding(rest)
    if wrong < 0:
        return ""
    return f"byte {wrong} of the padding is {rest[wrong]:#04x}, expected {PADDING[wrong % 4]:#04x}"


def _uniform_table(view: memoryview, first_entry: int, entries: int) -> tuple[Integers, Integers] | None:
    """Return offsets and lengths if all entries have the same length, else None."""
    stride = len(view) // entries
    length = stride - FRAME_BYTES
    if length < 0:
        return None
    headers = np.frombuffer(view, dtype=np.uint8).reshape(entries, stride)[:, :FRAME_BYTES]
    table = np.ascontiguousarray(headers).view(np.dtype([("length", ">u4"), ("entry", ">i8")]))[:, 0]
    numbers = np.arange(first_entry, first_entry + entries, dtype=np.int64)
    if not ((table["length"] == length).all() and (table["entry"] == numbers).all()):
        return None
    offsets = np.arange(entries, dtype=np.int64) * stride + FRAME_BYTES
    return offsets, np.full(entries, length, dtype=np.int64)


def _short(ledger_id: int, number: int, offset: int, size: int) -> str:
    return f"block of segment {ledger_id}: entry {number} should start at byte {offset}, the block has {size} bytes"


def _unfit(ledger_id: int, number: int, entry_id: int, length: int, start: int, size: int) -> str:
    return (
        f"block of segment {ledger_id}: frame of entry {entry_id} with {length} bytes at "
        f"byte {start - FRAME_BYTES}, expected entry {number} with at most {size - start} bytes"
    )
