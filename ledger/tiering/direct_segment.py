"""Direct segment: the values of its record that a reader of its data object needs.

A direct segment is a segment whose data object a task of a sink has put. A reader needs no index object for it. The
layout of the object and the real stamps follow from the record and the entries.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.metadata.segment_records import SegmentRecord
from pyspark_ledger.ledger.segment.provisional_stamps import RealStamps


class DirectSegment(NamedTuple):
    """Stamps, number of entries and layout of a direct segment. `file_bytes` is the length of its data object."""

    stamps: RealStamps
    entries: int
    block_bytes: int
    file_bytes: int

    @classmethod
    def of(cls, record: SegmentRecord) -> Self | None:
        """Return the direct segment of a record. None for any other segment."""
        listed = record.listed()
        attempt = OffloadAttempt.of(listed)
        time_ms = None if attempt is None else attempt.stamp_time_ms
        if time_ms is None:
            return None
        return cls(RealStamps(time_ms, record.first_row), listed.entries, record.block_bytes, record.file_bytes)
