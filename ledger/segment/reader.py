"""Reader of segments: the locations of entries, and the entries of bytes that were mapped, sent or fetched.

Rules
- A `SegmentBlock` is a run of whole frames inside one physical block, without header and padding. It never reaches
  beyond the committed end, because the index does not.
- `iter_frames` and `frame_table` check that lengths and consecutive ids account for every byte of the buffer. The
  reader of an entry verifies its checksum.
- `walk_segment` reads a whole object, of this project or of Pulsar, and compares every byte outside of entries:
  headers with their zeros, ids, padding.
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


class FrameSource(Protocol):
    """Source of a block's frames beside its file."""

    @property
    def mappable(self) -> bool:
        """True if the file exists and is preferred."""

    def read_with(
        self, local: Callable[[], pa.Buffer], first_entry: int, entries: int, *, alone: bool = False
    ) -> pa.Buffer:
        """Return the frames of these entries, from this source or by `local`, which maps the file.

        With `alone` nothing else is fetched.
        """


@dataclass(frozen=True, slots=True)
class SegmentBlock:
    """Run of `entries` whole frames from entry `first_entry` on: the bytes `[offset, offset + length)` of `path`."""

    ledger_id: int
    first_entry: int
    entries: int
    path: Path
    offset: int
    length: int
    source: FrameSource | None = None
    """Of a ledger in object storage. Its frames need not have the length that they have in the file."""


class WalkedFrame(NamedTuple):
    """Entry of an object and the offset of its frame header."""

    entry_id: int
    offset: int
    entry: memoryview


def blocks(index: EntryIndex, path: Path, ledger_id: int, first: int, end: int, max_bytes: int) -> list[SegmentBlock]:
    """Return entries `[first, end)` as blocks of at most `max_bytes`, or one larger entry, in order."""
    if not 0 <= first <= end <= index.count:
        raise Refused(f"{path}: entries [{first}, {end}) were asked for, it holds [0, {index.count})")
    if first < end:
        # Most ranges of a thousand ledgers are one small block each, which needs no five columns.
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
    """Yield the entries of a block as `(entry id, view)`. Raises Corrupt unless they are exactly the block."""
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
    """Return offsets and lengths of the entries in a block, checked as `iter_frames` does.

    Entries of one length, such as records of one shape, need no Python step each.
    """
    view = memoryview(buffer)
    if entries and len(view) % entries == 0:
        table = _uniform_table(view, first_entry, entries)
        if table is not None:
            return table
    # A counter would stop before the generator compares the end.
    lengths = np.fromiter(
        (len(entry) for _, entry in iter_frames(view, ledger_id, first_entry, entries)), dtype=np.int64
    )
    return np.cumsum(lengths + FRAME_BYTES) - lengths, lengths


def walk_segment(buffer: Buffer, ledger_id: int, *, where: str, entries: int | None = None) -> Iterator[WalkedFrame]:
    """Yield every entry of a whole data object, of this project or of Pulsar.

    `entries`, if given, is the count in the metadata: a shorter or longer object is Corrupt, because an offload by
    Pulsar may have stopped silently. Raises Unsupported for the blocks of a streaming offload. A damaged length may
    include padding, by a multiple of 4 bytes. Only the entry's checksum detects that, and the entry's reader verifies
    it.
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
        raise Corrupt(f"{where}: ledger {ledger_id} holds entries up to {number - 1}, the metadata says {entries - 1}")


def walk_block(view: memoryview, offset: int, end: int, number: int, where: str) -> Iterator[WalkedFrame]:
    """Yield the frames of one block, which its padding follows. `offset` is that of the first frame."""
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
    """Describe the fault of a block's rest as padding; empty without one."""
    wrong = find_wrong_padding(rest)
    if wrong < 0:
        return ""
    return f"byte {wrong} of the padding is {rest[wrong]:#04x}, expected {PADDING[wrong % 4]:#04x}"


def _uniform_table(view: memoryview, first_entry: int, entries: int) -> tuple[Integers, Integers] | None:
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
    return f"block of ledger {ledger_id}: entry {number} should begin at byte {offset}, the block has {size}"


def _unfit(ledger_id: int, number: int, entry_id: int, length: int, start: int, size: int) -> str:
    return (
        f"block of ledger {ledger_id}: frame of entry {entry_id} with {length} bytes at "
        f"byte {start - FRAME_BYTES}, expected entry {number} with at most {size - start} bytes"
    )
