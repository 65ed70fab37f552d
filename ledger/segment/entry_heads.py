"""Fast check of the bytes of a segment that no checksum covers: the first bytes of each entry, its *head*.

The head is compared with the *sidecar*, a small file beside the segment with one row for each entry. A head consists of
the entry's length, its id and its stamp. The *stamp* is Pulsar's broker metadata (`BrokerEntryMetadata`: time and row
number). A segment file consists of *blocks*, which contain whole entries.

    frame  length u32  entry id i64 | 0x0e02  size u32  BrokerEntryMetadata | 0x0e01  crc32c u32 | …
                                                                              the checksum covers ^ the rest

Rules
- The heads of many entries are compared at once, column by column, and not in a Python loop over entries.
- A head *agrees* with a row if a writer would write exactly these bytes for the row. The bytes after the magic number
  0x0e01 are not read here, because the checksum covers them.
- A writer writes short stamps. A segment that was a staged part (a file that a Spark task wrote) has wide stamps of a
  fixed length (`ledger.message.entry`). The first entry shows which form the segment has. The comparison stops at a
  stamp of the other form.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pyspark_ledger.ledger.message.entry import CHECKSUM_MAGIC, STAMP_MAGIC, WIDE_BODY_BYTES, BrokerStamp
from pyspark_ledger.ledger.segment.format import FRAME_BYTES, HEADER_BYTES
from pyspark_ledger.ledger.segment.index import Integers, Rows

_SUM_BYTES = 6
_WINDOW = 48  # at least FRAME_BYTES + STAMP_BYTES_MAX + _SUM_BYTES; a multiple of 8
_FRAME = np.dtype([("length", ">u4"), ("entry", ">i8")])
_WORD = 8
_SLICE = 8 * 1024  # rows whose columns stay in the processor's cache
_VARINT_STEPS = np.array([1 << (7 * step) for step in range(1, 8)], dtype=np.int64)
_VARINT_END = 1 << 55  # largest number in eight bytes with a sign
_TIMESTAMP_TAG, _INDEX_TAG = 0x08, 0x10
_WIDE_VARINT = 8


def agreeing(data: memoryview, block_start: int, block_end: int, rows: Rows, first: int, before: BrokerStamp) -> int:
    """Count the rows at the start of `rows` that agree with their heads and follow each other without a gap.

    `rows[0]` belongs to entry `first`, the first entry of the block. `before` is the stamp of the previous entry. The
    count stops when fewer bytes are left in `data` than the longest head has.
    """
    at, taken = block_start + HEADER_BYTES, 0
    while taken < len(rows):
        part = rows[taken : taken + _SLICE]
        count = _agreeing(data, at, block_end, part, first + taken, before)
        taken += count
        if count < len(part):
            break
        last = part[-1]
        at = int(last["offset"]) + FRAME_BYTES + int(last["length"])
        before = BrokerStamp(int(last["timestamp"]), int(last["row_end"]))
    return taken


def _agreeing(data: memoryview, at: int, block_end: int, rows: Rows, first: int, before: BrokerStamp) -> int:
    """Count as `agreeing` does, for one slice of rows whose first frame must start at `at`."""
    offsets, lengths = rows["offset"].astype(np.int64), rows["length"].astype(np.int64)
    timestamps, row_ends = rows["timestamp"].astype(np.int64), rows["row_end"].astype(np.int64)
    ends = offsets + lengths + FRAME_BYTES
    sound = (ends <= block_end) & (offsets <= len(data) - _WINDOW)
    sound &= (timestamps < _VARINT_END) & (row_ends < _VARINT_END)
    sound[:1] &= (offsets[:1] == at) & (timestamps[:1] >= before.timestamp_ms) & (row_ends[:1] >= before.row_end)
    sound[1:] &= (offsets[1:] == ends[:-1]) & (timestamps[1:] >= timestamps[:-1]) & (row_ends[1:] >= row_ends[:-1])
    count = _leading(sound)
    for start, end, widths in _same_widths(timestamps[:count], row_ends[:count], wide=count > 0 and _is_wide(data, at)):
        part = slice(start, end)
        expected, width = _heads(lengths[part], first + start, timestamps[part], row_ends[part], *widths)
        sound[part] &= lengths[part] >= width - FRAME_BYTES - len(CHECKSUM_MAGIC) + _SUM_BYTES
        sound[part] &= _same(data, offsets[part], expected, width)
    return _leading(sound)


def _same(data: memoryview, offsets: Integers, expected: npt.NDArray[np.uint8], width: int) -> npt.NDArray[np.bool_]:
    """Return for each offset whether the `width` bytes there equal the expected bytes. Compares words of 8 bytes."""
    size = expected.shape[1]
    windows: npt.NDArray[np.void] = np.ndarray((len(data) - size + 1,), dtype=f"V{size}", buffer=data, strides=(1,))
    shape = (len(offsets), size // _WORD)
    found, wanted = windows[offsets].view(np.uint64).reshape(shape), expected.view(np.uint64)
    mask = np.frombuffer(bytes([0xFF] * width + [0] * (size - width)), dtype=np.uint64)
    same = np.ones(len(offsets), dtype=np.bool_)
    for word in range(shape[1]):
        same &= (found[:, word] & mask[word]) == wanted[:, word]
    return same


def _is_wide(data: memoryview, frame: int) -> bool:
    """Return whether the stamp of the entry at offset `frame` has the length of a wide stamp."""
    size_at = frame + FRAME_BYTES + len(STAMP_MAGIC)
    return int.from_bytes(data[size_at : size_at + 4], "big") == WIDE_BODY_BYTES


def _same_widths(timestamps: Integers, row_ends: Integers, *, wide: bool) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yield ranges of rows whose stamps have the same layout.

    A result has the start, the end, and the lengths in bytes of the time and the row number. The stamps before the
    first row of a log have no row number, so its length is 0.
    """
    if not len(timestamps):
        return
    if wide and row_ends[0] > 0:
        yield 0, len(timestamps), (_WIDE_VARINT, _WIDE_VARINT)
        return
    times = np.searchsorted(_VARINT_STEPS, timestamps, side="right") + 1
    indexes = np.where(row_ends > 0, np.searchsorted(_VARINT_STEPS, row_ends - 1, side="right") + 1, 0)
    breaks = np.flatnonzero((times[1:] != times[:-1]) | (indexes[1:] != indexes[:-1])) + 1
    start = 0
    for end in (*breaks.tolist(), len(timestamps)):
        yield start, end, (int(times[start]), int(indexes[start]))
        start = end


