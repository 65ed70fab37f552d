"""Continuation of an open segment: a new broker of a store in a bucket appends to the segment of the earlier broker.

The new broker builds the segment's file again from the write-ahead log in the bucket, and then appends to the file.

Invariants
- All entries of the file are durable in the log. Bytes after the last entry are removed.
- The sidecar, the small index file beside the segment, is new. It states the last entry as the acknowledged end.
- Blocks, entry ids and offsets continue as if one broker had written the whole segment.
"""

from __future__ import annotations

import os

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.segment.index import AcknowledgedEnd, EntryPlace, IndexFile
from pyspark_ledger.ledger.segment.recovery import RecoveredSegment
from pyspark_ledger.ledger.segment.writer import SegmentDurability, SegmentWriter


def continue_segment(recovered: RecoveredSegment, *, owner: str, durability: SegmentDurability) -> SegmentWriter:
    """Return the writer of a recovered segment that has no sidecar yet.

    `owner` is the id of this creation of the ledger.
    """
    index, path = recovered.index, recovered.path
    fd = disk.open_file(path, writable=True)
    try:
        disk.hold(fd)
        os.ftruncate(fd, recovered.end_offset)
        name = path.with_suffix(".index")
        name.unlink(missing_ok=True)
        file = IndexFile.create(
            name,
            recovered.ledger_id,
            store_id=recovered.store_id,
            block_bytes=recovered.block_bytes,
            first_row=index.first_row,
            owner=owner,
        )
        columns = (index.offsets, index.lengths, index.timestamps, index.row_ends)
        file.append([EntryPlace(*row) for row in zip(*(column.tolist() for column in columns), strict=True)])
        file.acknowledge(AcknowledgedEnd(index.count, recovered.end_offset, index.row_end))
    except BaseException:
        os.close(fd)
        raise
    return SegmentWriter.continued(fd, file, index, recovered.block_bytes, path.parent, durability)
