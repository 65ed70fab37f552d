"""Data object of a direct segment: finds its entries without an index object, and stamps a copy of its bytes.

A *stamp* is the time and the row number that the broker gives an entry. A *direct segment* is a segment whose data
object a Spark task has put. The stamps in this object are provisional (`ledger.segment.provisional_stamps`).

Rules
- Every header, frame, provisional stamp, padding byte and checksum is verified. Damage raises Corrupt, which names the
  object and the place.
- The lengths of the entries determine the layout of the object. A different layout raises Corrupt, too.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.entry import WIDE_STAMP_BYTES, entry_rows, parse_entry
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.objects.prefetch import ObjectRange, RangePrefetcher
from pyspark_ledger.ledger.segment.format import FRAME_BYTES, HEADER_BYTES, parse_header
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.segment.provisional_stamps import direct_index, put_stamps, require_provisional
from pyspark_ledger.ledger.segment.reader import WalkedFrame, walk_block
from pyspark_ledger.ledger.tiering.direct_segment import DirectSegment


def scan_object(store: ObjectStore, key: ObjectKey, segment: DirectSegment) -> EntryIndex:
    """Return the index of a direct segment, from a read of its whole data object."""
    where = f"{store.address}/{key.data_name}"
    starts = range(0, segment.file_bytes, segment.block_bytes)
    ends = [min(start + segment.block_bytes, segment.file_bytes) for start in starts]
    ranges = [ObjectRange(key.data_name, start, end) for start, end in zip(starts, ends, strict=True)]
    with RangePrefetcher(store, ranges) as prefetcher:
        blocks = (memoryview(b"".join(map(memoryview, prefetcher.pieces(number)))) for number in range(len(ranges)))
        return _index_of(blocks, key.ledger_id, segment, where)


def stamp_file(path: Path, ledger_id: int, segment: DirectSegment, where: str) -> None:
    """Replace the provisional stamps in a file with the bytes of a data object. The file is not synced.

    `where` names the object in errors.
    """
    with disk.opened(path, writable=True) as fd:
        data = memoryview(mmap.mmap(fd, os.fstat(fd).st_size))
        starts = range(0, len(data), segment.block_bytes)
        blocks = (data[start : start + segment.block_bytes] for start in starts)
        index = _index_of(blocks, ledger_id, segment, where)
        put_stamps(data, index.offsets + FRAME_BYTES, segment.stamps.time_ms, index.row_ends, where)


def _block_frames(block: memoryview, start: int, first_entry: int, where: str) -> Iterator[WalkedFrame]:
    """Yield the frames of one block, which starts at `start` of the object. Offsets are those in the object."""
    header = parse_header(block[:HEADER_BYTES], f"{where} at {start}")
    if (header.block_bytes, header.first_entry) != (len(block), first_entry):
        raise Corrupt(
            f"{where} at {start}: block of {header.block_bytes} bytes with first entry {header.first_entry}, "
            f"expected {len(block)} bytes and entry {first_entry}"
        )
    for frame in walk_block(block, HEADER_BYTES, len(block), first_entry, f"{where}, block at {start},"):
        yield frame._replace(offset=start + frame.offset)


def _rows(frame: WalkedFrame, ledger_id: int, where: str) -> int:
    """Return the rows of an entry. Raises Corrupt for a stamp that is not provisional, or for a wrong checksum."""
    require_provisional(frame.entry, f"{where} at {frame.offset}: entry {frame.entry_id}")
    entry = parse_entry(frame.entry, f"entry {ledger_id}:{frame.entry_id} in {where} at {frame.offset}")
    return entry_rows(entry.metadata)


def _index_of(blocks: Iterable[memoryview], ledger_id: int, segment: DirectSegment, where: str) -> EntryIndex:
    """Return the index of the entries in the blocks of a data object."""
    sizes: list[int] = []
    rows: list[int] = []
    for number, block in enumerate(blocks):
        for frame in _block_frames(block, number * segment.block_bytes, len(sizes), where):
            sizes.append(len(frame.entry) - WIDE_STAMP_BYTES)
            rows.append(_rows(frame, ledger_id, where))
    if len(sizes) != segment.entries:
        raise Corrupt(f"{where} has {len(sizes)} entries, the record of segment {ledger_id} states {segment.entries}")
    columns = (np.array(column, dtype=np.int64) for column in (sizes, rows))
    layout = direct_index(ledger_id, segment.stamps, segment.block_bytes, *columns)
    if layout.file_bytes != segment.file_bytes:
        raise Corrupt(f"{where}: its entries end at {layout.file_bytes}, the record states {segment.file_bytes} bytes")
    return layout.index
