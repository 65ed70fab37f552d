"""Newest committed batch of each query in one managed ledger. The next change of the log's metadata saves new batches.

Rules
- Until the metadata have a batch, recovery finds the batch by its marker in the segment file. A *marker* is the entry
  that ends the run of a batch.
- The newest batch of a streaming query never expires. The batch of a batch write (`once`) expires at the age at which
  staged files (the rows of its tasks) are deleted. Reason: without these files, no client can commit the batch again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import takewhile

import numpy as np

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.message.entry import parse_entry
from pyspark_ledger.ledger.message.run_marker import CommittedBatch, closes_run, marker_summary
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.segment.format import FRAME_BYTES
from pyspark_ledger.ledger.segment.recovery import RecoveredSegment


class CommittedBatches:
    """Committed batches in memory. The metadata may lack the newest of them."""

    def __init__(self, saved: Iterable[CommittedBatch]) -> None:
        self._newest = {batch.query: batch for batch in saved}
        once = (batch for batch in self._newest.values() if batch.once)
        self._once = deque(sorted(once, key=lambda batch: batch.committed_ms))
        self._unsaved: dict[str, CommittedBatch] = {}

    def get(self, query: str) -> CommittedBatch | None:
        """Return the newest batch of a query."""
        return self._newest.get(query)

    def all(self) -> list[CommittedBatch]:
        """Return the newest batches of all queries."""
        return list(self._newest.values())

    def add(self, batch: CommittedBatch) -> None:
        """Add a batch that is committed."""
        self._newest[batch.query] = batch
        if batch.once:
            self._once.append(batch)

    def save_next(self, batch: CommittedBatch) -> None:
        """Let the next change of the metadata save a batch."""
        self._unsaved[batch.query] = batch

    def unsaved(self) -> list[CommittedBatch]:
        """Return the batches that the next change of the metadata saves."""
        return list(self._unsaved.values())

    def expired(self, before_ms: int) -> list[str]:
        """Return the queries whose newest batch is of a batch write, and was committed before `before_ms`."""
        over = takewhile(lambda batch: batch.committed_ms < before_ms, self._once)
        return [batch.query for batch in over if self._newest.get(batch.query) is batch]

    def saved(self, before_ms: int) -> None:
        """Record that the metadata has the unsaved batches, and lacks the queries that `expired` returned."""
        self._unsaved.clear()
        for query in self.expired(before_ms):
            del self._newest[query]
        while self._once and self._once[0].committed_ms < before_ms:
            self._once.popleft()


def recovered_batches(recovered: RecoveredSegment, now_ms: int) -> list[CommittedBatch]:
    """Return the batches whose markers are in a recovered segment, oldest first."""
    index, found = recovered.index, []
    starts = np.concatenate(([index.first_row], index.row_ends[:-1])) if index.count else np.empty(0)
    for entry_id in np.flatnonzero(index.row_ends == starts).tolist():
        where = f"{recovered.path} entry {entry_id}"
        metadata = parse_entry(_entry_at(recovered, entry_id), where).metadata
        run = marker_summary(metadata, where) if closes_run(metadata) else None
        if run is not None:
            first = Position(recovered.ledger_id, entry_id - run.entries)
            end = Position(recovered.ledger_id, entry_id + 1)
            found.append(
                CommittedBatch(run.query, run.batch, first, end, run.entries, run.rows, now_ms, False, run.origin)
            )
    return found


def _entry_at(recovered: RecoveredSegment, entry_id: int) -> bytes:
    index = recovered.index
    with disk.opened(recovered.path) as fd:
        return disk.read_exact(fd, int(index.lengths[entry_id]), int(index.offsets[entry_id]) + FRAME_BYTES)