def _heads(
    lengths: Integers, first: int, timestamps: Integers, row_ends: Integers, time_bytes: int, index_bytes: int
) -> tuple[npt.NDArray[np.uint8], int]:
    """Return the head that a writer makes of each row, up to the magic number 0x0e01, and its size in bytes.

    Each head is padded to words of 8 bytes.
    """
    body = 1 + time_bytes + (1 + index_bytes if index_bytes else 0)
    fixed = bytes(FRAME_BYTES) + STAMP_MAGIC + body.to_bytes(4, "big") + bytes(body) + CHECKSUM_MAGIC
    heads = np.empty((len(lengths), -(-len(fixed) // _WORD) * _WORD), dtype=np.uint8)
    heads[:] = np.frombuffer(fixed.ljust(heads.shape[1], b"\0"), dtype=np.uint8)
    frames = heads[:, :FRAME_BYTES].view(_FRAME)[:, 0]
    frames["length"], frames["entry"] = lengths, np.arange(first, first + len(lengths))
    at = FRAME_BYTES + len(STAMP_MAGIC) + 4
    heads[:, at] = _TIMESTAMP_TAG
    _put_varints(heads[:, at + 1 : at + 1 + time_bytes], timestamps)
    if index_bytes:
        at += 1 + time_bytes
        heads[:, at] = _INDEX_TAG
        _put_varints(heads[:, at + 1 : at + 1 + index_bytes], row_ends - 1)
    return heads, len(fixed)


def _put_varints(target: npt.NDArray[np.uint8], values: Integers) -> None:
    """Write each value as a varint into a row of `target`: seven bits in each byte, the lowest bits first."""
    width = target.shape[1]
    words = values & 0x7F
    for column in range(1, width):
        words |= (values & (0x7F << (7 * column))) << column
    words |= int.from_bytes(b"\x80" * (width - 1), "little")
    target[:] = words.astype("<i8", copy=False).view(np.uint8).reshape(len(values), 8)[:, :width]


def _leading(sound: npt.NDArray[np.bool_]) -> int:
    """Return the number of true values before the first false value."""
    return len(sound) if sound.all() else int(np.argmin(sound))
