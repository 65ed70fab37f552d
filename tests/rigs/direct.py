"""Data objects of direct segments, made by hand: the bytes that a task of a sink puts before its commit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyspark_ledger.ledger.message.entry import WIDE_STAMP_BYTES, provisional_stamp
from pyspark_ledger.ledger.protocol.commits import StagingPlace
from pyspark_ledger.ledger.segment.format import FRAME_BYTES
from pyspark_ledger.ledger.segment.index import Integers
from pyspark_ledger.ledger.segment.reader import walk_segment
from pyspark_ledger.ledger.transport.part_file import PartFile
from tests.rigs.entry import entry
from tests.rigs.promotion import part_run

STAGED_MS = 1_600_000_000_000
"""Time of the provisional stamps. No reader may see it."""


class DirectPart(NamedTuple):
    """Bytes of a data object, and what its task reports: length and rows of each entry, with the marker at the end."""

    data: bytes
    entry_bytes: Integers
    rows: Integers


def direct_part(
    scratch: Path, batch: int, payloads: Sequence[bytes], block_bytes: int, *, rows: int = 1, query: str = "q"
) -> DirectPart:
    """Return the part of a task whose entries have these payloads, and `rows` rows each."""
    path = scratch / f"{query}-{batch}-{len(list(scratch.glob('*.made')))}.made"
    path.touch()
    with PartFile(StagingPlace("part", str(path), 0), part_run(batch, query, block_bytes)) as part:
        for value in payloads:
            part.write([entry(value, rows=rows, run=batch)], rows)
        part.close()
    data = bytearray(path.read_bytes())
    sizes = []
    for frame in list(walk_segment(bytes(data), 0, where=str(path))):
        start = frame.offset + FRAME_BYTES
        data[start : start + WIDE_STAMP_BYTES] = provisional_stamp(STAGED_MS)
        sizes.append(len(frame.entry) - WIDE_STAMP_BYTES)
    return DirectPart(bytes(data), np.array(sizes), np.array([rows] * len(payloads) + [0]))
