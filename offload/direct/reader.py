"""Reader of a direct segment, which fetches ranges of its data object and writes the real stamps into the copies.

A *stamp* is the time and the row number that the broker gives an entry. A *direct segment* is a segment whose data
object a Spark task has put. The stamps in this object are provisional (`ledger.segment.provisional_stamps`).

Invariants
- Nothing is fetched before the first read.
- No caller gets a provisional stamp.
- The reader gets the entries' offsets from its caller, or from the entry index object. The broker puts this object
  after the commit. If the object is missing, the reader reads the whole data object instead.
- The reader never reads the block index.
- A missing data object raises DataLoss, because the segment's record refers to it.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa

from pyspark_ledger.ledger.errors import Corrupt, DataLoss, NotFound, Refused, Unsupported
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.segment.format import FRAME_BYTES, HEADER_BYTES
from pyspark_ledger.ledger.segment.index import EntryIndex, parse_sealed
from pyspark_ledger.ledger.segment.object_names import VERSION, VERSION_KEY, ObjectKey
from pyspark_ledger.ledger.segment.provisional_stamps import with_index
from pyspark_ledger.ledger.tiering.direct_segment import DirectSegment
from pyspark_ledger.offload.direct.data_object import scan_object
from pyspark_ledger.offload.reader import contiguous, entry_index_bytes
from pyspark_ledger.offload.window_cache import WindowCache, WindowedObject


class DirectSegmentReader:
    """Reader of one direct segment. Thread-safe."""

    def __init__(self, store: ObjectStore, key: ObjectKey, windows: WindowCache, segment: DirectSegment) -> None:
        self._store = store
        self._key = key
        self._windows = windows
        self._segment = segment
        self._where = f"{store.address}/{key.data_name}"
        self._lock = threading.RLock()
        self._data: WindowedObject | None = None
        self._index: EntryIndex | None = None

    @property
    def ledger_id(self) -> int:
        return self._key.ledger_id

    @property
    def data_bytes(self) -> int:
        return self._segment.file_bytes

    def index(self, first_row: int, entries: int) -> EntryIndex:
        """Return the index of the entries, from the entry index object or from the data object.

        Raises Corrupt if the arguments or the object differ from the segment's record.
        """
        found, stated = (first_row, entries), (self._segment.stamps.row_start, self._segment.entries)
        if found != stated:
            raise Corrupt(f"{self._where}: first row and entries {found} were requested, the record states {stated}")
        with self._lock:
            if self._index is None:
                self._index = self._load_index()
            return self._index

    def read(self, first_entry: int, entries: int, *, alone: bool = False) -> pa.Buffer:
        segment, last = self._segment, first_entry + entries - 1
        if not (0 <= first_entry <= last < segment.entries):
            raise Refused(
                f"entries {first_entry} to {last} of segment {self.ledger_id} were requested, "
                f"it has 0 to {segment.entries - 1}"
            )
        index = segment.index() if segment.index else self.index(segment.stamps.row_start, segment.entries)
        source = self._open()
        try:
            pieces = [self._windows.read(source, *at, alone=alone) for at in _byte_ranges(index, first_entry, last)]
        except NotFound as gone:
            raise self._missing(gone) from gone
        frames = pieces[0] if len(pieces) == 1 else b"".join(map(memoryview, pieces))
        return with_index(frames, first_entry, entries, index, self._where)

    def close(self) -> None:
        with self._lock:
            if self._data is not None:
                self._windows.evict(self._data)

    def _open(self) -> WindowedObject:
        """Return the data object. Raises Corrupt or Unsupported if it is not the object of the record."""
        with self._lock:
            if self._data is None:
                try:
                    head = self._store.head(self._key.data_name)
                except NotFound as gone:
                    raise self._missing(gone) from gone
                version = head.metadata.get(VERSION_KEY, "")
                if version != VERSION:
                    raise Unsupported(
                        f"{self._where} states format version {version or 'none'!r}, this code reads {VERSION!r}"
                    )
                if head.size != self._segment.file_bytes:
                    raise Corrupt(
                        f"{self._where} has {head.size} bytes, the record of segment {self.ledger_id} states "
                        f"{self._segment.file_bytes}"
                    )
                self._data = WindowedObject(self._store, self._key.data_name, head.size, HEADER_BYTES)
            return self._data

    def _load_index(self) -> EntryIndex:
        segment, name = self._segment, self._key.entries_name
        try:
            data = self._store.get(name, entry_index_bytes(segment.entries)).data
        except NotFound:
            self._open()
            return scan_object(self._store, self._key, segment)
        where = f"{self._store.address}/{name}"
        index = parse_sealed(data, Path(where), self.ledger_id, segment.entries)
        found = (index.first_row, index.end_offset(index.count - 1), {*index.timestamps.tolist()})
        stated = (segment.stamps.row_start, segment.file_bytes, {segment.stamps.time_ms})
        if found != stated:
            raise Corrupt(f"{where} states first row, end and times {found}, the record of the segment {stated}")
        return index

    def _missing(self, gone: NotFound) -> DataLoss:
        return DataLoss(
            f"segment {self.ledger_id} is {self._where}, and the object is missing: {gone.message}",
            hint="Restore the segment's objects from a copy of the bucket",
        )


def _byte_ranges(index: EntryIndex, first: int, last: int) -> list[tuple[int, int]]:
    """Return offset and length of each contiguous range of frames of the entries `first` to `last`."""
    starts = index.offsets[first : last + 1]
    return contiguous(starts, starts + index.lengths[first : last + 1] + FRAME_BYTES)
