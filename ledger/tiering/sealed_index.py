"""Index of a sealed segment: the place of each entry in the segment, which is a file of a ledger.

The index is read from the sidecar (the file `<id>.index`). If the sidecar is missing or damaged, it is rebuilt from the
local data file or from object storage, and the rebuild is logged.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from pyspark_ledger.ledger.errors import Corrupt, NotFound
from pyspark_ledger.ledger.message.entry import entry_rows, parse_entry
from pyspark_ledger.ledger.message.run_marker import closes_run, run_id
from pyspark_ledger.ledger.metadata.segment_records import SegmentRecord
from pyspark_ledger.ledger.segment.index import EntryIndex, load_index, write_sealed
from pyspark_ledger.ledger.segment.recovery import EntryTraits
from pyspark_ledger.ledger.segment.verification import load_or_rebuild_index
from pyspark_ledger.ledger.tiering.offloaded_segment import OffloadedSegment

_log = logging.getLogger(__name__)


class SealedIndex:
    """Index of a sealed segment, loaded at the first use and kept in memory."""

    def __init__(
        self,
        path: Path,
        entries: int,
        record: SegmentRecord,
        store_id: str,
        index: EntryIndex | None,
        offloaded: OffloadedSegment | None = None,
    ) -> None:
        self._path = path
        self._entries = entries
        self._record = record
        self._store_id = store_id
        self._index = index
        self._offloaded = offloaded
        self._lock = threading.Lock()
        if offloaded is not None:
            offloaded.belongs_to(self, record.file_bytes)

    def offloaded_to(self, offloaded: OffloadedSegment) -> SealedIndex:
        """Return the index of the same segment after its offload."""
        return SealedIndex(self._path, self._entries, self._record, self._store_id, self._index, offloaded)

    def __call__(self) -> EntryIndex:
        """Return the index. A missing or damaged sidecar is rebuilt from the local data or from object storage."""
        with self._lock:
            record, offloaded = self._record, self._offloaded
            if self._index is None and offloaded is not None and offloaded.attempt.local_deleted:
                self._index = self._without_data(offloaded)
            if self._index is None:
                self._index = load_or_rebuild_index(
                    self._path,
                    record.ledger_id,
                    store_id=self._store_id,
                    entries=self._entries,
                    file_bytes=record.file_bytes,
                    first_row=record.first_row,
                    block_bytes=record.block_bytes,
                    describe=entry_traits,
                )
            return self._index

    def _without_data(self, offloaded: OffloadedSegment) -> EntryIndex:
        """Return the index of a segment whose local data file is deleted."""
        record, sidecar = self._record, self._path.with_suffix(".index")
        try:
            return load_index(sidecar, record.ledger_id, self._entries)
        except NotFound:  # the usual case in the directory of a store in a bucket
            _log.debug("%s is read from object storage", sidecar)
        except Corrupt as error:
            _log.warning("%s is rebuilt from object storage: %s", sidecar, error)
        index = offloaded.index(record.first_row, self._entries)
        write_sealed(
            sidecar, index, store_id=self._store_id, block_bytes=record.block_bytes, file_bytes=record.file_bytes
        )
        return index


def entry_traits(entry: memoryview) -> EntryTraits:
    """Return the values of an entry that recovery and verification need. Raises Corrupt for a wrong checksum."""
    parsed = parse_entry(entry, "an entry")
    run = run_id(parsed.metadata)
    txn = None if run is None else (run.most, run.least)
    return EntryTraits(entry_rows(parsed.metadata), txn, closes_run(parsed.metadata), parsed.stamp)
