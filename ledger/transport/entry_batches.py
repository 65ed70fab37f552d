"""Entries as the record batches of an append stream: one binary column, without a copy where one buffer holds all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.protocol.actions import ENTRY_SCHEMA


def entry_batch(entries: Sequence[Buffer]) -> pa.RecordBatch:
    """A batch of entries; a single one is referenced, several are joined."""
    sizes = [memoryview(entry).nbytes for entry in entries]
    data = pa.py_buffer(entries[0]) if len(entries) == 1 else pa.py_buffer(b"".join(map(memoryview, entries)))
    offsets = np.zeros(len(entries) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    column = pa.Array.from_buffers(pa.binary(), len(entries), [None, pa.py_buffer(offsets), data])
    return pa.RecordBatch.from_arrays([column], schema=ENTRY_SCHEMA)
