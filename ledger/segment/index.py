"""Sidecar of a segment: the file `<id>.index` beside it, with the offset, the time and the last row of each entry.

The *acknowledged end* is the end of the entries that readers may see. An *entry* is one append. A *frame* is an entry
with its length and id in the file.

    0        header  magic "LIDX", version, segment id, block bytes, first row, store id, crc32c
    128      owner   incarnation (id of this creation of the managed ledger), crc32c; zeros if unknown
    512      acknowledged end, slot 0   sequence, entries, end offset, row end, crc32c
    1024     acknowledged end, slot 1   (writes alternate, so an incomplete write leaves the other slot intact)
    1536     seal    entries, data bytes, size bytes, row end, crc32c of all rows, crc32c of this record
    2048     rows    offset i64, length u32, check u32, timestamp i64 (ms), row end i64     32 bytes each

All integers are little-endian.

Invariants
- `offsets[i]` is the file offset of the 12-byte frame header of entry `i`. The entry's `lengths[i]` bytes follow it.
- `row_ends[i]` is the number of rows of the managed ledger up to the end of entry `i`. Timestamps and row ends never
  decrease.
- While the segment is open, rows and slots are written after the sync of their entries. They are not synced themselves.
  They are exact after a crash of the process. After a loss of power they may lack the newest entries.
- Each row has a checksum. Recovery compares each row with the data before it uses the row. A sealed index is synced and
  has a checksum over all rows.
- The sidecar of an open segment is mapped, and its space is reserved in advance. So the file system's journal (its list
  of changes) does not have the sidecar's changes. A sync of the data need not wait for them.
- In memory one thread extends the index, and any thread reads it without a lock. Arrays are replaced before `count` is
  increased, and entries below `count` never change.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.checksum import crc32c
from pyspark_ledger.ledger.errors import Corrupt, Refused, Unsupported
from pyspark_ledger.ledger.segment.format import FRAME_BYTES, HEADER_BYTES

Integers = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]

ROW = np.dtype([("offset", "<i8"), ("length", "<u4"), ("check", "<u4"), ("timestamp", "<i8"), ("row_end", "<i8")])
NO_ROWS: Rows = np.empty(0, dtype=ROW)
_MAGIC, _VERSION = b"LIDX", 1
_HEADER = struct.Struct("<4sIqqq64s")
_SLOT = struct.Struct("<qqqq")
_SEAL = struct.Struct("<qqqqI")
_CRC = struct.Struct("<I")
_OWNER = struct.Struct("<64s")
_OWNER_AT = 128
_SLOTS_AT, _SLOT_STRIDE, _SEAL_AT, _ROWS_AT = 512, 512, 1536, 2048
_CAPACITY_MIN = 64
_FEW = 64
_SLICE = 8 * 1024  # rows whose columns stay in the processor's cache
_RESERVE_BYTES, _RESERVE_STEP_MAX = 64 * 1024, 4 * 1024 * 1024
_ROW = struct.Struct("<qIIqq")
_U64_MAX = 2**64 - 1
_MIX_START = 0x5BD1E995 << 32
_MIX_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)


class EntryPlace(NamedTuple):
    """Row of the index. `offset` is the place of the frame in the file, `length` the size of the entry in bytes.

    `timestamp_ms` is the time at which the broker stored the entry. `row_end` is the number of rows up to its end.
    """

    offset: int
    length: int
    timestamp_ms: int
    row_end: int


class EntryIndex:
    """Index of one segment in memory."""

    def __init__(self, ledger_id: int, first_row: int = 0) -> None:
        self.ledger_id = ledger_id
        self.first_row = first_row
        self._count = 0
        self._adopt(np.empty((4, _CAPACITY_MIN), dtype=np.int64))

    @classmethod
    def of_rows(cls, ledger_id: int, first_row: int, rows: Rows) -> EntryIndex:
        index = cls(ledger_id, first_row)
        index.extend(rows)
        return index

    @property
    def count(self) -> int:
        """The number of acknowledged entries. Their rows never change."""
        return self._count

    @property
    def offsets(self) -> Integers:
        """File offsets of the entries' frame headers."""
        count = self._count
        return self._offsets[:count]

    @property
    def lengths(self) -> Integers:
        """Bytes of the entries, with the stamp, without the frame header."""
        count = self._count
        return self._lengths[:count]

    @property
    def timestamps(self) -> Integers:
        """Broker timestamps in milliseconds since 1970."""
        count = self._count
        return self._timestamps[:count]

    @property
    def row_ends(self) -> Integers:
        """Number of rows of the managed ledger up to the end of each entry."""
        count = self._count
        return self._row_ends[:count]

    @property
    def row_end(self) -> int:
        """The number of rows of the managed ledger up to the last acknowledged entry."""
        count = self._count
        return int(self._row_ends[count - 1]) if count else self.first_row

    @property
    def size_bytes(self) -> int:
        """The sum of the entries' bytes, which Apache BookKeeper, Pulsar's storage, calls the ledger's length."""
        return int(self.lengths.sum())

    def end_offset(self, entry: int) -> int:
        """Return the file offset after the last byte of an entry. Entry -1 ends at the offset of the first frame."""
        if entry < 0:
            return HEADER_BYTES
        return int(self._offsets[entry]) + FRAME_BYTES + int(self._lengths[entry])

    def extend(self, rows: Rows) -> None:
        """Add acknowledged entries. Called by one thread at a time."""
        count = self._count
        end = count + len(rows)
        self.reserve(end)
        for column, name in enumerate(("offset", "length", "timestamp", "row_end")):
            self._table[column, count:end] = rows[name]
        self._count = end

    def append(self, places: Sequence[EntryPlace]) -> None:
        """Add a few acknowledged entries. Does the same as `extend`, without the cost of an array."""
        end = self._count
        self.reserve(end + len(places))
        for place in places:
            self._offsets[end], self._lengths[end], self._timestamps[end], self._row_ends[end] = place
            end += 1
        self._count = end

    def rows(self, start: int = 0) -> Rows:
        """Return the index as sidecar rows, from entry `start` on."""
        table = self._table[:, start : self._count]
        return make_rows(table[0], table[1], table[2], table[3])

    def reserve(self, entries: int) -> None:
        """Allocate memory for this number of entries, so that `extend` need not do so in many steps."""
        if entries > self._table.shape[1]:
            grown = np.empty((4, max(entries, 2 * self._table.shape[1])), dtype=np.int64)
            grown[:, : self._count] = self._table[:, : self._count]
            self._adopt(grown)

    def _adopt(self, table: Integers) -> None:
        self._table = table
        self._offsets: Integers = table[0]
        self._lengths: Integers = table[1]
        self._timestamps: Integers = table[2]
        self._row_ends: Integers = table[3]


