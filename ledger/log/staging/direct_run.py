"""Batch whose Spark tasks have put their rows into the bucket: each *data object* becomes a segment of the log.

    objects ─▶ ids above all ids of the log? ─ yes ─▶ list (commit) ─▶ index objects
                              └─ no ─▶ copies under new ids, within the bucket ─┘

A *run* is the entries of the batch in one ledger. Its last entry is the marker. An *attempt* is the id of one upload.
An *index object* states where the entries are in the data object.

A task puts its object under a key with a segment id, which the broker has reserved. The ids of a log rise. So an object
keeps its id only if its log has listed no higher id since the reservation. Otherwise the object is copied.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.metadata.offload_records import Driver
from pyspark_ledger.ledger.segment.index import Integers


@dataclass(frozen=True, slots=True)
class StagedObject:
    """Data object that becomes a segment.

    `lengths` and `rows` have a number for each entry, and for the marker at the end.

    `reserved` is set if this broker has reserved the id for this batch and ledger.
    """

    attempt: uuid.UUID
    ledger_id: int
    block_bytes: int
    size: int
    lengths: Integers
    rows: Integers
    reserved: bool

    @property
    def entries(self) -> int:
        """The number of entries without the marker."""
        return len(self.lengths) - 1


class ObjectsBehind(Unavailable):
    """The log has listed a higher segment id than a new batch. The objects must be copied, and committed again."""


@dataclass(frozen=True, slots=True)
class DirectRun:
    """Segments of a batch in one ledger, in order.

    `copy` copies objects under consecutive ids above all ids of the store, with new attempts. `copies` is the number of
    segments that are copies.
    """

    segments: Sequence[StagedObject]
    driver: Driver
    copy: Callable[[Sequence[StagedObject]], list[StagedObject]]
    copies: int = 0

    @property
    def entries(self) -> int:
        return sum(segment.entries for segment in self.segments)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    def follows(self, highest: int) -> bool:
        """Return whether the segments can be listed under their ids, in a log whose highest id was `highest`."""
        ids = [highest, *(segment.ledger_id for segment in self.segments)]
        return all(segment.reserved for segment in self.segments) and all(a < b for a, b in pairwise(ids))

    def copied(self) -> DirectRun:
        """Return the run with copies of its objects under new ids."""
        return replace(self, segments=self.copy(self.segments), copies=len(self.segments))
