"""Records of segments, as a change of the segment list writes them to the metadata."""

from __future__ import annotations

from dataclasses import replace

from pyspark_ledger.ledger.log.segments.log_segments import LogSegment, row_entries
from pyspark_ledger.ledger.log.staging.promotion import PromotedSegment
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.metadata.segment_records import LedgerInfo, SegmentRecord
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.segment.writer import SealedSegment
from pyspark_ledger.ledger.tiering.direct_segment import DirectSegment
from pyspark_ledger.ledger.tiering.offloader import LocalSegment


def sealed_record(
    ledger_id: int, sealed: SealedSegment, index: EntryIndex, block_bytes: int, created_ms: int, now_ms: int
) -> SegmentRecord:
    """Return the record of a segment that was sealed at `now_ms`, with the entries of `sealed`."""
    listed = LedgerInfo(ledgerId=ledger_id, entries=sealed.entries, size=sealed.size_bytes, timestamp=now_ms)
    return SegmentRecord(
        ledger_id,
        block_bytes,
        index.first_row,
        sealed.row_end - index.first_row,
        sealed.file_bytes,
        created_ms,
        row_entries(index, 0, sealed.entries, index.first_row),
        listed.SerializeToString(),
    )


def promoted_record(segment: PromotedSegment, now_ms: int) -> SegmentRecord:
    """Return the record of a staged part, or of a data object in the bucket, that becomes a segment at `now_ms`."""
    index = segment.index
    listed = LedgerInfo(ledgerId=index.ledger_id, entries=index.count, size=index.size_bytes, timestamp=now_ms)
    if segment.attempt is not None:
        segment.attempt.put(listed)
    return SegmentRecord(
        index.ledger_id,
        segment.block_bytes,
        index.first_row,
        index.row_end - index.first_row,
        segment.file_bytes,
        now_ms,
        row_entries(index, 0, index.count, index.first_row),
        listed.SerializeToString(),
    )


def with_attempt(record: SegmentRecord, attempt: OffloadAttempt) -> SegmentRecord:
    """Return a record with another offload attempt."""
    listed = record.listed()
    attempt.put(listed)
    return replace(record, info=listed.SerializeToString())


def local_segment(name: str, record: SegmentRecord, segment: LogSegment) -> LocalSegment:
    """Return the values that an offloader needs to copy a segment of the ledger `name`."""
    return LocalSegment(
        name,
        record.ledger_id,
        segment.entries,
        segment.size_bytes,
        record.file_bytes,
        record.block_bytes,
        record.created_ms,
        segment.path,
        segment.index,
        direct=DirectSegment.of(record),
    )
