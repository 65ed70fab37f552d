"""An offloaded ledger as one reads it: the index object once, then ranges of the data object.

Where an entry is, one of three says: the object with the place of every entry, which ours have; else what was learned
of its block by stepping through it; else the step that learns it. What was learned is kept, 16 bytes an entry.

Invariants: nothing is fetched before it is asked for. Both objects state the version that this code reads, and the data
object the length that its index states, or nothing is read. Whatever disagrees is Corrupt, naming object, offset and
both values. An object that is missing is DataLoss: somebody deleted what a record refers to.
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
from pyspark_ledger.ledger.segment.format import FRAME, FRAME_BYTES, HEADER_BYTES, parse_header
from pyspark_ledger.ledger.segment.index import ROW, EntryIndex, make_rows, parse_sealed
from pyspark_ledger.ledger.segment.reader import iter_frames, padding_fault
from pyspark_ledger.ledger.segment.scan import checked_traits
from pyspark_ledger.ledger.tiering.sealed_index import entry_traits
from pyspark_ledger.offload.format.block_index import BlockIndex, IndexedBlock, parse_index
from pyspark_ledger.offload.format.object_names import ObjectKey
from pyspark_ledger.offload.storage.object_store import ObjectHead, ObjectStore
from pyspark_ledger.offload.window_cache import WindowCache, WindowedObject

VERSION_KEY, VERSION = "s3managedledgeroffloaderformatversion", "1"
INDEX_BYTES_MAX = 64 * 1024 * 1024
_SIDECAR_HEAD_BYTES = 2048
_STEP_BYTES = 1024 * 1024
_NEGATIVE = 0x80000000
T = TypeVar("T")


class LearnedBlock:
    """The places of entries in one block, from its first one on, as far as anybody has stepped."""

    def __init__(self, block: IndexedBlock, block_bytes: int) -> None:
        self.first_entry = block.first_entry
        self.start = block.offset
        self.end = block.offset + block_bytes
        self.offsets: list[int] = []
        self.lengths: list[int] = []
        self.next = block.offset + HEADER_BYTES
        self.whole = False


class OffloadedSegmentReader:
    """One offloaded ledger. Any thread may call any method."""

    def __init__(self, store: ObjectStore, key: ObjectKey, windows: WindowCache) -> None:
        self._store = store
        self._key = key
        self._windows = windows
        self._lock = threading.RLock()
        self._opened: tuple[BlockIndex, WindowedObject] | None = None
        self._places: EntryIndex | None = None
        self._has_places = True
        self._learned: dict[int, LearnedBlock] = {}

    @property
    def ledger_id(self) -> int:
        return self._key.ledger_id

    @property
    def block_index(self) -> BlockIndex:
        return self._open()[0]

    def index(self, first_row: int, entries: int) -> EntryIndex:
        if self.block_index.entries != entries:
            raise Corrupt(
                f"{self._where(self._key.index_name)} states {self.block_index.entries} entries, the record {entries}"
            )
        places = self._all_places()
        if places is not None and places.first_row == first_row:
            return places
        return self._scanned(first_row)

    def read(self, first_entry: int, entries: int, *, alone: bool = False) -> pa.Buffer:
        index, source = self._open()
        last = first_entry + entries - 1
        if not (0 <= first_entry <= last < index.entries):
            raise Refused(
                f"entries {first_entry} to {last} of ledger {self.ledger_id} were asked for, "
                f"it has 0 to {index.entries - 1}"
            )
        pieces = self._pieces(first_entry, last)
        found = [self._fetched(lambda at=at: self._windows.read(source, *at, alone=alone)) for at in pieces]  # type: ignore[misc]
        return found[0] if len(found) == 1 else pa.py_buffer(b"".join(memoryview(piece) for piece in found))

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._windows.forget(self._opened[1])

    def _open(self) -> tuple[BlockIndex, WindowedObject]:
        with self._lock:
            if self._opened is None:
                self._opened = self._fetched(self._read_index)
            return self._opened

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

    def _pieces(self, first: int, last: int) -> list[tuple[int, int]]:
        """Offset and length of each run of frames without anything between."""
        places = self._all_places()
        if places is not None:
            starts = places.offsets[first : last + 1]
            ends = starts + places.lengths[first : last + 1] + FRAME_BYTES
        else:
            found = np.array([self._place(entry) for entry in range(first, last + 1)], dtype=np.int64)
            starts, ends = found[:, 0], found[:, 0] + found[:, 1] + FRAME_BYTES
        cuts = [0, *(np.flatnonzero(starts[1:] != ends[:-1]) + 1).tolist(), len(starts)]
        return [(int(starts[a]), int(ends[b - 1] - starts[a])) for a, b in pairwise(cuts) if a < b]

    def _all_places(self) -> EntryIndex | None:
        """The place of every entry, where there is an object that says so."""
        with self._lock:
            if self._places is None and self._has_places:
                entries = self.block_index.entries
                where = self._where(self._key.entries_name)
                try:
                    most = _SIDECAR_HEAD_BYTES + entries * ROW.itemsize
                    data = self._store.get(self._key.entries_name, most).data
                except NotFound:
                    self._has_places = False
                    return None
                self._places = self._checked(parse_sealed(data, Path(where), self.ledger_id, entries), where)
            return self._places

    def _checked(self, places: EntryIndex, where: str) -> EntryIndex:
        """The places, which must be inside the data object and those of the blocks' first entries."""
        index = self.block_index
        for block in index.blocks:
            found = int(places.offsets[block.first_entry])
            if found != block.offset + HEADER_BYTES:
                raise Corrupt(f"{where}: entry {block.first_entry} is at {found}, the index says {block.offset}")
        if places.end_offset(places.count - 1) > index.data_bytes:
            raise Corrupt(
                f"{where}: entries end at {places.end_offset(places.count - 1)}, the data at {index.data_bytes}"
            )
        return places

    def _place(self, entry: int) -> tuple[int, int]:
        """Offset of the frame and bytes of an entry, learned if need be."""
        with self._lock:
            block = self._block(entry)
            while len(block.offsets) <= entry - block.first_entry:
                self._learn(block)
            at = entry - block.first_entry
            return block.offsets[at], block.lengths[at]

    def _block(self, entry: int) -> LearnedBlock:
        index, source = self._open()
        block = index.block_of(entry)
        if block.part_id not in self._learned:
            data = self._fetched(lambda: self._store.get_range(source.key, block.offset, HEADER_BYTES))
            where = f"{self._where(source.key)} at {block.offset}"
            header = parse_header(memoryview(data), where)
            later = [other.offset for other in index.blocks if other.offset > block.offset]
            end = min(later, default=index.data_bytes)
            if (header.first_entry, header.block_bytes) != (block.first_entry, end - block.offset):
                raise Corrupt(
                    f"{where}: block of {header.block_bytes} bytes from entry {header.first_entry}, the index says "
                    f"{end - block.offset} from {block.first_entry}"
                )
            self._learned[block.part_id] = LearnedBlock(block, header.block_bytes)
        return self._learned[block.part_id]

    def _learn(self, block: LearnedBlock) -> None:
        """Step over the frames of the next piece of a block."""
        index, source = self._open()
        length = min(_STEP_BYTES, block.end - block.next)
        view = memoryview(self._fetched(lambda: self._windows.read(source, block.next, length))) if length else b""
        at, known = 0, len(block.offsets)
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
        if len(block.offsets) == known:
            raise DataLoss(
                f"{self._where(source.key)}: block at {block.start} ends with entry "
                f"{block.first_entry + known - 1}, the index says that entry {block.first_entry + known} is in it",
                hint="Pulsar's offloader stops in silence at an entry that is larger than a block",
            )
        block.next += at

    def _scanned(self, first_row: int) -> EntryIndex:
        """The index as reading every entry makes it, block after block."""
        index, source = self._open()
        rows: list[tuple[int, int, int, int]] = []
        stamp = BrokerStamp(0, first_row)
        for number, block in enumerate(index.blocks):
            later = index.blocks[number + 1 :]
            last = (later[0].first_entry if later else index.entries) - 1
            self._place(last)
            learned = self._learned[block.part_id]
            for entry, offset, length in zip(
                range(block.first_entry, last + 1), learned.offsets, learned.lengths, strict=False
            ):
                frame = self._fetched(lambda at=offset, n=length: self._windows.read(source, at, FRAME_BYTES + n))  # type: ignore[misc]
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
        rest = self._fetched(lambda: self._windows.read(source, at, block.end - at))
        if fault := padding_fault(memoryview(rest).cast("B")):
            raise Corrupt(f"{self._where(source.key)} at {at}: {fault}")

    def _require_version(self, head: ObjectHead) -> None:
        found = head.metadata.get(VERSION_KEY, "")
        if found != VERSION:
            raise Unsupported(
                f"{self._where(head.key)} states format version {found or 'none'!r}, this code reads {VERSION!r}"
            )

    def _fetched(self, fetch: Callable[[], T]) -> T:
        try:
            return fetch()
        except NotFound as gone:
            raise DataLoss(
                f"ledger {self.ledger_id} was offloaded as {self._where(self._key.data_name)} and is not there: "
                f"{gone.message}",
                hint="Restore its objects from a copy of the bucket",
            ) from gone

    def _where(self, name: str) -> str:
        return f"{self._store.address}/{name}"
