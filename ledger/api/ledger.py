"""Managed ledger in Python: append, read, follow new rows, producers, cursors.

An *entry* is the unit of storage: the rows or messages that were written together. A *cursor* is the durable position
of one reader. A *chunk* is a part of a message that is too large for one entry.

Rules
- The first append of rows registers their columns. Rows of later appends must have these columns. A column in which all
  rows were null gets the type of its first value.
- A ledger with a type takes objects of its class, and yields them (`ledger.rows.row_type`).
- If the first append is a message (bytes), the ledger accepts only messages.
- An append returns when it is durable.
- `repr` and a notebook's display show the present state, which they request from the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, overload

import pyarrow as pa

from pyspark_ledger.ledger.api.cursor import Cursor
from pyspark_ledger.ledger.api.handle import Handle, closed_client
from pyspark_ledger.ledger.api.ledger_admin import LedgerAdmin
from pyspark_ledger.ledger.api.rows import listed_rows, rows_table
from pyspark_ledger.ledger.api.scan import Scan
from pyspark_ledger.ledger.api.views import ledger_view
from pyspark_ledger.ledger.client.kept_producer import Columns, Entry, KeptProducer, NothingAppended
from pyspark_ledger.ledger.client.schemas import (
    register_payload_schemas,
    registered_columns,
    require_columns_registered,
)
from pyspark_ledger.ledger.clock import new_id, system_clock_ms
from pyspark_ledger.ledger.consumer.batch import MAX_BYTES, Batch, BatchLimits
from pyspark_ledger.ledger.consumer.batches import Batches
from pyspark_ledger.ledger.consumer.follow import follow
from pyspark_ledger.ledger.consumer.opened_rows import open_rows, require_positions
from pyspark_ledger.ledger.display.ledger_picture import ledger_html, ledger_text
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.message.arrow_payload import arrow_metadata
from pyspark_ledger.ledger.message.columns import (
    ColumnFit,
    require_columns,
    schema_bytes,
    schema_from_bytes,
    typed_columns,
)
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.message.schema.documents import parse_schemas
from pyspark_ledger.ledger.names import require_cursor_name, short_name
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from pyspark_ledger.ledger.protocol.actions import AskEnd, CreateLedger, DescribeLedger, GetSchema, RegisterSchema
from pyspark_ledger.ledger.protocol.cursors import OpenCursor
from pyspark_ledger.ledger.rows.batch_sizes import entry_pieces
from pyspark_ledger.ledger.rows.row_type import Row, RowType
from pyspark_ledger.ledger.times import Time

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.client.message_producer import MessageProducer
    from pyspark_ledger.ledger.protocol.actions import LedgerDescription, LedgerEnd

Rows: TypeAlias = "pa.Table | pa.RecordBatch | list[Any]"


class Ledger(LedgerAdmin, Handle, Generic[Row]):
    """Managed ledger of a store. `Ledger[Order]` takes and yields objects of the class `Order`.

    In signatures, `Row` is this class. Without a class, `Row` is a dictionary.
    """

    def __init__(self, client: Client, name: str, row_type: RowType[Row] | None = None) -> None:
        self.client = client
        self.name = name
        self.row_type = row_type

    def __repr__(self) -> str:
        return ledger_text(type(self).__name__, ledger_view(self.client, self.name))

    def _repr_html_(self) -> str:
        """Return the picture of the ledger for a notebook."""
        return ledger_html(ledger_view(self.client, self.name))

    def close(self) -> None:
        """Refuse all later calls of this object and of its cursors. Its store, producers and scans stay open."""
        self.client = closed_client(f"the ledger {short_name(self.name)!r}")

    @overload
    def append(
        self: Ledger[dict[str, Any]], rows: pa.Table | pa.RecordBatch | Iterable[Mapping[str, object]] | bytes
    ) -> Position: ...

    @overload
    def append(self, rows: Row | Iterable[Row]) -> Position: ...

    def append(
        self,
        rows: pa.Table | pa.RecordBatch | Iterable[Mapping[str, object]] | bytes | Row | Iterable[Row],
    ) -> Position:
        """Append rows, or one message as bytes. Return the position after them, when they are durable.

        Rows are mappings, or a `pyarrow.Table` or `RecordBatch`. A ledger with a type takes one object of its class, or
        several, and nothing else. Raises Refused for a row that does not fit, and then appends nothing.
        """
        return self._append(self._listed(rows))

    def producer(
        self,
        name: str | None = None,
        *,
        compression: str = "none",
        batching_max_messages: int = 1000,
        batching_max_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 1,
        max_pending_bytes: int = 64 * 1024 * 1024,
        chunk_max_bytes: int | None = None,
    ) -> MessageProducer[Row]:
        """Open a producer of messages, which sends them in batches, as a Pulsar client does. Close it, or use `with`.

        A message of more than `chunk_max_bytes` is sent in chunks. The default is the maximum size of an entry.
        """
        from pyspark_ledger.ledger.client.message_producer import open_producer
        from pyspark_ledger.ledger.message.outgoing.batching import Batching

        batching = Batching(batching_max_messages, batching_max_bytes, batching_max_publish_delay_ms)
        self.client.ask(CreateLedger(self.name, exist_ok=True, lists=False))
        return open_producer(
            self.client,
            self.name,
            name or f"ledger-api-{new_id()}",
            batching,
            compression=compression,
            max_pending_bytes=max_pending_bytes,
            chunk_max_bytes=chunk_max_bytes,
            row_type=self.row_type,
        )

    def rows(self, start: Position = EARLIEST, end: Position | None = None) -> Iterator[Row]:
        """Yield the rows of `[start, end)` as objects of the ledger's type; as dictionaries without a type.

        Without `end`, read up to the present end. The memory is that of one entry. Messages are decoded by the ledger's
        payload schemas. Raises Refused for a row that does not fit: the error names its position and the field.
        """
        yield from open_rows(self.client, self.name, start, end).rows(self.row_type)

    def read(self, start: Position = EARLIEST, end: Position | None = None) -> pa.Table:
        """Return the rows of `[start, end)` as one table.

        The rows of a ledger of messages have the column `value` and the metadata columns `__key`, `__topic`,
        `__messageId`, `__publishTime`, `__eventTime`, `__messageProperties` and `__position`.
        """
        return open_rows(self.client, self.name, start, end).table()

    def batches(self, start: Position = EARLIEST, end: Position | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `[start, end)` in the order of the log. Without `end`, read up to the present end."""
        yield from open_rows(self.client, self.name, start, end).batches()

    def scan(
        self,
        columns: Iterable[str] | None = None,
        start: Position = EARLIEST,
        end: Position | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> Scan:
        """Return the rows of a range as lazy Arrow streams, for DuckDB, Polars, pandas and pyarrow.

            tea = store.ledger("orders").scan(columns=["item", "price"], since="2026-11-22")
            duckdb.sql("select sum(price) from tea where item = 'tea'")

        `columns` may include the metadata columns that `read` names. The range is `[start, end)`, or the entries that
        the broker stored in `[since, until)`. `position_at` explains the forms of a time. Raises Refused for wrong
        arguments. The first use of the scan raises the errors of the ledger.
        """
        return Scan(self.client, self.name, columns, start, end, since, until)

    def follow(
        self,
        start: Position = EARLIEST,
        *,
        max_rows: int | None = None,
        max_bytes: int = MAX_BYTES,
        wait: float | None = None,
    ) -> Batches[Batch[Row]]:
        """Return an iterator over the rows from `start` on, in batches, which waits for new rows.

            for batch in orders.follow(start=saved):
                work(batch.table); save(batch.position)

        A batch has at most `max_rows` rows and `max_bytes` bytes (32 MiB), or one larger entry. The loop ends after
        `wait` seconds without a row; 0 means the end of the ledger, None never. A terminated ledger always ends it.
        With LATEST, the rows begin after those that exist at this call. Raises NotFound for a missing ledger. The
        iterator raises DataLoss if the next rows were deleted by retention, or the ledger was created again.
        """
        return follow(self.client, self.name, start, BatchLimits(max_rows, max_bytes, wait), self.row_type)

    def cursor(self, name: str, start: Position = EARLIEST) -> Cursor[Row]:
        """Return the durable cursor of this name. Create it at `start` if it does not exist.

        Raises DataLoss, and creates no cursor, if retention has deleted entries after `start`.
        """
        require_positions(start=start)
        require_cursor_name(name, self.name)
        state = self.client.ask(OpenCursor(self.name, name, start))
        return Cursor(self, state.cursor, self.row_type)

    def end(self) -> LedgerEnd:
        """Return the start and the end of the log."""
        return self.client.ask(AskEnd(self.name))

    def describe(self) -> LedgerDescription:
        """Return the full description of the ledger."""
        return self.client.ask(DescribeLedger(self.name))

    def schema(self) -> pa.Schema | None:
        """Return the registered columns; None for a ledger of messages, or before the first append."""
        return registered_columns(self.client.ask, self.name)

    def register_payload_schemas(self, schemas: str | bytes) -> int:
        """Register the schemas of the messages' payloads. Return the newest version.

        Creates the ledger if it does not exist. Each message names the schema version of its payload.
        """
        self.client.ask(CreateLedger(self.name, exist_ok=True, lists=False))
        return register_payload_schemas(
            self.client, self.name, parse_schemas(schemas, f"the argument for ledger {self.name}")
        )

    def _append(self, rows: Rows | bytes) -> Position:
        while True:
            idle = self.client.kept.take(self.name)
            kept = idle or KeptProducer(self.client, self.name)
            try:
                entries = self._entries(kept, rows)
                return kept.append(entries) if entries else self.end().end
            except (NothingAppended, NotFound) as error:
                if idle is None and isinstance(error, NotFound):
                    raise
                kept.end()  # the ledger may be deleted; the next pass of the loop creates a producer
            finally:
                self.client.kept.give(kept)

    def _registered(self, rows: pa.Table) -> tuple[pa.Schema, int]:
        """Return the ledger's columns and their version. First register columns and types that the ledger lacks."""
        given = rows.schema
        if not given.names:
            raise Refused(f"rows without columns cannot be appended to {self.name}", hint="Add at least one column")
        found = self.client.ask(GetSchema(self.name))
        if found.version < 0:
            entries = self.client.ask(DescribeLedger(self.name, lists=False)).entries
            if entries:
                raise Refused(
                    f"ledger {self.name} has messages ({entries} entries), rows with {len(given)} columns were given",
                    hint="Append rows to another ledger",
                )
            columns = pa.schema([field.with_nullable(True) for field in given])
            found = self.client.ask(RegisterSchema(self.name, schema_bytes(columns)))
        require_columns_registered(found, self.name)
        while True:
            registered = schema_from_bytes(found.arrow_schema, self.name)
            columns = typed_columns(registered, given)
            require_columns(given, columns, self.name)
            if columns.equals(registered):
                return registered, found.version
            self._fitted(rows, columns)  # refuses rows before it registers the types of their columns
            request = RegisterSchema(self.name, schema_bytes(columns), found.version)
            found = self.client.ask(request)  # of another writer's, if that was first

    def _entries(self, kept: KeptProducer, rows: Rows | bytes, *, registers: bool = True) -> list[Entry]:
        if isinstance(rows, bytes):
            return [self._message(kept, rows)]
        if isinstance(rows, list) and not rows:
            return []
        given, columns = self._given(kept, rows, registers=registers)
        batches = self._fitted(given.combine_chunks(), columns.schema)
        pieces = [piece for batch in batches for piece in entry_pieces(batch)]
        return [_entry(kept, piece, columns.version) for piece in pieces]

    def _listed(self, rows: Any) -> Rows | bytes:
        """Return the argument of `append`, with a list in place of an iterator. Raises Refused for wrong rows."""
        if self.row_type is not None:
            return self.row_type.listed(rows, self.name)
        return rows if isinstance(rows, (bytes, pa.Table, pa.RecordBatch)) else listed_rows(rows)

    def _table(self, rows: Rows, columns: pa.Schema | None) -> pa.Table:
        """Return rows as a table. `columns` are the ledger's columns, if they are registered."""
        if self.row_type is None or not isinstance(rows, list):
            return rows_table(rows, columns)
        return self.row_type.table(rows, columns, self.name)

    def _fitted(self, rows: pa.Table, columns: pa.Schema) -> list[pa.RecordBatch]:
        """Return the rows with exactly these columns. Raises Refused if a value would be lost."""
        fit, where = ColumnFit(columns), f"the data appended to {self.name}"
        return [fit.fit(batch, where) for batch in rows.to_batches()]

    def _given(self, kept: KeptProducer, rows: Rows, *, registers: bool) -> tuple[pa.Table, Columns]:
        """Return rows as a table, and the ledger's columns.

        `kept` is the producer that the client keeps for later appends. If the rows do not have the columns of `kept`,
        this method asks the broker for the present columns. Reason: another writer may have added columns. The method
        registers the types of columns that have none, or without `registers` raises Refused.
        """
        if kept.columns is not None:
            with suppress(Refused):
                given = self._table(rows, kept.columns.schema)
                require_columns(given.schema, kept.columns.schema, self.name)
                if typed_columns(kept.columns.schema, given.schema).equals(kept.columns.schema):
                    return given, kept.columns
        if not registers:
            raise Refused(f"the rows do not have the columns that the producer of {self.name} keeps")
        given = self._table(rows, self.schema())
        kept.columns = Columns(*self._registered(given))
        return given, kept.columns

    def _message(self, kept: KeptProducer, value: bytes) -> Entry:
        columns = None if kept.takes_messages else self.schema()
        if columns is not None:
            raise Refused(
                f"ledger {self.name} has the columns {', '.join(columns.names)}, {len(value)} bytes were given",
                hint="Append rows, or append messages to another ledger",
            )
        kept.takes_messages = True
        metadata = MessageMetadata(
            producer_name=kept.name, sequence_id=kept.next_sequence_id(), publish_time=system_clock_ms()
        )
        metadata.uncompressed_size = len(value)
        return encode_entry(metadata, value)


def _entry(kept: KeptProducer, rows: pa.RecordBatch, version: int) -> Entry:
    metadata = arrow_metadata(kept.name, kept.next_sequence_id(), system_clock_ms(), rows.num_rows, version, None)
    return encode_entry(metadata, kept.encoder.encode([rows]))
