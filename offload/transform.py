"""Transformation of a sealed segment before its offload: a user's function changes every entry in a copy of the file.

The page docs/concepts.md explains the words segment, entry and block.

Rules
- Each entry becomes one entry, in the same order, so entry ids do not change.
- An entry must not become empty, or too large for a block.
- The time at which the broker stored an entry, and the row count of the entry, do not change.
- The copy is a file beside the segment file. It is deleted after the offload.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.segment.format import FRAME, HEADER_BYTES, BlockHeader, entry_bytes_max, pack_header, padding
from pyspark_ledger.ledger.segment.index import EntryIndex, make_rows
from pyspark_ledger.ledger.segment.reader import walk_segment
from pyspark_ledger.ledger.tiering.offloader import LocalSegment

Transform = Callable[[memoryview], Buffer]


@contextmanager
def transformed(ledger: LocalSegment, transform: Transform) -> Iterator[LocalSegment]:
    """Yield a copy of the segment in which every entry is transformed. It is deleted when the context ends."""
    path = ledger.path.with_suffix(".transformed")
    path.unlink(missing_ok=True)
    try:
        with os.fdopen(disk.create_file(path), "wb") as file:
            index, size = _write(ledger, transform, file)
        sizes = replace(ledger, path=path, size_bytes=index.size_bytes, file_bytes=size, index=lambda: index)
        yield sizes
    finally:
        path.unlink(missing_ok=True)


def _write(ledger: LocalSegment, transform: Transform, file: BinaryIO) -> tuple[EntryIndex, int]:
    most, before = entry_bytes_max(ledger.block_bytes), ledger.index()
    offsets, lengths = [], []
    start, at = 0, HEADER_BYTES
    file.write(bytes(HEADER_BYTES))
    firsts = [0]
    with disk.opened(ledger.path) as fd, disk.mapping(fd) as view:
        for entry_id, _, entry in walk_segment(view, ledger.ledger_id, where=str(ledger.path), entries=ledger.entries):
            data = memoryview(transform(entry)).cast("B")
            _require_fits(ledger.path, entry_id, len(data), most)
            if at + FRAME.size + len(data) > start + ledger.block_bytes:
                file.writelines(padding(start + ledger.block_bytes - at))
                start, firsts = start + ledger.block_bytes, [*firsts, entry_id]
                file.write(bytes(HEADER_BYTES))
                at = start + HEADER_BYTES
            file.write(FRAME.pack(len(data), entry_id))
            file.write(data)
            offsets.append(at)
            lengths.append(len(data))
            at += FRAME.size + len(data)
            del entry, data  # release the views, so that the mapping can be closed
    for number, first in enumerate(firsts):
        begin = number * ledger.block_bytes
        file.seek(begin)
        file.write(pack_header(BlockHeader(min(ledger.block_bytes, at - begin), first)))
    rows = make_rows(
        np.array(offsets, dtype=np.int64), np.array(lengths, dtype=np.int64), before.timestamps, before.row_ends
    )
    return EntryIndex.of_rows(ledger.ledger_id, before.first_row, rows), at


def _require_fits(path: Path, entry_id: int, size: int, most: int) -> None:
    if not 0 < size <= most:
        raise Refused(
            f"entry {entry_id} of {path} has {size} bytes after the transformation, a block holds 1 to {most}"
        )
