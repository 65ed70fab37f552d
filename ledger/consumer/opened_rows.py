"""Rows of one read of a ledger: the entries of its blocks, as record batches.

An *entry* is the unit of storage. A *block* is a part of a segment file with whole entries. A *chunk* is a part of a
message that is too large for one entry.

Rules
- The rows of a ledger with columns have these columns. Each entry has its own record batches.
- The rows of a ledger of messages have the column `value` and the metadata columns of Spark's reads. A record batch can
  have the messages of several entries.
- A marker (the entry that closes a batch) has no rows. A message in chunks is one row, at the position of its last
  chunk.
- An entry with messages in a ledger with columns is an error, which names the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.client.read_client import block_entries, entries_before
from pyspark_ledger.ledger.client.schemas import columns_of, registered_rows
from pyspark_ledger.ledger.consumer.batch import dictionaries
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.arrow_payload import decode_rows
from pyspark_ledger.ledger.message.columns import ColumnFit
from pyspark_ledger.ledger.message.entry import ParsedEntry, is_arrow, is_marker, require_known_format
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.row_selection import RowSelection
from pyspark_ledger.ledger.protocol.reads import OpenedRead, OpenRead, ReadRequest
from pyspark_ledger.ledger.rows.chunked_messages import WholeMessages
from pyspark_ledger.ledger.rows.message_groups import MESSAGES, Entry, message_rows
from pyspark_ledger.ledger.rows.metadata_columns import METADATA, Topic, columns_of_entry
from pyspark_ledger.ledger.rows.payload_rows import PayloadRows, no_payload_schema
from pyspark_ledger.ledger.rows.row_type import Row, RowType

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.block_reader import FrameBlock
    from pyspark_ledger.ledger.client.client import Client


_BLOCK_BYTES = 4 * 1024 * 1024


class OpenedRows:
    """Rows of one read. The constructor makes one call to the broker, unless it gets the reply `found`.

    The call returns the ledger's columns, the range of the read, and the locations of the first blocks. `wanted` is the
    schema of the batches, for a read of some columns.
    """

    def __init__(
        self,
        client: Client,
        request: OpenRead,
        selection: RowSelection | None = None,
        wanted: pa.Schema | None = None,
        found: OpenedRead | None = None,
    ) -> None:
        found = found or client.open_read(msgspec.structs.replace(request, max_block_bytes=_BLOCK_BYTES))
        self.columns = columns_of(found.schema_version, found.schema, request.name)
        self.end = found.range.end
        self.incarnation = found.incarnation
        self._wanted = wanted or self.columns or MESSAGES
        self.num_rows, self.log_end, self.terminated = found.rows, found.log_end, found.terminated
        self._client = client
        self._name = request.name
        self._places = found.places
        self._selection = selection or (RowSelection(found.skip) if found.skip else None)
        self._request = ReadRequest(
            request.name, found.range, incarnation=found.incarnation, max_block_bytes=_BLOCK_BYTES
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the order of the log."""
        if self.columns is None:
            topic = Topic.of(self._name)
            rows = message_rows(topic, self._whole_messages(topic), self._wanted)
            yield from rows if self._selection is None else map(self._selection.select_placed, rows)
            return
        for _, batches in self._entry_batches(self.columns):
            yield from batches

    def rows(self, row_type: RowType[Row] | None) -> Iterator[Row]:
        """Yield the rows as objects; as dictionaries without a type.

        Raises Refused for a row that does not fit the type. The error names the row's position and the field.
        """
        if row_type is None:
            for batch in self.batches():
                yield from batch.to_pylist()
            return
        if self.columns is None:
            yield from self._payloads(row_type)
            return
        row_type.require_fits(self.columns, self._name)
        for position, batches in self._entry_batches(self.columns):
            first = 0
            for batch in batches:
                yield from row_type.rows(batch, partial(_place, f"entry {position} of {self._name}", first))
                first += batch.num_rows

    def _payloads(self, row_type: RowType[Row]) -> Iterator[Row]:
        """Yield the payloads of messages as objects. Raises Refused for messages without a payload schema."""
        topic = Topic.of(self._name)
        schemas = registered_rows(self._client.ask, self._name)[1]
        if schemas is None:
            if next(self._whole_messages(topic), None) is not None:
                raise no_payload_schema(self._name, row_type)
            return
        payloads = PayloadRows(topic, schemas)
        row_type.require_fits(payloads.columns, self._name)
        for batch in payloads.batches(self._whole_messages(topic)):
            selected = batch if self._selection is None else self._selection.select_placed(batch)
            yield from row_type.rows(selected, partial(payloads.place, selected))

    def _whole_messages(self, topic: Topic) -> Iterator[Entry]:
        return WholeMessages(topic.text, self._entries_before).of(self._located_entries())

    def _entry_batches(self, columns: pa.Schema) -> Iterator[tuple[Position, Iterator[pa.RecordBatch]]]:
        """Yield the position of each entry, and its selected rows."""
        decoder = _EntryRows(self._name, columns, self._wanted)
        for position, entry in self._located_entries():
            batches = decoder.batches(position, entry)
            yield position, batches if self._selection is None else self._selection.select(position, batches)

    def _located_entries(self) -> Iterator[Entry]:
        """Yield the entries of the range. An entry without a selected row is left out."""
        return self._entries(self._client.read_blocks(self._request, places=self._places), self._selection)

    def _entries(self, blocks: Iterator[FrameBlock], selection: RowSelection | None = None) -> Iterator[Entry]:
        """Yield the entries of blocks. An entry without a selected row is left out."""
        for block in blocks:
            yield from block_entries(block, self._name, selection)

    def _entries_before(self, position: Position) -> Iterator[Entry]:
        """Yield the entries before a position in reverse order. Called to find the first chunks of a message."""
        request = self._request
        return entries_before(
            self._client,
            self._name,
            position,
            lambda range_: self._entries(self._client.read_blocks(msgspec.structs.replace(request, range=range_))),
        )

    def table(self) -> pa.Table:
        """Return the rows as one table. It has the ledger's columns even if it has no row."""
        return rows_as_table(self.batches(), self.columns)