@dataclass(frozen=True, slots=True)
class AcknowledgedEnd:
    """End of the acknowledged entries of an open segment."""

    entries: int
    end_offset: int
    row_end: int


@dataclass(frozen=True, slots=True)
class OpenSidecar:
    """Sidecar of an unsealed segment. `rows` end at the newest acknowledged end, or before the first damaged row.

    The rows are a view of the file. `owner` is the incarnation of the managed ledger, empty if unknown.
    """

    store_id: str
    block_bytes: int
    first_row: int
    acknowledged: AcknowledgedEnd
    rows: Rows
    owner: str = ""


class IndexFile:
    """Sidecar of a segment that is being written."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._rows = 0
        self._sequence = 0
        self._map = self._reserve(_RESERVE_BYTES)

    @classmethod
    def create(
        cls, path: Path, ledger_id: int, *, store_id: str, block_bytes: int, first_row: int, owner: str = ""
    ) -> IndexFile:
        """Create and sync the sidecar of an empty segment. An `owner` longer than 64 bytes is not stored."""
        name = store_id.encode()
        if len(name) > 64:
            raise Refused(f"store id {store_id!r} has {len(name)} bytes, a sidecar has space for 64")
        header = _with_crc(_HEADER.pack(_MAGIC, _VERSION, ledger_id, block_bytes, first_row, name))
        fd = disk.create_file(path)
        try:
            file = cls(path, fd)
            file._map[: len(header)] = header
            if owner and len(owner.encode()) <= _OWNER.size:
                record = _with_crc(_OWNER.pack(owner.encode()))
                file._map[_OWNER_AT : _OWNER_AT + len(record)] = record
            file.acknowledge(AcknowledgedEnd(0, HEADER_BYTES, first_row))
            disk.sync_data(fd)
        except BaseException:
            os.close(fd)
            path.unlink()
            raise
        return file

    def append(self, places: Sequence[EntryPlace]) -> None:
        """Write rows after the existing ones, without a sync."""
        start = _ROWS_AT + self._rows * ROW.itemsize
        end = start + len(places) * ROW.itemsize
        if end > len(self._map):
            self._map = self._reserve(end + min(end, _RESERVE_STEP_MAX))
        self._map[start:end] = pack_rows(places)
        self._rows += len(places)

    def acknowledge(self, end: AcknowledgedEnd) -> None:
        """Write the acknowledged end to the next slot, without a sync."""
        self._sequence += 1
        record = _SLOT.pack(self._sequence, end.entries, end.end_offset, end.row_end)
        at = _SLOTS_AT + (self._sequence & 1) * _SLOT_STRIDE
        self._map[at : at + _SLOT.size + _CRC.size] = _with_crc(record)

    def seal(self, index: EntryIndex, file_bytes: int) -> None:
        """Write the whole index with its checksum, and sync it."""
        self._map.close()
        _write_seal(self._fd, self.path, index, NO_ROWS, file_bytes)

    def close(self) -> None:
        self._map.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _reserve(self, length: int) -> mmap.mmap:
        disk.preallocate(self._fd, 0, length, self.path)
        return mmap.mmap(self._fd, length)


def pack_rows(places: Sequence[EntryPlace]) -> bytes:
    """Return sidecar rows as bytes. A few rows are packed without arrays, which is faster."""
    if len(places) > _FEW:
        columns = np.array(places, dtype=np.int64).T
        return make_rows(columns[0], columns[1], columns[2], columns[3]).tobytes()
    return b"".join(
        [
            _ROW.pack(offset, length, _check_of(offset, length, timestamp, row_end), timestamp, row_end)
            for offset, length, timestamp, row_end in places
        ]
    )


def make_rows(offsets: Integers, lengths: Integers, timestamps: Integers, row_ends: Integers) -> Rows:
    """Return sidecar rows, each with its checksum."""
    rows: Rows = np.empty(len(offsets), dtype=ROW)
    rows["offset"], rows["length"], rows["timestamp"], rows["row_end"] = (
        offsets,
        lengths,
        timestamps,
        row_ends,
    )
    rows["check"] = _checks(rows)
    return rows


def write_sealed(path: Path, index: EntryIndex, *, store_id: str, block_bytes: int, file_bytes: int) -> None:
    """Replace the sidecar by a sealed sidecar, in one step."""
    scratch = path.with_name(path.name + ".new")
    scratch.unlink(missing_ok=True)
    file = IndexFile.create(
        scratch, index.ledger_id, store_id=store_id, block_bytes=block_bytes, first_row=index.first_row
    )
    try:
        file.seal(index, file_bytes)
    finally:
        file.close()
    scratch.rename(path)
    disk.sync_directory(path.parent)


def sealed_bytes(index: EntryIndex, *, store_id: str, block_bytes: int, file_bytes: int) -> bytes:
    """Return a sealed sidecar as bytes, without a file. Its slots are empty."""
    head = _with_crc(_HEADER.pack(_MAGIC, _VERSION, index.ledger_id, block_bytes, index.first_row, store_id.encode()))
    rows = index.rows().tobytes()
    seal = _SEAL.pack(index.count, file_bytes, index.size_bytes, index.row_end, crc32c(rows))
    return b"".join([head.ljust(_SEAL_AT, b"\0"), _with_crc(seal).ljust(_ROWS_AT - _SEAL_AT, b"\0"), rows])


def create_sealed(
    path: Path, index: EntryIndex, *, store_id: str, block_bytes: int, file_bytes: int, owner: str
) -> None:
    """Create and sync the sidecar of a complete segment that no ledger lists yet. It states no acknowledged entry."""
    data = bytearray(sealed_bytes(index, store_id=store_id, block_bytes=block_bytes, file_bytes=file_bytes))
    slot = _with_crc(_SLOT.pack(1, 0, HEADER_BYTES, index.first_row))
    at = _SLOTS_AT + _SLOT_STRIDE
    data[at : at + len(slot)] = slot
    if len(owner.encode()) <= _OWNER.size:
        record = _with_crc(_OWNER.pack(owner.encode()))
        data[_OWNER_AT : _OWNER_AT + len(record)] = record
    fd = disk.create_file(path)
    try:
        disk.write_all(fd, [data], 0, path)
        disk.sync_data(fd)
    finally:
        os.close(fd)


def acknowledge_sealed(path: Path, end: AcknowledgedEnd) -> None:
    """Write the acknowledged end into a sidecar of `create_sealed`, without a sync."""
    record = _with_crc(_SLOT.pack(2, end.entries, end.end_offset, end.row_end))
    with disk.opened(path, writable=True) as fd:
        disk.write_all(fd, [record], _SLOTS_AT, path)


def seal_in_place(path: Path, index: EntryIndex, written: Rows, file_bytes: int) -> None:
    """Complete the existing sidecar and sync it. `written` are the rows of the index that the sidecar has already.

    After a crash before the end, the file is still the sidecar of an open segment, with its acknowledged end.
    """
    with disk.opened(path, writable=True) as fd:
        _write_seal(fd, path, index, written, file_bytes)


def load_index(path: Path, ledger_id: int, entries: int) -> EntryIndex:
    """Return the index of a sealed segment. Raises NotFound or Corrupt if it must be rebuilt from the data."""
    with disk.opened(path) as fd:
        return parse_sealed(disk.read_exact(fd, _ROWS_AT + entries * ROW.itemsize, 0), path, ledger_id, entries)


def parse_sealed(sidecar: bytes, path: Path, ledger_id: int, entries: int) -> EntryIndex:
    """Return the index from the bytes of a sealed sidecar. Errors name `path`, the origin of the bytes."""
    _, first_row, _ = _parse_header(sidecar[: _HEADER.size + _CRC.size], path, ledger_id)
    seal = sidecar[_SEAL_AT : _SEAL_AT + _SEAL.size + _CRC.size]
    stated, _, size_bytes, row_end, crc = _SEAL.unpack(_sum_checked(seal, path, _SEAL_AT, _SEAL.size, "seal"))
    if stated != entries:
        raise Corrupt(f"{path}: the seal has {stated} entries, the metadata state {entries}")
    data = sidecar[_ROWS_AT : _ROWS_AT + entries * ROW.itemsize]
    found = crc32c(data)
    if found != crc:
        raise Corrupt(f"{path}: rows have CRC32C {found:#010x}, the seal states {crc:#010x}")
    index = EntryIndex.of_rows(ledger_id, first_row, np.frombuffer(data, dtype=ROW))
    if (index.size_bytes, index.row_end) != (size_bytes, row_end):
        raise Corrupt(
            f"{path}: rows have {index.size_bytes} bytes in total and end at row {index.row_end}, "
            f"the seal states {size_bytes} and {row_end}"
        )
    return index


def load_open(path: Path, ledger_id: int) -> OpenSidecar:
    """Return the sidecar of an unsealed segment.

    Raises NotFound, or Corrupt if the header or both slots are damaged.
    """
    with disk.opened(path) as fd:
        block_bytes, first_row, store_id = _read_header(fd, path, ledger_id)
        owner = _read_owner(fd)
        data = disk.mapped(fd)[_ROWS_AT:]
        ends = [end for end in (_read_slot(fd, path, slot) for slot in (0, 1)) if end is not None]
    if not ends:
        raise Corrupt(f"{path}: both slots of the acknowledged end have a wrong checksum")
    rows: Rows = np.frombuffer(data, dtype=ROW, count=len(data) // ROW.itemsize)
    acknowledged = max(ends, key=lambda end: end[0])[1]
    return OpenSidecar(store_id, block_bytes, first_row, acknowledged, _sound(rows[: acknowledged.entries]), owner)


def _write_seal(fd: int, path: Path, index: EntryIndex, written: Rows, file_bytes: int) -> None:
    more = index.rows(len(written)).view(np.uint8).data
    crc = crc32c(more, crc32c(written.view(np.uint8)))
    record = _SEAL.pack(index.count, file_bytes, index.size_bytes, index.row_end, crc)
    end = disk.write_all(fd, [more], _ROWS_AT + written.nbytes, path) + _ROWS_AT + written.nbytes
    disk.write_all(fd, [_with_crc(record)], _SEAL_AT, path)
    os.ftruncate(fd, end)
    disk.sync_data(fd)


def _read_owner(fd: int) -> str:
    raw = disk.read_exact(fd, _OWNER.size + _CRC.size, _OWNER_AT)
    name = raw[: _OWNER.size].rstrip(b"\0")
    sound = len(raw) == _OWNER.size + _CRC.size and _CRC.unpack(raw[_OWNER.size :])[0] == crc32c(raw[: _OWNER.size])
    return name.decode() if sound else ""


def _read_header(fd: int, path: Path, ledger_id: int) -> tuple[int, int, str]:
    return _parse_header(disk.read_exact(fd, _HEADER.size + _CRC.size, 0), path, ledger_id)


def _parse_header(raw: bytes, path: Path, ledger_id: int) -> tuple[int, int, str]:
    if raw[:4] != _MAGIC:
        raise Corrupt(f"{path}: starts with {raw[:4].hex()}, expected {_MAGIC.hex()} of a sidecar")
    checked = _sum_checked(raw, path, 0, _HEADER.size, "header")
    _, version, stated, block_bytes, first_row, store_id = _HEADER.unpack(checked)
    if version != _VERSION:
        raise Unsupported(f"{path}: sidecar of version {version}, this code reads {_VERSION}", hint="Upgrade")
    if stated != ledger_id:
        raise Corrupt(f"{path}: is the sidecar of segment {stated}, expected {ledger_id}")
    return block_bytes, first_row, store_id.rstrip(b"\0").decode()


def _read_slot(fd: int, path: Path, slot: int) -> tuple[int, AcknowledgedEnd] | None:
    try:
        raw = _checked(fd, path, _SLOTS_AT + slot * _SLOT_STRIDE, _SLOT.size, f"slot {slot}")
    except Corrupt:
        return None  # not written yet or written incompletely: the other slot has an earlier end
    sequence, entries, end_offset, row_end = _SLOT.unpack(raw)
    return sequence, AcknowledgedEnd(entries, end_offset, row_end)


def _with_crc(record: bytes) -> bytes:
    return record + _CRC.pack(crc32c(record))


def _checked(fd: int, path: Path, offset: int, length: int, what: str) -> bytes:
    return _sum_checked(disk.read_exact(fd, length + _CRC.size, offset), path, offset, length, what)


def _sum_checked(raw: bytes, path: Path, offset: int, length: int, what: str) -> bytes:
    if len(raw) < length + _CRC.size:
        raise Corrupt(f"{path}: {what} at {offset} has {len(raw)} of {length + _CRC.size} bytes")
    record = raw[:length]
    (stated,), found = _CRC.unpack(raw[length:]), crc32c(record)
    if found != stated:
        raise Corrupt(f"{path}: {what} at {offset} has CRC32C {found:#010x}, the file states {stated:#010x}")
    return record


def _check_of(offset: int, length: int, timestamp: int, row_end: int) -> int:
    """Return the checksum of one row, as `_checks` computes it, without arrays."""
    by_offset, by_length, by_timestamp, by_row_end = _MIX_FACTORS
    mixed = (_MIX_START + offset * by_offset) & _U64_MAX
    mixed = ((mixed ^ mixed >> 29) + length * by_length) & _U64_MAX
    mixed = ((mixed ^ mixed >> 29) + timestamp * by_timestamp) & _U64_MAX
    mixed = ((mixed ^ mixed >> 29) + row_end * by_row_end) & _U64_MAX
    return (mixed ^ mixed >> 29) >> 32


def _sound(rows: Rows) -> Rows:
    """Return the rows before the first row with a wrong checksum or without a length."""
    for start in range(0, len(rows), _SLICE):
        part = rows[start : start + _SLICE]
        unsound = (part["check"] != _checks(part)) | (part["length"] == 0)
        if unsound.any():
            return rows[: start + int(np.argmax(unsound))]
    return rows


def _checks(rows: Rows) -> npt.NDArray[np.uint32]:
    """Return the checksum of each row: 32 bits of a hash by multiplication.

    The checksum of a row of zeros is not 0, so empty space is never a sound row.
    """
    mixed = np.full(len(rows), _MIX_START, dtype=np.uint64)
    for name, factor in zip(("offset", "length", "timestamp", "row_end"), _MIX_FACTORS, strict=True):
        mixed += rows[name].astype(np.uint64) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(29)
    return (mixed >> np.uint64(32)).astype(np.uint32)
