"""Direct segment: the values of its record that a reader of its data object needs.

A direct segment is a segment whose data object (its bytes in the bucket) was put by a Spark task. A reader needs no
index object for it. The layout of the object and the real stamps (time and row number before each entry) follow from
the record and the entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.metadata.segment_records import SegmentRecord
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.segment.provisional_stamps import RealStamps


@dataclass(frozen=True, slots=True)
class DirectSegment:
    """Stamps, number of entries and layout of a direct segment. `file_bytes` is the length of its data object."""

    stamps: RealStamps
    entries: int
    block_bytes: int
    file_bytes: int
    indexed: bool
    """Whether the index objects are in the bucket."""
    index: Callable[[], EntryIndex] | None = None
    """Function that returns the index, if the caller has it. Otherwise a reader takes the index from the objects."""

    @classmethod
    def of(cls, record: SegmentRecord) -> Self | None:
        """Return the direct segment of a record, or None for any other segment."""
        listed = record.listed()
        attempt = OffloadAttempt.of(listed)
        if attempt is None or attempt.stamp_time_ms is None:
            return None
        return cls(
            RealStamps(attempt.stamp_time_ms, record.first_row),
            listed.entries,
            record.block_bytes,
            record.file_bytes,
            not attempt.lacks_indexes,
        )
