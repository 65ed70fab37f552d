"""Conversion between byte ranges of one buffer and binary columns, without a Python object for each value.

Rule: a range is `[start, end)`. Ranges ascend. The range of a null value is ignored and may be anywhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def cut(data: Bytes, starts: Integers, ends: Integers, null: Flags) -> pa.Array:
    """Return a binary column whose value `i` is the bytes `[starts[i], ends[i])`, or null if `null[i]` is set."""
    if not len(starts):
        return pa.array([], pa.binary())
    if null.all():
        return pa.nulls(len(starts), pa.binary())
    rows = np.arange(0, 2 * len(starts), 2)
    if null.any():
        last = np.maximum.accumulate(np.where(null, 0, ends))
        starts, ends = np.where(null, last, starts), np.where(null, last, ends)
    edges = np.empty(2 * len(starts), dtype=np.int32)
    edges[0::2], edges[1::2] = starts, ends
    between = pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), pa.py_buffer(data)])
    return between.take(pa.array(rows, mask=null if null.any() else None))


def ranges_of(values: pa.Array) -> tuple[Bytes, Integers, Integers]:
    """Return the buffer, starts and ends of a binary or string column. A null is an empty range."""
    _, offsets, data = values.buffers()
    if offsets is None or not len(values):
        return np.zeros(0, dtype=np.uint8), np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=np.int64)
    edges = np.frombuffer(offsets, dtype=np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    content = np.zeros(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return content, edges[:-1], edges[1:]
