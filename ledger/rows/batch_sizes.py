"""Record batches of a suitable size for the consumer of a read, such as Spark or DuckDB. Each batch costs it time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


def join_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of about `batch_bytes`. Small batches are joined, large batches are sliced.

    Batches below a quarter of `batch_bytes` are small. Only joined batches are copied.
    """
    join_below_bytes = batch_bytes // 4
    small: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        nbytes = batch.nbytes
        if nbytes < join_below_bytes:
            small.append(batch)
            size += nbytes
            if size < batch_bytes:
                continue
        if small:
            yield _concat(small, schema)
            small, size = [], 0
        if nbytes >= join_below_bytes:
            yield from _slices(batch, nbytes, batch_bytes)
    if small:
        yield _concat(small, schema)


def _slices(batch: pa.RecordBatch, nbytes: int, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    rows = -(-batch.num_rows // max(round(nbytes / batch_bytes), 1))
    for row in range(0, batch.num_rows, rows):
        yield batch.slice(row, rows)


def _concat(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches, schema).combine_chunks().to_batches()[0]


_ENTRY_BYTES = 4 * 1024 * 1024


def entry_pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of a batch, each with about the bytes of one entry."""
    rows = max(1, batch.num_rows * _ENTRY_BYTES // max(batch.nbytes, 1))
    for at in range(0, batch.num_rows, rows):
        yield batch.slice(at, rows)
