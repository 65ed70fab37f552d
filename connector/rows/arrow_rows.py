"""Conversion of Arrow entries to record batches for Spark, and the choice of the converter for a read.

A *shape* describes the columns that a read returns (`connector.rows.shape`). The payload of an Arrow entry is an Arrow
IPC stream. `ArrowRows` converts one entry after the other. `entry_rows` returns `ArrowRows`, or for a ledger of
messages `PulsarRows`.

Rules
- Columns are views of the block that was read. Values are copied only if a type must be cast or batches are very small.
- The task that uses the rows verifies the checksum of every entry.
- An entry with a Pulsar payload in a ledger of columns raises Refused, which names the entry's position. A marker, the
  entry that ends the rows of one written batch, has no rows.
- An entry may have columns that were added after the query was planned. These columns are left out. If the read has a
  rescue column, it contains their values as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_ledger.connector.rows.message_values import column_texts, payload_text, rescue_column
from pyspark_ledger.connector.rows.shape import RowShape
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Outdated, Refused
from pyspark_ledger.ledger.message.arrow_payload import decode_rows
from pyspark_ledger.ledger.message.columns import ColumnFit
from pyspark_ledger.ledger.message.entry import ParsedEntry, arrow_rows, is_marker, require_known_format
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.row_selection import RowSelection
from pyspark_ledger.ledger.rows.batch_sizes import join_batches
from pyspark_ledger.ledger.rows.message_groups import place
from pyspark_ledger.ledger.rows.metadata_columns import (
    METADATA,
    PROVENANCE,
    Topic,
    columns_of_entry,
    provenance_of_entry,
)

if TYPE_CHECKING:
    from pyspark_ledger.connector.rows.message_rows import PulsarRows


# Each batch costs Spark about a hundred microseconds. A batch of this size fits into the processor's cache when Spark
# copies it.
BATCH_BYTES = 1024 * 1024


class ArrowRows:
    """Converter of parsed entries to record batches with exactly the shape's schema."""

    def __init__(self, topic: Topic, shape: RowShape, selection: RowSelection | None = None) -> None:
        self._topic = topic
        self._selection = selection if selection is not None and selection.by_row else None
        self._target = shape.schema
        self._metadata = shape.metadata
        self._provenance = not set(PROVENANCE.names).isdisjoint(self._metadata)
        self._rescues = shape.rescues
        self._rescues_columns = shape.rescues and shape.rescues_columns
        self._known = {*shape.known, *METADATA.names}
        self._wanted = {*shape.rows.names, *shape.metadata}
        self._fit = ColumnFit(shape.rows)

    def batches(self, entries: Iterable[tuple[Position, ParsedEntry]]) -> Iterator[pa.RecordBatch]:
        return join_batches(self.each(entries), self._target, BATCH_BYTES)

    def of_topic(self, topic: Topic) -> ArrowRows:
        """Return a converter for another ledger of the read, with the same cache of column conversions."""
        other = copy(self)
        other._topic = topic  # noqa: SLF001 — an object of this class
        return other

    def each(self, entries: Iterable[tuple[Position, ParsedEntry]]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of entries in order, without joining small batches."""
        for position, entry in entries:
            if is_marker(entry.metadata):
                continue
            try:
                yield from self._entry(position, entry, f"entry {position} of {self._topic.text}")
            except LedgerError as failure:
                # The value of an outdated read has a column after a restart. So it is no value to rescue.
                if not self._rescues or isinstance(failure, Outdated):
                    raise
                yield self._undecodable(position, entry, failure.message)

    def _entry(self, position: Position, entry: ParsedEntry, where: str) -> list[pa.RecordBatch]:
        require_known_format(entry.metadata, where)
        stated = arrow_rows(entry.metadata)
        if stated is None:
            raise Refused(
                f"{where} holds a Pulsar payload, the ledger has the columns {', '.join(self._fit.target.names)}",
                hint="Write messages and columns to different ledgers",
            )
        row, batches = 0, []
        for batch in decode_rows(entry.payload, where, self._is_wanted):
            if batch.num_rows:
                batches.append(self._batch(position, entry, batch, row, where))
            row += batch.num_rows
        if row != stated:
            raise Corrupt(f"{where} holds {row} rows, its metadata state {stated}")
        return batches if self._selection is None else list(self._selection.select(position, batches))

    def _is_wanted(self, column: str) -> bool:
        return column in self._wanted or (self._rescues_columns and column not in self._known)

    def _batch(
        self, position: Position, entry: ParsedEntry, batch: pa.RecordBatch, row: int, where: str
    ) -> pa.RecordBatch:
        fitted = self._fit.fit(batch, where)
        if len(self._target) == len(fitted.schema):
            return fitted
        columns = list(fitted.columns)
        if self._rescues:
            columns.append(self._rescued(position, batch, row))
        if self._metadata:
            columns += self._metadata_columns(position, entry, batch, row)
        return pa.RecordBatch.from_arrays(columns, schema=self._target)

    def _metadata_columns(
        self, position: Position, entry: ParsedEntry, batch: pa.RecordBatch, row: int
    ) -> list[pa.Array]:
        more = provenance_of_entry(entry, row, batch.num_rows) if self._provenance else None
        return columns_of_entry(self._topic, position, entry.metadata, row, batch, self._metadata, more)

    def _rescued(self, position: Position, batch: pa.RecordBatch, row: int) -> pa.Array:
        """Return the rescue column: the values of columns that were added after planning, as JSON."""
        added = [name for name in batch.schema.names if name not in self._known] if self._rescues_columns else []
        if not added:
            return rescue_column(batch.num_rows, {})
        return column_texts(self._topic.text, batch.select(added), lambda number: place(position, row + number))

    def _undecodable(self, position: Position, entry: ParsedEntry, reason: str) -> pa.RecordBatch:
        """Return one row for an entry that cannot be decoded, with the payload in the rescue column."""
        text = payload_text(self._topic.text, str(position), reason, bytes(entry.payload))
        columns = [*(pa.nulls(1, field.type) for field in self._fit.target), rescue_column(1, {0: text})]
        if self._metadata:
            row = pa.record_batch({"": pa.nulls(1)})
            columns += self._metadata_columns(position, entry, row, 0)
        return pa.RecordBatch.from_arrays(columns, schema=self._target)


def entry_rows(topic: Topic, shape: RowShape) -> ArrowRows | PulsarRows:
    """Return the converter of a ledger's messages or Arrow entries. Its input is `(position, parsed entry)`."""
    if shape.raw:
        from pyspark_ledger.connector.rows.message_rows import PulsarRows

        return PulsarRows(topic, shape)
    return ArrowRows(topic, shape)
