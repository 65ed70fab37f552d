"""Promotion of staged parts: the files of a large batch become segments of the log, without a copy.

A *staged part* is the file that one Spark task wrote for one ledger. A *stamp* before each entry has the time at which
the broker stored the entry, and its row number. A *marker* is the last entry of a batch in a ledger. The *sidecar* is
the index file `<id>.index` beside a segment. A *link* gives a file a second name (a hard link). A large part
has *segment layout*: the bytes of a segment file, with space for the stamps.

    part ─▶ stamps ─▶ sync ─▶ sidecar ─▶ link <id>.ledger ─▶ sync of the directory ─▶ list (commit)

The task has synced its part already. So the sync here writes only the stamps. To *list* a segment is to
record it in the metadata.

Invariants
- Only the stamps of a part ever change. If a commit is repeated after a crash, it writes all stamps again.
- The broker locks a part before it writes the stamps, and keeps the lock until the segment is listed. A part that
  another broker has locked is copied instead. A part whose file has a second name is also copied, because it may be a
  segment already. Reason for both: a suspended broker may continue after it has lost the store. It then never changes
  a listed segment.
- One metadata transaction lists all segments of a batch, in the order of the parts. After a crash before this
  transaction, no record lists the new segment files. The next start deletes these names, and the parts keep their names
  in the staging directory.
- The caller deletes the names in the staging directory after the commit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.log.pending import CheckedEntry, PendingRun
from pyspark_ledger.ledger.log.staging.direct_run import DirectRun
from pyspark_ledger.ledger.log.staging.opened_part import OpenedPart
from pyspark_ledger.ledger.message.entry import WIDE_STAMP_BYTES, BrokerStamp, wide_stamp
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.segment.format import FRAME_BYTES
from pyspark_ledger.ledger.segment.index import (
    AcknowledgedEnd,
    EntryIndex,
    acknowledge_sealed,
    create_sealed,
    make_rows,
    write_sealed,
)
from pyspark_ledger.ledger.segment.provisional_stamps import RealStamps, direct_index
from pyspark_ledger.ledger.segment.writer import data_path, index_path


class SegmentPlace(NamedTuple):
    """Directory of the segments, and the values that a sidecar states: store id, incarnation of the ledger."""

    directory: Path
    store_id: str
    owner: str


@dataclass(frozen=True, slots=True)
class PromotedSegment:
    """Part that becomes a segment. `index` contains its entries and the marker.

    `attempt` is set for a direct segment: the part is a data object in the bucket, and has no local file.
    """

    index: EntryIndex
    block_bytes: int
    file_bytes: int
    attempt: OffloadAttempt | None = None

    @property
    def end(self) -> AcknowledgedEnd:
        """The end of the segment, as its sidecar states it after the commit."""
        return AcknowledgedEnd(self.index.count, self.file_bytes, self.index.row_end)


class NotPromotableError(OSError):
    """Error for a part that another process has locked, or that has a second name. The part must be copied instead."""


def link_segments(
    run: PendingRun, ledger_ids: Sequence[int], place: SegmentPlace, before: BrokerStamp, locks: ExitStack
) -> list[PromotedSegment]:
    """Stamp, sync and link the parts of a run. On return all of them are durable, and no ledger lists them yet.

    The new stamps start at `before`: the number of rows that are in the log, and the time for the new entries. The
    locks of the parts are held until `locks` is closed.
    """
    segments, entries, row_end = [], iter(run.entries), before.row_end
    for ledger_id, part in zip(ledger_ids, run.parts, strict=True):
        fd = locks.enter_context(disk.opened(part.path, writable=True))
        _take(fd, part.path)
        index = EntryIndex(ledger_id, row_end)
        _stamp(fd, part, list(islice(entries, len(part.entries))), BrokerStamp(before.timestamp_ms, row_end), index)
        disk.sync_data(fd)
        segment = PromotedSegment(index, part.part.block_bytes, part.part.length)
        create_sealed(
            index_path(place.directory, ledger_id),
            index,
            store_id=place.store_id,
            block_bytes=segment.block_bytes,
            file_bytes=segment.file_bytes,
            owner=place.owner,
        )
        os.link(part.path, data_path(place.directory, ledger_id), follow_symlinks=False)
        segments.append(segment)
        row_end = index.row_end
    disk.sync_directory(place.directory)
    return segments


def direct_segments(run: DirectRun, place: SegmentPlace, before: BrokerStamp) -> list[PromotedSegment]:
    """Return the segments of a run, and write their sidecars, the index files that a local reader loads.

    The new stamps start at `before`: the number of rows that are in the log, and the time for the new entries. Raises
    Corrupt if an object does not have the size that its entries need.
    """
    segments, row_end = [], before.row_end
    for part in run.segments:
        stamps = RealStamps(before.timestamp_ms, row_end)
        layout = direct_index(part.ledger_id, stamps, part.block_bytes, part.lengths, part.rows)
        index, file_bytes = layout.index, layout.file_bytes
        if file_bytes != part.size:
            raise Corrupt(
                f"the data object of segment {part.ledger_id}, attempt {part.attempt}, has {part.size} bytes, its "
                f"{part.entries} entries and their marker need {file_bytes}",
                hint="Run the batch again",
            )
        attempt = OffloadAttempt.direct(part.attempt, run.driver, before.timestamp_ms)
        segments.append(PromotedSegment(index, part.block_bytes, file_bytes, attempt))
        path = index_path(place.directory, part.ledger_id)
        write_sealed(path, index, store_id=place.store_id, block_bytes=part.block_bytes, file_bytes=file_bytes)
        row_end = index.row_end
    return segments


def acknowledge_segments(segments: Sequence[PromotedSegment], directory: Path) -> None:
    """Write the acknowledged end of listed segments to their sidecars, without a sync."""
    for segment in segments:
        acknowledge_sealed(index_path(directory, segment.index.ledger_id), segment.end)


def _take(fd: int, path: Path) -> None:
    """Lock a part, so that only this process may change its stamps. Raises NotPromotableError if this fails."""
    try:
        disk.hold(fd)
    except BlockingIOError:
        raise NotPromotableError(f"staged part {path} is locked by another broker") from None
    names = os.fstat(fd).st_nlink
    if names != 1:
        raise NotPromotableError(f"staged part {path} has {names} names, expected 1")


def _stamp(fd: int, part: OpenedPart, entries: Sequence[CheckedEntry], before: BrokerStamp, index: EntryIndex) -> None:
    """Write the stamp of each entry and of the marker, and fill the index."""
    assert part.marker is not None  # noqa: S101 — only parts in segment layout are promoted
    sizes = [*(entry.size for entry in entries), len(part.marker)]
    row_ends = before.row_end + np.cumsum([*(entry.rows for entry in entries), 0])
    if row_ends[0] < 1:
        raise NotPromotableError(f"staged part {part.path} begins with an entry without rows, before the first row")
    for offset, row_end in zip(part.offsets, row_ends.tolist(), strict=True):
        stamp = wide_stamp(BrokerStamp(before.timestamp_ms, row_end))
        disk.write_all(fd, [stamp], offset + FRAME_BYTES, part.path, WIDE_STAMP_BYTES)
    offsets = np.array(part.offsets, dtype=np.int64)
    lengths = np.array(sizes, dtype=np.int64) + WIDE_STAMP_BYTES
    index.extend(make_rows(offsets, lengths, np.full(len(sizes), before.timestamp_ms), row_ends))
