"""Rows of Arrow entries: entry after entry, each an Arrow IPC stream, as record batches for Spark.

Rules
- Columns are views of the block they came in; nothing is copied unless a type must be cast or batches are very small.
- Every entry's checksum is verified here, in the task that uses the rows.
- An entry that holds a Pulsar payload in a ledger of columns is an error naming where it is; markers give no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from connector.metadata_columns import Topic, columns_of_entry
from ledger.arrow_payload import decode_rows
from ledger.columns import ColumnFit
from ledger.entry import ParsedEntry, arrow_rows, is_marker
from ledger.errors import Corrupt, Refused
from ledger.position import Position

# Spark pays some hundred microseconds for each batch: smaller ones are joined up to this size.
_JOIN_BELOW_BYTES = 256 * 1024
_JOINED_BYTES = 1024 * 1024


class ArrowRows:
    """Turns parsed entries into record batches of exactly `target`, whose last columns may be metadata."""

    def __init__(self, topic: Topic, target: pa.Schema, metadata_columns: int) -> None:
        self._topic = topic
        self._target = target
        self._with_metadata = metadata_columns > 0
        rows = target.names[: len(target) - metadata_columns]
        self._fit = ColumnFit(pa.schema([target.field(name) for name in rows]))

    def batches(self, entries: Iterable[tuple[Position, ParsedEntry]]) -> Iterator[pa.RecordBatch]:
        """The rows of entries, in order."""
        return joined(self._each(entries), self._target)

    def _each(self, entries: Iterable[tuple[Position, ParsedEntry]]) -> Iterator[pa.RecordBatch]:
        for position, entry in entries:
            if is_marker(entry.metadata):
                continue
            stated = arrow_rows(entry.metadata)
            where = f"entry {position} of {self._topic.text}"
            if stated is None:
                raise Refused(
                    f"{where} holds a Pulsar payload, the ledger has the columns {', '.join(self._fit.target.names)}",
                    hint="Producers of messages and of columns need ledgers of their own",
                )
            yield from self._entry(position, entry, stated, where)

    def _entry(self, position: Position, entry: ParsedEntry, stated: int, where: str) -> Iterator[pa.RecordBatch]:
        row = 0
        for batch in decode_rows(entry.payload, where):
            fitted = self._fit.fit(batch, where)
            if self._with_metadata:
                extra = columns_of_entry(self._topic, position, entry.metadata, row, batch)
                fitted = pa.RecordBatch.from_arrays([*fitted.columns, *extra], schema=self._target)
            row += batch.num_rows
            if batch.num_rows:
                yield fitted
        if row != stated:
            raise Corrupt(f"{where} holds {row} rows, its metadata states {stated}")


def joined(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows with runs of small batches made into larger ones."""
    small: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        nbytes = batch.nbytes
        if nbytes < _JOIN_BELOW_BYTES:
            small.append(batch)
            size += nbytes
            if size < _JOINED_BYTES:
                continue
        if small:
            yield _one(small, schema)
            small, size = [], 0
        if nbytes >= _JOIN_BELOW_BYTES:
            yield batch
    if small:
        yield _one(small, schema)


def _one(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches, schema).combine_chunks().to_batches()[0]
