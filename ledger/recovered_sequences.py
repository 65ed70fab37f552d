"""Sequence ids of a segment that recovery has just accepted.

Recovery trusts the heads of acknowledged entries and leaves their checksums to readers. Sequence ids decide which later
appends are duplicates, so the checksum of every entry is verified here.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from ledger import disk
from ledger.deduplication import EntrySequence, entry_sequence
from ledger.entry import parse_entry
from ledger.segment_format import FRAME_BYTES
from ledger.segment_index import EntryIndex


def sequences_in(path: Path, index: EntryIndex) -> Iterator[EntrySequence | None]:
    """Yield the sequence ids of every entry of the index, in order; raises Corrupt naming file, offset and values."""
    if not index.count:
        return
    end = index.end_offset(index.count - 1)
    with disk.opened(path) as fd, mmap.mmap(fd, int(end), prot=mmap.PROT_READ) as data:
        for entry_id, (offset, length) in enumerate(zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)):
            where = f"{path} at {offset}: entry {entry_id}"
            begin = offset + FRAME_BYTES
            # A copy: a view in the traceback of an error would keep the file mapped.
            yield entry_sequence(parse_entry(data[begin : begin + length], where).metadata, where)