def _place(where: str, first: int, row: int) -> str:
    return f"row {first + row} of {where}"


def objects_of(
    client: Client, request: OpenRead, row_type: RowType[Row] | None, skip: bytes = b""
) -> Callable[[pa.Table], Iterator[Row]]:
    """Return the function that yields the rows of the table of a read, as `OpenedRows.rows` yields them.

    The payloads of messages are read again, because a table has only their bytes.
    """
    if row_type is None:
        return dictionaries

    def objects(table: pa.Table) -> Iterator[Row]:
        if table.schema == MESSAGES:
            yield from OpenedRows(client, request, RowSelection(skip)).rows(row_type)
        else:
            row_type.require_fits(table.schema, request.name)
            first, where = 0, f"[{request.start}, {request.end}) of {request.name}"
            for batch in table.to_batches():
                yield from row_type.rows(batch, partial(_place, where, first))
                first += batch.num_rows

    return objects


def open_rows(client: Client, name: str, start: Position, end: Position | None) -> OpenedRows:
    """Open a read of `[start, end)`. Without `end`, read up to the present end."""
    require_positions(start=start, **({} if end is None else {"end": end}))
    return OpenedRows(client, OpenRead(name, start, end))


def rows_as_table(batches: Iterable[pa.RecordBatch], columns: pa.Schema | None) -> pa.Table:
    """Return batches of a ledger as one table. `columns` is None for a ledger of messages."""
    return pa.Table.from_batches(batches, columns or MESSAGES)


def require_positions(**given: object) -> None:
    """Raise Refused for an argument that is no position. The error has the argument's name."""
    for name, value in given.items():
        if not isinstance(value, Position):
            raise Refused(
                f"{name} is {value!r}, expected a position",
                hint="Import Position, EARLIEST or LATEST from pyspark_ledger; Position.parse('0:5') reads text",
            )


# A payload up to this size is copied as a whole, which takes less time than to compare addresses.
_COPIED_BYTES = 64 * 1024


class _EntryRows:
    """Decoder of the entries of a ledger with columns. `wanted` has some of `columns`, and metadata columns."""

    def __init__(self, ledger: str, columns: pa.Schema, wanted: pa.Schema) -> None:
        self._ledger = ledger
        self._topic = Topic.of(ledger)
        self._wanted = wanted
        self._metadata = [name for name in wanted.names if name in METADATA.names and name not in columns.names]
        self._fit = ColumnFit(pa.schema([field for field in wanted if field.name not in self._metadata]))
        self._names = set(wanted.names)

    def batches(self, position: Position, entry: ParsedEntry) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an entry. Raises Refused for messages, and Corrupt for damage."""
        if is_marker(entry.metadata):
            return
        where = f"entry {position} of {self._ledger}"
        require_known_format(entry.metadata, where)
        if not is_arrow(entry.metadata):
            raise Refused(f"{where} has Pulsar messages, but the ledger has rows with columns")
        row = 0
        for batch in self._decoded(entry.payload, where):
            fitted = self._fit.fit(batch, where)
            yield self._with_metadata(fitted, batch, position, entry, row) if self._metadata else fitted
            row += batch.num_rows

    def _decoded(self, payload: memoryview, where: str) -> list[pa.RecordBatch]:
        if len(payload) <= _COPIED_BYTES:
            return decode_rows(_copied(payload), where, self._names.__contains__)
        batches = decode_rows(payload, where, self._names.__contains__)
        return [_detached(batch, pa.py_buffer(payload)) for batch in batches]

    def _with_metadata(
        self, fitted: pa.RecordBatch, batch: pa.RecordBatch, position: Position, entry: ParsedEntry, row: int
    ) -> pa.RecordBatch:
        metadata = columns_of_entry(self._topic, position, entry.metadata, row, batch, self._metadata)
        columns = dict(zip(fitted.schema.names, fitted.columns, strict=True))
        columns |= dict(zip(self._metadata, metadata, strict=True))
        return pa.RecordBatch.from_arrays([columns[name] for name in self._wanted.names], schema=self._wanted)


def _copied(payload: memoryview) -> pa.Buffer:
    copy = pa.allocate_buffer(len(payload))
    np.frombuffer(copy, dtype=np.uint8)[:] = np.frombuffer(payload, dtype=np.uint8)
    return copy


def _detached(batch: pa.RecordBatch, payload: pa.Buffer) -> pa.RecordBatch:
    """Return the batch with copies of those columns that are views of the payload. Others own aligned memory."""
    memory, start, end = pa.default_cpu_memory_manager(), payload.address, payload.address + payload.size

    def is_view(column: pa.Array) -> bool:
        return any(buffer is not None and start <= buffer.address < end for buffer in column.buffers())

    columns = [column.copy_to(memory) if is_view(column) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
