"""Replacement of the stamps in segments that Spark tasks have put into the bucket themselves.

A *stamp* stands before each entry: the time at which the broker stored the entry, and its row number. When a task puts
its object, the task knows neither time nor row number. The object cannot be changed later. So the stamps of such a
*direct segment* are *provisional* (`ledger.message.entry`): they have the time of staging and no row number. A *wide*
stamp has the same length and the real numbers. Every reader replaces the provisional stamps by wide stamps:

    frames as fetched    length, id │ provisional stamp │ entry …       the stamps are replaced in a copy, all at once
    frames as read       length, id │ wide stamp        │ entry …       before a cache, a decoder or a check sees them

Rules
- All entries of a direct segment have the time of the commit, which is in the segment's record.
- The row number in a stamp is the first row of the segment plus the rows of all entries up to this one.
- Only provisional stamps are replaced. Any other bytes in their place raise Corrupt.
- `direct_index` computes the index of a segment from the lengths and rows of its entries. The lengths determine
  the place of each entry in the segment file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.message.entry import (
    NO_INDEX,
    WIDE_NUMBER_END,
    WIDE_STAMP_BYTES,
    BrokerStamp,
    entry_rows,
    parse_head,
    provisional_stamp,
    wide_stamp,
)
from pyspark_ledger.ledger.segment.format import FRAME_BYTES, HEADER_BYTES
from pyspark_ledger.ledger.segment.index import EntryIndex, Integers, make_rows
from pyspark_ledger.ledger.segment.reader import frame_table

Bytes = npt.NDArray[np.uint8]
_INDEX_AT = WIDE_STAMP_BYTES - len(NO_INDEX)
_TIME_AT = _INDEX_AT - 8
_TIME = slice(_TIME_AT, _INDEX_AT)


class RealStamps(NamedTuple):
    """Stamps of consecutive entries: their common time, and the number of rows of the log before the first entry."""

    time_ms: int
    row_start: int


@dataclass(frozen=True, slots=True)
class DirectLayout:
    """Index of a direct segment, and the length of its data object."""

    index: EntryIndex
    file_bytes: int


def direct_index(
    ledger_id: int, stamps: RealStamps, block_bytes: int, entry_bytes: Integers, rows: Integers
) -> DirectLayout:
    """Return the index of a direct segment from the lengths and rows of its entries.

    The last entry is the marker, which ends a batch and has no rows.

    A length excludes the frame header and the stamp. Raises Refused if an entry does not fit into a block. Also raises
    Refused if the first entry of a log has no row, because a wide stamp cannot state this.
    """
    lengths = entry_bytes.astype(np.int64) + WIDE_STAMP_BYTES
    row_ends = stamps.row_start + np.cumsum(rows, dtype=np.int64)
    _require_numbers(f"segment {ledger_id}", stamps.time_ms, row_ends)
    offsets, file_bytes = _packed(ledger_id, lengths + FRAME_BYTES, block_bytes)
    times = np.full(len(lengths), stamps.time_ms, dtype=np.int64)
    places = make_rows(offsets, lengths, times, row_ends)
    return DirectLayout(EntryIndex.of_rows(ledger_id, stamps.row_start, places), file_bytes)


def _packed(ledger_id: int, frames: Integers, block_bytes: int) -> tuple[Integers, int]:
    """Return the offset of each frame, and the end of the last one. A block has as many frames as fit."""
    ends, offsets = np.cumsum(frames), np.empty(len(frames), dtype=np.int64)
    first = start = end = 0
    while first < len(frames):
        packed = int(ends[first - 1]) if first else 0
        last = int(np.searchsorted(ends, packed + block_bytes - HEADER_BYTES, side="right"))
        if last == first:
            raise Refused(
                f"segment {ledger_id}: entry {first} takes {frames[first]} bytes, a block of {block_bytes} bytes has "
                f"room for {block_bytes - HEADER_BYTES}"
            )
        offsets[first:last] = ends[first:last] - frames[first:last] + (start + HEADER_BYTES - packed)
        end = start + HEADER_BYTES + int(ends[last - 1]) - packed
        first, start = last, start + block_bytes
    return offsets, end


def is_provisional(entry: Buffer) -> bool:
    """Return whether an entry begins with a provisional stamp."""
    head, expected = memoryview(entry)[:WIDE_STAMP_BYTES], provisional_stamp(0)
    return head[:_TIME_AT] == expected[:_TIME_AT] and head[_INDEX_AT:] == expected[_INDEX_AT:]


def require_provisional(entry: Buffer, where: str) -> None:
    """Raise Corrupt if an entry does not begin with a provisional stamp."""
    if not is_provisional(entry):
        found = bytes(memoryview(entry)[:WIDE_STAMP_BYTES]).hex()
        raise Corrupt(f"{where}: the stamp is {found}, expected a provisional stamp ({provisional_stamp(0).hex()})")


def with_index(frames: Buffer, first_entry: int, entries: int, index: EntryIndex, where: str) -> pa.Buffer:
    """Return a copy of the frames of consecutive entries with the stamps that the index of their segment states."""
    part = slice(first_entry, first_entry + entries)
    lengths, data = index.lengths[part], bytearray(frames)
    if int(lengths.sum()) + FRAME_BYTES * entries != len(data):
        raise Corrupt(
            f"{where}: entries {first_entry} to {first_entry + entries - 1} have {len(data)} bytes, the index states "
            f"{int(lengths.sum()) + FRAME_BYTES * entries}"
        )
    starts = np.cumsum(lengths + FRAME_BYTES) - lengths
    put_stamps(data, starts, int(index.timestamps[first_entry]), index.row_ends[part], where)
    return pa.py_buffer(data)


def with_counted_rows(
    frames: Buffer, ledger_id: int, first_entry: int, entries: int, stamps: RealStamps, where: str
) -> pa.Buffer:
    """Return a copy of the frames of consecutive entries with their stamps, for a reader without the segment's index.

    Each entry has the number of rows that its metadata state. The checksum of the entry is not checked here.
    """
    data = bytearray(frames)
    starts, lengths = frame_table(data, ledger_id, first_entry, entries)
    view = memoryview(data)
    rows = np.fromiter(
        (
            rows_of(view[start : start + length], f"entry {ledger_id}:{first_entry + number} in {where}")
            for number, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True))
        ),
        np.int64,
        entries,
    )
    put_stamps(data, starts, stamps.time_ms, stamps.row_start + np.cumsum(rows), where)
    return pa.py_buffer(data)


def rows_of(entry: memoryview, where: str) -> int:
    """Return the rows that an entry states in its metadata. Raises Corrupt if the metadata cannot be read."""
    parsed = parse_head(entry, where)
    if parsed is None:
        raise Corrupt(f"{where}: the metadata of the entry cannot be read")
    return entry_rows(parsed.metadata)


def put_stamps(data: bytearray | memoryview, starts: Integers, time_ms: int, row_ends: Integers, where: str) -> None:
    """Replace the provisional stamps at `starts` by wide stamps.

    Raises Corrupt, and changes nothing, if one of these stamps is not provisional.
    """
    if not len(starts):
        return
    _require_numbers(where, time_ms, row_ends)
    if int(starts[-1]) + WIDE_STAMP_BYTES > len(data):
        raise Corrupt(f"{where}: a stamp of {WIDE_STAMP_BYTES} bytes at {starts[-1]} exceeds the {len(data)} bytes")
    windows: npt.NDArray[np.void] = np.ndarray(
        (len(data) - WIDE_STAMP_BYTES + 1,), dtype=f"V{WIDE_STAMP_BYTES}", buffer=data, strides=(1,)
    )
    found = windows[starts].view(np.uint8).reshape(len(starts), WIDE_STAMP_BYTES)
    expected = np.frombuffer(provisional_stamp(0), dtype=np.uint8)
    same = found == expected
    same[:, _TIME] = True
    wrong = ~same.all(axis=1)
    if wrong.any():
        entry = int(np.argmax(wrong))
        raise Corrupt(
            f"{where}: the stamp at byte {int(starts[entry])} is {found[entry].tobytes().hex()}, expected a "
            f"provisional stamp ({expected.tobytes().hex()}, with any time)"
        )
    windows[starts] = _wide_stamps(time_ms, row_ends).view(windows.dtype)[:, 0]


def _wide_stamps(time_ms: int, row_ends: Integers) -> Bytes:
    """Return the wide stamp of each row end."""
    stamps = np.empty((len(row_ends), WIDE_STAMP_BYTES), dtype=np.uint8)
    stamps[:] = np.frombuffer(wide_stamp(BrokerStamp(time_ms, 1)), dtype=np.uint8)
    numbers = (row_ends - 1).astype(np.int64)
    for byte in range(8):
        stamps[:, WIDE_STAMP_BYTES - 8 + byte] = (numbers >> (7 * byte)) & 0x7F | (0x80 if byte < 7 else 0)
    return stamps


def _require_numbers(where: str, time_ms: int, row_ends: Integers) -> None:
    """Raise Refused if a wide stamp cannot state the numbers."""
    if not 0 <= time_ms < WIDE_NUMBER_END or (len(row_ends) and not 1 <= row_ends[0] <= row_ends[-1] < WIDE_NUMBER_END):
        ends = f"{row_ends[0]} to {row_ends[-1]}" if len(row_ends) else "none"
        raise Refused(
            f"{where}: a stamp cannot state time {time_ms} and row ends {ends}; the time is from 0 and row ends are "
            f"from 1, both below {WIDE_NUMBER_END}"
        )
