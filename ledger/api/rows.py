"""Rows of the Python API: conversion of a ledger's entries to record batches, and of a user's rows to a table.

An *entry* is the unit of storage. A *block* is a part of a segment file with whole entries. A *chunk* is a part of a
message that is too large for one entry.

Rules of reading
- The rows of a ledger with columns have these columns. Each entry has its own record batches.
- The rows of a ledger of messages have the column `value` and the metadata columns of Spark's reads. A record batch can
  have the messages of several entries.
- A marker (the entry that closes a batch) has no rows. A message in chunks is one row, at the position of its last
  chunk.
- An entry with messages in a ledger with columns is an error, which names the entry.
- A read of some columns decodes only these columns. They may include metadata columns.
- Columns are aligned (to a multiple of 64 bytes), which Arrow's joins and sums need, and keep no block in memory.

Rules of appended rows
- Rows are mappings, or Arrow tables and batches. A conversion never changes a value.
- The error for a row that is no mapping names the row's number. The error for a value that does not fit the type of its
  column names the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.api.kept_values import require_kept
from pyspark_ledger.ledger.api.schemas import columns_of
from pyspark_ledger.ledger.client.read_client import block_entries, entries_before
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.arrow_payload import decode_rows
from pyspark_ledger.ledger.message.columns import ColumnFit, is_typed
from pyspark_ledger.ledger.message.entry import ParsedEntry, is_arrow, is_marker, require_known_format
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.row_selection import RowSelection
from pyspark_ledger.ledger.protocol.reads import OpenRead, ReadRequest
from pyspark_ledger.ledger.rows.chunked_messages import WholeMessages
from pyspark_ledger.ledger.rows.message_groups import MESSAGES, Entry, message_rows
from pyspark_ledger.ledger.rows.metadata_columns import METADATA, Topic, columns_of_entry

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.block_reader import FrameBlock
    from pyspark_ledger.ledger.client.client import Client


_BLOCK_BYTES = 4 * 1024 * 1024


class OpenedRows:
    """Rows of one read. The constructor makes one call to the broker.

    The call returns the ledger's columns, the range of the read, and the locations of the first blocks. `wanted` is the
    schema of the batches, for a read of some columns.
    """

    def __init__(
        self,
        client: Client,
        request: OpenRead,
        selection: RowSelection | None = None,
        wanted: pa.Schema | None = None,
    ) -> None:
        found = client.open_read(msgspec.structs.replace(request, max_block_bytes=_BLOCK_BYTES))
        self.columns = columns_of(found.schema_version, found.schema, request.name)
        self.end = found.range.end
        self.incarnation = found.incarnation
        self._wanted = wanted or self.columns or MESSAGES
        self._client = client
        self._name = request.name
        self._places = found.places
        self._selection = selection or (RowSelection(found.skip) if found.skip else None)
        self._request = ReadRequest(
            request.name, found.range, incarnation=found.incarnation, max_block_bytes=_BLOCK_BYTES
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the order of the log."""
        selection = self._selection
        entries = self._entries(self._client.read_blocks(self._request, places=self._places), selection)
        if self.columns is None:
            topic = Topic.of(self._name)
            rows = message_rows(topic, WholeMessages(topic.text, self._entries_before).of(entries), self._wanted)
            yield from rows if selection is None else map(selection.select_placed, rows)
            return
        decoder = _EntryRows(self._name, self.columns, self._wanted)
        for position, entry in entries:
            batches = decoder.batches(position, entry)
            yield from batches if selection is None else selection.select(position, batches)

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


_COPIED_BYTES = (
    64 * 1024
)  # a payload up to this size is copied as a whole, which takes less time than to compare addresses


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


_ENTRY_BYTES = 4 * 1024 * 1024


def rows_table(rows: pa.Table | pa.RecordBatch | Iterable[Mapping[str, object]], schema: pa.Schema | None) -> pa.Table:
    """Return the rows as a table with a column for each key of any row. A row without a key has null in its column."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    rows = rows if isinstance(rows, list) else listed_rows(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    typed = {} if schema is None else {field.name: field for field in schema}
    if typed.keys() == names.keys():
        names = dict.fromkeys(typed)
    return pa.table({name: _column([row.get(name) for row in rows], name, typed.get(name)) for name in names})


def listed_rows(rows: Iterable[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Return the rows as a list, because an iterator yields them only once.

    Raises Refused for a row that is no mapping. The error has the row's number.
    """
    if isinstance(rows, (str, Mapping)) or not isinstance(rows, Iterable):
        raise Refused(
            f"rows are {type(rows).__name__}, expected a list of mappings", hint='Use a form like [{"id": 1}]'
        )
    listed = list(rows)
    for number, row in enumerate(listed):
        if not isinstance(row, Mapping):
            raise Refused(f"row {number} is {type(row).__name__}, expected a mapping", hint='Use a form like {"id": 1}')
        for name in row:
            if not isinstance(name, str):
                raise Refused(f"row {number} has the column {name!r}, expected text", hint='Use a form like {"id": 1}')
    return listed


def _column(values: list[object], name: str, field: pa.Field | None) -> pa.Array:
    """Return the values of a column, in the type of `field` if it is given. Raises Refused if a value does not fit."""
    wanted = None if field is None else field.type
    try:
        if wanted is not None and not is_typed(wanted):
            wanted = _type_of_values(values, wanted)
        column = pa.array(values, wanted)
    except (pa.ArrowException, OverflowError) as wrong:
        text = f"the values of column {name!r} cannot have {f'type {wanted}' if wanted else 'one type'}: {wrong}"
        raise Refused(text, hint="Correct the value; nothing was appended") from wrong
    require_kept(values, column.type, name)
    return column


def _type_of_values(values: Iterable[Any], kind: pa.DataType) -> pa.DataType:
    """Return a column's type. The parts without a type get the type of their values. Raises ArrowException."""
    if is_typed(kind):
        return kind
    found = [value for value in values if value is not None]
    if pa.types.is_null(kind) or (pa.types.is_struct(kind) and not kind.num_fields):
        return pa.array(found).type if found else kind
    if pa.types.is_struct(kind):
        rows = [value for value in found if isinstance(value, Mapping)]
        return pa.struct([f.with_type(_type_of_values([row.get(f.name) for row in rows], f.type)) for f in kind])
    if pa.types.is_map(kind):
        pairs = [pair for value in found for pair in (value.items() if isinstance(value, Mapping) else value)]
        parts = enumerate((kind.key_type, kind.item_type))
        return pa.map_(*(_type_of_values([pair[at] for pair in pairs], part) for at, part in parts))
    return pa.list_(kind.value_field.with_type(_type_of_values(chain.from_iterable(found), kind.value_type)))


def entry_pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of a batch, each with about the bytes of one entry."""
    rows = max(1, batch.num_rows * _ENTRY_BYTES // max(batch.nbytes, 1))
    for at in range(0, batch.num_rows, rows):
        yield batch.slice(at, rows)
