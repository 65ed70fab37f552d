"""Verification of a sealed segment against its metadata, byte by byte, and rebuild of its sidecar.

An entry is *sound* if all its bytes have the expected values. A *block* is a part of the file with whole entries.

The sidecar is the file `<id>.index` beside the segment, with the place of each entry. A frame is an entry with its
length and id. A stamp precedes each entry: the time at which the broker wrote it, and the number of rows up to its end.
A block begins with a *header*, its length and first entry id. It may end with *padding*, fixed bytes that fill it.

Rules
- A sealed segment is never changed. A disagreement raises `Corrupt` with file, offset, the expected and the found
  value.
- A missing or damaged sidecar is rebuilt from the data. The rebuild is logged.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.checksum import crc32c_of_ranges
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, LedgerError, NotFound
from pyspark_ledger.ledger.message.entry import BrokerStamp
from pyspark_ledger.ledger.segment.entry_heads import agreeing
from pyspark_ledger.ledger.segment.format import FRAME_BYTES, HEADER_BYTES, parse_header
from pyspark_ledger.ledger.segment.index import EntryIndex, Rows, load_index, make_rows, write_sealed
from pyspark_ledger.ledger.segment.reader import padding_fault, walk_segment
from pyspark_ledger.ledger.segment.scan import Describe, checked_traits

_log = logging.getLogger(__name__)


def verify_segment(
    path: Path,
    ledger_id: int,
    *,
    entries: int,
    file_bytes: int,
    first_row: int,
    describe: Describe,
    index: EntryIndex | None = None,
    progress: Callable[[int], object] | None = None,
) -> EntryIndex:
    """Verify every byte of a sealed segment, and compare `index` if it is passed. Return the index of the data.

    With an index, the function compares the frames and stamps of many entries at once with this index. It checks the
    header and padding of each block, and the checksum of each entry. After a disagreement, the segment is read entry
    by entry, to name the fault. `progress` is called with the number of sound entries since its last call.
    """
    view = _mapped(path, file_bytes)
    reported = 0

    def report(more: int) -> None:
        nonlocal reported
        reported += more
        if progress is not None:
            progress(more)

    if index is not None and index.first_row == first_row and _agrees(view, index, entries, report):
        return index
    found: list[tuple[int, int, int, int]] = []
    stamp = BrokerStamp(0, first_row)
    for entry_id, offset, entry in walk_segment(view, ledger_id, where=str(path), entries=entries):
        try:
            traits = checked_traits(entry, describe, stamp)
        except Corrupt as error:
            raise Corrupt(f"{path} at {offset}: entry {entry_id}: {error.message}") from error
        stamp = traits.stamp or stamp
        found.append((offset, len(entry), stamp.timestamp_ms, stamp.row_end))
    columns = np.array(found, dtype=np.int64).reshape(-1, 4).T
    walked = EntryIndex.of_rows(ledger_id, first_row, make_rows(columns[0], columns[1], columns[2], columns[3]))
    if index is not None:
        _require_same(path, walked, index)
    report(walked.count - reported)
    return walked


def load_or_rebuild_index(
    path: Path,
    ledger_id: int,
    *,
    store_id: str,
    entries: int,
    file_bytes: int,
    first_row: int,
    block_bytes: int,
    describe: Describe,
) -> EntryIndex:
    """Return the index of a sealed segment. Rebuild a missing or damaged sidecar from the data, and log the rebuild."""
    sidecar = path.with_suffix(".index")
    try:
        return _loaded(sidecar, ledger_id, entries, first_row)
    except (NotFound, Corrupt) as error:
        _log.warning("%s is rebuilt from %s: %s", sidecar, path, error)
    index = verify_segment(
        path, ledger_id, entries=entries, file_bytes=file_bytes, first_row=first_row, describe=describe
    )
    write_sealed(sidecar, index, store_id=store_id, block_bytes=block_bytes, file_bytes=file_bytes)
    return index


def _agrees(view: memoryview, index: EntryIndex, entries: int, report: Callable[[int], object]) -> bool:
    """Return whether a segment agrees with its index in every byte."""
    rows, start, first, stamp = index.rows(), 0, 0, BrokerStamp(0, index.first_row)
    while start < len(view):
        try:
            header = parse_header(view[start : start + HEADER_BYTES], "block")
        except LedgerError:
            return False
        end = start + header.block_bytes
        last = int(np.searchsorted(index.offsets, end))
        block_rows = rows[first:last]
        if header.first_entry != first or end > len(view) or not len(block_rows):
            return False
        agreeing_rows = agreeing(view, start, end, block_rows, first, stamp)
        if agreeing_rows < len(block_rows) or not _checksums_agree(view, block_rows):
            return False
        stamp = BrokerStamp(int(block_rows[-1]["timestamp"]), int(block_rows[-1]["row_end"]))
        if padding_fault(view[index.end_offset(last - 1) : end]):
            return False
        report(len(block_rows))
        start, first = end, last
    return first == index.count == entries


def _checksums_agree(view: memoryview, rows: Rows) -> bool:
    """Return whether every entry has the checksum that it states."""
    data = np.frombuffer(view, dtype=np.uint8)
    offsets = rows["offset"].astype(np.int64) + FRAME_BYTES
    ends = offsets + rows["length"]
    sizes = data[offsets[:, None] + np.arange(2, 6)].astype(np.int64)
    sums = offsets + 6 + (sizes @ np.array([1 << 24, 1 << 16, 1 << 8, 1])) + 2  # after the stamp and two fixed bytes
    stated = np.ascontiguousarray(data[sums[:, None] + np.arange(4)]).view(">u4")[:, 0]
    found = crc32c_of_ranges(data, (sums + 4).tolist(), ends.tolist())
    return bool((np.fromiter(found, np.uint32, len(rows)) == stated).all())


def _loaded(sidecar: Path, ledger_id: int, entries: int, first_row: int) -> EntryIndex:
    index = load_index(sidecar, ledger_id, entries)
    if index.first_row != first_row:
        raise Corrupt(f"{sidecar}: first row is {index.first_row}, the metadata state {first_row}")
    return index


def _mapped(path: Path, file_bytes: int) -> memoryview:
    try:
        fd = disk.open_file(path)
    except NotFound:
        raise DataLoss(f"{path} of {file_bytes} bytes is missing", hint="Restore it from a copy of the store") from None
    try:
        size = os.fstat(fd).st_size
        if size != file_bytes:
            raise Corrupt(f"{path} has {size} bytes, the metadata state {file_bytes}")
        return memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ))
    finally:
        os.close(fd)


def _require_same(path: Path, walked: EntryIndex, index: EntryIndex) -> None:
    found, stated = walked.rows(), index.rows()
    if len(found) != len(stated):
        raise Corrupt(f"{path}: has {len(found)} entries, its sidecar has {len(stated)}")
    wrong = np.flatnonzero(found != stated)
    if len(wrong):
        entry = int(wrong[0])
        raise Corrupt(
            f"{path} at {int(found[entry]['offset'])}: entry {entry} is (offset, length, check, time, row) "
            f"{found[entry].item()}, the sidecar states {stated[entry].item()}"
        )
