"""Direct segment: the values of its record that a reader of its data object needs.

A direct segment is a segment whose data object (its bytes in the bucket) was put by a Spark task. A *stamp* is the time
and the row number before each entry. The object has only placeholders for them. A reader computes the real stamps and
the layout of the object from the record and the entries. So it needs no index object.
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
    """Function that returns the index of the entries. Without it, a reader takes the index from the objects."""

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
