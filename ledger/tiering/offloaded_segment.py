"""Sealed segment in object storage: the broker's reader of its objects, created at the first read.

An *attempt* is one upload of the segment. A *stamp* is the time and the row number before each entry. A *direct
segment* is a segment whose data object a Spark task has put. Its object has placeholders in the place of the stamps.

Invariants
- All readers of an attempt share one reader of the objects, and so its prefetched data.
- While the local copy exists, a setting says whether the local copy or object storage is preferred. If the preferred
  copy cannot be read now, the read uses the other copy.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from pyspark_ledger.ledger.errors import DataLoss, LedgerError, NotFound, Unavailable, Unsupported
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.segment.provisional_stamps import RealStamps
from pyspark_ledger.ledger.segment.reader import StoredObject
from pyspark_ledger.ledger.tiering.direct_segment import DirectSegment
from pyspark_ledger.ledger.tiering.offloader import LedgerOffloader, OffloadedReader

_log = logging.getLogger(__name__)


def transformed(where: str, found: int, stated: int) -> Unsupported:
    """Return the error for a segment that managedLedgerOffloadTransform of an earlier version has changed."""
    return Unsupported(
        f"{where} has {found} bytes, its record states {stated}: an earlier version transformed it for its upload",
        hint="Read it with that version, and append its rows to another ledger",
    )


class OffloadedSegment:
    """Segment whose offload is complete. Any thread may read it."""

    def __init__(
        self,
        ledger_id: int,
        attempt: OffloadAttempt,
        offloader: Callable[[], LedgerOffloader],
        prefer_remote: Callable[[], bool],
        direct: DirectSegment | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self.attempt = attempt
        self._offloader = offloader
        self._prefer_remote = prefer_remote
        self._direct = direct
        self._lock = threading.Lock()
        self._handle: OffloadedReader | None = None
        self._opened_by: LedgerOffloader | None = None
        self._file_bytes: int | None = None

    def belongs_to(self, index: Callable[[], EntryIndex], file_bytes: int) -> None:
        """Expect the bytes of this segment, whose file has `file_bytes`.

        The index of a direct segment's entries is read from `index`, so that no index object is read.
        """
        self._file_bytes = file_bytes
        if self._direct is not None:
            self._direct = replace(self._direct, index=index)

    @property
    def preferred(self) -> bool:
        """Whether object storage is preferred to the local copy."""
        return self._prefer_remote()

    @property
    def mappable(self) -> bool:
        return not self.attempt.local_deleted and not self.preferred

    def stamps_from(self, entry: int) -> RealStamps | None:
        """Return the stamps that replace the placeholders from `entry` on. None if the object has real stamps."""
        if self._direct is None or not entry:
            return None if self._direct is None else self._direct.stamps
        stamps, index = self._direct.stamps, self._direct.index
        known = self.index(stamps.row_start, self._direct.entries) if index is None else index()
        return stamps._replace(row_start=int(known.row_ends[entry - 1]))

    @property
    def stored(self) -> StoredObject | None:
        return self._offloader().stored_object(self.ledger_id, self.attempt.attempt, self.attempt.driver)

    def index(self, first_row: int, entries: int) -> EntryIndex:
        with self._explained():
            return self._readable().index(first_row, entries)

    def read(self, first_entry: int, entries: int, *, alone: bool = False) -> pa.Buffer:
        """Return the frames (stored bytes) of consecutive entries. With `alone`, no later entries are prefetched."""
        with self._explained():
            return self._readable().read(first_entry, entries, alone=alone)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Name the owner of missing objects in the error, if the original of a copied store wrote them."""
        try:
            yield
        except DataLoss as gone:
            if not (owner := self.attempt.owner):
                raise
            raise DataLoss(
                f"{gone.message}; store {owner}, the original of this copy, wrote it and may have deleted it",
                hint="Restore the object. To let this store own such objects: ledger offload NAME --adopt",
            ) from gone

    def read_with(
        self, local: Callable[[], pa.Buffer], first_entry: int, entries: int, *, alone: bool = False
    ) -> pa.Buffer:
        if self.preferred:
            try:
                return self.read(first_entry, entries, alone=alone)
            except (Unavailable, DataLoss) as error:
                try:
                    frames = local()
                except (LedgerError, OSError):
                    raise error from None
                _log.warning("segment %d is read from its local copy: %s", self.ledger_id, error)
                return frames
        try:
            return local()
        except NotFound:  # the local copy was deleted after the block was located
            return self.read(first_entry, entries, alone=alone)

    def close(self) -> None:
        """Close the reader of the objects. A later read opens a new reader."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    def _readable(self) -> OffloadedReader:
        """Return the reader. Raises Unsupported if an earlier version transformed the segment for its upload."""
        reader = self._opened()
        if self._file_bytes is not None and reader.data_bytes != self._file_bytes:
            raise transformed(f"the data object of segment {self.ledger_id}", reader.data_bytes, self._file_bytes)
        return reader

    def _opened(self) -> OffloadedReader:
        offloader = self._offloader()
        with self._lock:
            if self._handle is None or self._opened_by is not offloader:
                self._opened_by = offloader
                attempt = self.attempt
                self._handle = offloader.read_offloaded(self.ledger_id, attempt.attempt, attempt.driver, self._direct)
            return self._handle
