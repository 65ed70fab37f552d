"""Reader of an offloaded segment: fetches the block index once, then ranges of the data object.

The entry index has the offset of each entry. Only this project writes such an object. So a segment that Pulsar
offloaded has no entry index. The reader scans the blocks of such a segment frame by frame, and keeps the offsets in
memory, 16 bytes for each entry. A frame is an entry with its length and number. The page docs/concepts.md explains the
words segment, block, entry and data object.

Invariants
- Nothing is fetched before the first read.
- No entry is read before format version and length are verified. The data object and the block index must both state
  the supported version. The length of the data object must equal the length in the block index.
- If values disagree, Corrupt is raised. It names the object, the offset, and the expected and the found value.
- A missing object raises DataLoss, because the segment's record refers to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.errors import Corrupt, DataLoss, NotFound, Refused, Unsupported
from pyspark_ledger.ledger.message.entry import BrokerStamp
from pyspark_ledger.ledger.objects.object_store import ObjectHead, ObjectStore
from pyspark_ledger.ledger.segment.format import FRAME, FRAME_BYTES, HEADER_BYTES, parse_header
from pyspark_ledger.ledger.segment.index import ROW, EntryIndex, Integers, make_rows, parse_sealed
from pyspark_ledger.ledger.segment.object_names import VERSION, VERSION_KEY, ObjectKey
from pyspark_ledger.ledger.segment.reader import iter_frames, padding_fault
from pyspark_ledger.ledger.segment.scan import checked_traits
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.offload.format.block_index import BlockIndex, IndexedBlock, parse_index
from pyspark_ledger.offload.window_cache import WindowCache, WindowedObject

INDEX_BYTES_MAX = 64 * 1024 * 1024
_SIDECAR_HEAD_BYTES = 2048
_STEP_BYTES = 1024 * 1024
_NEGATIVE = 0x80000000
T = TypeVar("T")


class LearnedBlock:
    """Offsets and lengths of the entries in the scanned part of a block."""

    def __init__(self, block: IndexedBlock, block_bytes: int) -> None:
        self.first_entry = block.first_entry
        self.start = block.offset
        self.end = block.offset + block_bytes
        self.offsets: list[int] = []
        self.lengths: list[int] = []
        self.next = block.offset + HEADER_BYTES
        self.whole = False


class OffloadedSegmentReader:
    """Reader of one offloaded segment. Thread-safe."""

    def __init__(self, store: ObjectStore, key: ObjectKey, windows: WindowCache) -> None:
        self._store = store
        self._key = key
        self._windows = windows
        self._lock = threading.RLock()
        self._index_and_data: tuple[BlockIndex, WindowedObject] | None = None
        self._entry_index: EntryIndex | None = None
        self._has_entry_index = True
        self._blocks: dict[int, LearnedBlock] = {}

    @property
    def ledger_id(self) -> int:
        return self._key.ledger_id

    @property
    def block_index(self) -> BlockIndex:
        return self._open()[0]

    @property
    def data_bytes(self) -> int:
        return self.block_index.data_bytes

    def index(self, first_row: int, entries: int) -> EntryIndex:
        if self.block_index.entries != entries:
            raise Corrupt(
                f"{self._where(self._key.index_name)} states {self.block_index.entries} entries, the record {entries}"
            )
        entry_index = self._load_entry_index()
        if entry_index is not None and entry_index.first_row == first_row:
            return entry_index
        return self._scan_all(first_row)

    def read(self, first_entry: int, entries: int, *, alone: bool = False) -> pa.Buffer:
        index, source = self._open()
        last = first_entry + entries - 1
        if not (0 <= first_entry <= last < index.entries):
            raise Refused(
                f"entries {first_entry} to {last} of segment {self.ledger_id} were requested, "
                f"it has 0 to {index.entries - 1}"
            )
        byte_ranges = self._byte_ranges(first_entry, last)
        pieces = [self._fetch(lambda at=at: self._windows.read(source, *at, alone=alone)) for at in byte_ranges]  # type: ignore[misc]
        return pieces[0] if len(pieces) == 1 else pa.py_buffer(b"".join(map(memoryview, pieces)))

    def close(self) -> None:
        with self._lock:
            if self._index_and_data is not None:
                self._windows.evict(self._index_and_data[1])

    def _open(self) -> tuple[BlockIndex, WindowedObject]:
        with self._lock:
            if self._index_and_data is None:
                self._index_and_data = self._fetch(self._read_index)
            return self._index_and_data

    def _read_index(self) -> tuple[BlockIndex, WindowedObject]:
        names = self._key
        fetched = self._store.get(names.index_name, INDEX_BYTES_MAX)
        self._require_version(fetched.head)
        index = parse_index(fetched.data, self._where(names.index_name))
        head = self._store.head(names.data_name)
        self._require_version(head)
        if head.size != index.data_bytes:
            raise Corrupt(f"{self._where(names.data_name)} has {head.size} bytes, its index says {index.data_bytes}")
        return index, WindowedObject(self._store, names.data_name, head.size, HEADER_BYTES)

    def _byte_ranges(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return offset and length of each contiguous range of frames of the entries `first` to `last`."""
        entry_index = self._load_entry_index()
        if entry_index is not None:
            starts = entry_index.offsets[first : last + 1]
            ends = starts + entry_index.lengths[first : last + 1] + FRAME_BYTES
        else:
            found = np.array([self._locate(entry) for entry in range(first, last + 1)], dtype=np.int64)
            starts, ends = found[:, 0], found[:, 0] + found[:, 1] + FRAME_BYTES
        return contiguous(starts, ends)

    def _load_entry_index(self) -> EntryIndex | None:
        """Return the entry index, or None if the segment has none. The object is fetched once."""
        with self._lock:
            if self._entry_index is None and self._has_entry_index:
                entries = self.block_index.entries
                where = self._where(self._key.entries_name)
                try:
                    data = self._store.get(self._key.entries_name, entry_index_bytes(entries)).data
                except NotFound:
                    self._has_entry_index = False
                    return None
                self._entry_index = self._check_entry_index(
                    parse_sealed(data, Path(where), self.ledger_id, entries), where
                )
            return self._entry_index

    def _check_entry_index(self, entry_index: EntryIndex, where: str) -> EntryIndex:
        """Return the entry index. Raises Corrupt if the block index or the data object's length contradicts it."""
        index = self.block_index
        for block in index.blocks:
            found = int(entry_index.offsets[block.first_entry])
            if found != block.offset + HEADER_BYTES:
                raise Corrupt(f"{where}: entry {block.first_entry} is at {found}, the index says {block.offset}")
        if entry_index.end_offset(entry_index.count - 1) > index.data_bytes:
            raise Corrupt(
                f"{where}: entries end at {entry_index.end_offset(entry_index.count - 1)}, "
                f"the data at {index.data_bytes}"
            )
        return entry_index

    def _locate(self, entry: int) -> tuple[int, int]:
        """Return the offset of an entry's frame, and the entry's length. Scans the block up to the entry."""
        with self._lock:
            block = self._learned_block(entry)
            while len(block.offsets) <= entry - block.first_entry:
                self._scan_step(block)
            at = entry - block.first_entry
            return block.offsets[at], block.lengths[at]

    def _learned_block(self, entry: int) -> LearnedBlock:
        index, source = self._open()
        block = index.block_of(entry)
        if block.part_id not in self._blocks:
            data = self._fetch(lambda: self._store.get_range(source.key, block.offset, HEADER_BYTES))
            where = f"{self._where(source.key)} at {block.offset}"
            header = parse_header(memoryview(data), where)
            later_offsets = [later.offset for later in index.blocks if later.offset > block.offset]
            end = min(later_offsets, default=index.data_bytes)
            if (header.first_entry, header.block_bytes) != (block.first_entry, end - block.offset):
                raise Corrupt(
                    f"{where}: block of {header.block_bytes} bytes from entry {header.first_entry}, the index says "
                    f"{end - block.offset} from {block.first_entry}"
                )
            self._blocks[block.part_id] = LearnedBlock(block, header.block_bytes)
        return self._blocks[block.part_id]

    def _scan_step(self, block: LearnedBlock) -> None:
        """Find the frames in the next piece of a block. Raises Corrupt or DataLoss if the next entry is missing."""
        index, source = self._open()
        length = min(_STEP_BYTES, block.end - block.next)
        view = memoryview(self._fetch(lambda: self._windows.read(source, block.next, length))) if length else b""
        at, scanned = 0, len(block.offsets)
        while length - at >= FRAME_BYTES:
            size, number = FRAME.unpack_from(view, at)
            expected = block.first_entry + len(block.offsets)
            if size >= _NEGATIVE or expected >= index.entries:
                break
            if number != expected or not 0 < size <= block.end - block.next - at - FRAME_BYTES:
                raise Corrupt(
                    f"{self._where(source.key)} at {block.next + at}: frame of entry {number} with {size} bytes, "
                    f"expected entry {expected} with at most {block.end - block.next - at - FRAME_BYTES}"
                )
            block.offsets.append(block.next + at)
            block.lengths.append(size)
            at += FRAME_BYTES + size
        if len(block.offsets) == scanned:
            raise DataLoss(
                f"{self._where(source.key)}: block at {block.start} ends with entry "
                f"{block.first_entry + scanned - 1}, but by the index it also has entry {block.first_entry + scanned}",
                hint="Pulsar's offloader stops at an entry that is larger than a block, and reports no error",
            )
        block.next += at

    def _scan_all(self, first_row: int) -> EntryIndex:
        """Build the entry index by reading every entry of the segment."""
        index, source = self._open()
        rows: list[tuple[int, int, int, int]] = []
        stamp = BrokerStamp(0, first_row)
        for number, block in enumerate(index.blocks):
            later_blocks = index.blocks[number + 1 :]
            last = (later_blocks[0].first_entry if later_blocks else index.entries) - 1
            self._locate(last)
            learned = self._blocks[block.part_id]
            for entry, offset, length in zip(
                range(block.first_entry, last + 1), learned.offsets, learned.lengths, strict=False
            ):
                frame = self._fetch(lambda at=offset, n=length: self._windows.read(source, at, FRAME_BYTES + n))  # type: ignore[misc]
                ((_, data),) = iter_frames(memoryview(frame).cast("B"), self.ledger_id, entry, 1)
                stamp = checked_traits(data, entry_traits, stamp).stamp or stamp
                rows.append((offset, length, stamp.timestamp_ms, stamp.row_end))
            self._require_padding(source, learned, rows[-1])
        columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        return EntryIndex.of_rows(self.ledger_id, first_row, make_rows(columns[0], columns[1], columns[2], columns[3]))

    def _require_padding(self, source: WindowedObject, block: LearnedBlock, last: tuple[int, int, int, int]) -> None:
        at = last[0] + FRAME_BYTES + last[1]
        if at >= block.end:
            return
        rest = self._fetch(lambda: self._windows.read(source, at, block.end - at))
        if fault := padding_fault(memoryview(rest).cast("B")):
            raise Corrupt(f"{self._where(source.key)} at {at}: {fault}")

    def _require_version(self, head: ObjectHead) -> None:
        found = head.metadata.get(VERSION_KEY, "")
        if found != VERSION:
            raise Unsupported(
                f"{self._where(head.key)} states format version {found or 'none'!r}, this code reads {VERSION!r}"
            )

    def _fetch(self, fetch: Callable[[], T]) -> T:
        try:
            return fetch()
        except NotFound as gone:
            raise DataLoss(
                f"segment {self.ledger_id} was offloaded as {self._where(self._key.data_name)}, and the object is "
                f"missing: {gone.message}",
                hint="Restore the segment's objects from a copy of the bucket",
            ) from gone

    def _where(self, name: str) -> str:
        return f"{self._store.address}/{name}"


def contiguous(starts: Integers, ends: Integers) -> list[tuple[int, int]]:
    """Return offset and length of each contiguous range of the frames at `[starts, ends)`."""
    splits = [0, *(np.flatnonzero(starts[1:] != ends[:-1]) + 1).tolist(), len(starts)]
    return [(int(starts[a]), int(ends[b - 1] - starts[a])) for a, b in pairwise(splits) if a < b]


def entry_index_bytes(entries: int) -> int:
    """Return the largest size of the entry index of a segment."""
    return _SIDECAR_HEAD_BYTES + entries * ROW.itemsize
