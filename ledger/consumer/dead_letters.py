"""Dead letters of a cursor: rows that were redelivered too often, moved to the ledger `<ledger>-<cursor>-DLQ`.

    broker: record of dead letters ──▶ their rows ──▶ one commit to the dead-letter ledger ──▶ AckDeadLetters
    columns: the row's columns … (of messages: value, unchanged) · __key · __eventTime · __messageProperties

Loops of the Python API and Spark's queries with `maxRedeliveries` call `send_to_dead_letter`.

Rules
- A dead letter has all columns of its row, and the row's key, event time and properties.
- As in dead letters of Pulsar clients, two properties are added. REAL_TOPIC is the topic of the row. ORIGIN_MESSAGE_ID
  is the position of the row (ledger:entry:row).
- The dead letters of a record are one commit, whose number the broker chose. So a repeated attempt writes no row twice.
  The rows are acknowledged after the commit. A crash between any two steps loses no row.
- All partitions of a ledger share one ledger of dead letters. Columns that are added to the ledger after its first dead
  letter are also added there.
- Messages are copied as bytes, not decoded by their schema. Otherwise a message with an error could not be moved.
- No Python code runs for each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.client.schemas import registered_columns, require_columns_registered
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.consumer.opened_rows import OpenedRows
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.ledger_selection import dead_letter_ledger
from pyspark_ledger.ledger.message.arrow_payload import arrow_metadata
from pyspark_ledger.ledger.message.column_encoding import RowEncoder
from pyspark_ledger.ledger.message.columns import ColumnFit, common_type, schema_bytes, schema_from_bytes
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.message.run_marker import query_run
from pyspark_ledger.ledger.positions.row_selection import RowSelection
from pyspark_ledger.ledger.protocol.actions import (
    CreateLedger,
    DescribeLedger,
    GetSchema,
    RegisterSchema,
    SchemaVersion,
)
from pyspark_ledger.ledger.protocol.commits import BatchOrigin, CommitRun
from pyspark_ledger.ledger.protocol.cursors import AckDeadLetters, AskDelivery, DeliveredRange
from pyspark_ledger.ledger.protocol.reads import OpenRead
from pyspark_ledger.ledger.rows.batch_sizes import entry_pieces
from pyspark_ledger.ledger.rows.message_groups import RAW
from pyspark_ledger.ledger.rows.metadata_columns import METADATA, WRITABLE_METADATA

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client

TOPIC, PLACE = "REAL_TOPIC", "ORIGIN_MESSAGE_ID"
_RECORD = -1
_ORIGIN = ("__topic", "__position")
_WRITTEN = [METADATA.field(name) for name in WRITABLE_METADATA]
_PROPERTIES = METADATA.field("__messageProperties")


def send_to_dead_letter(client: Client, ledger: str, cursor: str, number: int) -> None:
    """Write the dead letters of a cursor, the batch `number`, to their ledger. Then acknowledge them.

    May be repeated. Raises Refused if the dead-letter ledger has messages, or columns of other types.
    """
    columns = registered_columns(client.ask, ledger) or RAW
    shares = client.ask(AskDelivery(ledger, cursor, _RECORD)).shares
    target = dead_letter_ledger(ledger, cursor)
    registered = _registered(client, target, columns)
    rows = with_origin(_rows(client, ledger, columns, shares))
    _commit(client, target, registered, f"dead-letters of {ledger} {cursor}", number, rows)
    client.ask(AckDeadLetters(ledger, cursor, number))


def _rows(
    client: Client, ledger: str, columns: pa.Schema, shares: Iterable[DeliveredRange]
) -> Iterator[pa.RecordBatch]:
    wanted = pa.schema([*columns, *_WRITTEN, *map(METADATA.field, _ORIGIN)])
    for share in shares:
        request = OpenRead(ledger, share.range.start, share.range.end)
        yield from OpenedRows(client, request, RowSelection(share.skip), wanted).batches()


def _registered(client: Client, target: str, columns: pa.Schema) -> SchemaVersion:
    """Return the columns of the dead-letter ledger. First create the ledger, and add the columns that it lacks."""
    client.ask(CreateLedger(target, exist_ok=True, lists=False))
    found = client.ask(GetSchema(target))
    require_columns_registered(found, target)
    if found.version < 0:
        entries = client.ask(DescribeLedger(target, lists=False)).entries
        if entries:
            raise Refused(
                f"ledger {target} has messages ({entries} entries), dead letters have columns",
                hint="Delete the ledger, or use a cursor of another name",
            )
        found = client.ask(RegisterSchema(target, schema_bytes(_merged(pa.schema([]), columns, target))))
    while True:
        registered = schema_from_bytes(found.arrow_schema, target)
        merged = _merged(registered, columns, target)
        if merged.equals(registered):
            return found
        found = client.ask(RegisterSchema(target, schema_bytes(merged), found.version))


def _merged(registered: pa.Schema, columns: pa.Schema, target: str) -> pa.Schema:
    fields = {field.name: field for field in registered}
    for field in columns:
        before = fields.get(field.name, field)
        kind = common_type(before.type, field.type)
        if kind is None:
            raise Refused(
                f"column {field.name!r} of ledger {target} is {before.type}, the dead letters have {field.type}",
                hint="Delete the ledger of dead letters, or use a cursor of another name",
            )
        fields[field.name] = before.with_type(kind).with_nullable(True)
    return pa.schema(list(fields.values()))


def _commit(
    client: Client, target: str, registered: SchemaVersion, query: str, number: int, rows: Iterable[pa.RecordBatch]
) -> None:
    """Append rows as batch `number` of a query, all at once. A repetition appends nothing."""
    run, encoder = query_run(query, number), RowEncoder()
    fit = ColumnFit(pa.schema([*schema_from_bytes(registered.arrow_schema, target), *_WRITTEN]))
    part = client.stage_part(query, number)
    sequence = 0
    for batch in rows:
        for piece in entry_pieces(fit.fit(batch, f"the dead letters for {target}")):
            metadata = arrow_metadata(
                query, sequence, system_clock_ms(), piece.num_rows, registered.version, (run.most, run.least)
            )
            part.write(encode_entry(metadata, encoder.encode([piece])), piece.num_rows)
            sequence += 1
    origin = BatchOrigin(named=True)
    client.ask(CommitRun(target, query, number, run.most, run.least, [part.close()], origin=origin))


def with_origin(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows with the properties REAL_TOPIC and ORIGIN_MESSAGE_ID, from their `__topic` and `__position`."""
    for batch in rows:
        names = [name for name in batch.schema.names if name not in _ORIGIN]
        arrays = [batch.column(name) for name in names]
        at = names.index(_PROPERTIES.name)
        arrays[at] = _properties(arrays[at], *(batch.column(name) for name in _ORIGIN))
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema([batch.schema.field(name) for name in names]))


def _properties(properties: pa.MapArray, topics: pa.Array, positions: pa.StructArray) -> pa.MapArray:
    """Append the properties REAL_TOPIC and ORIGIN_MESSAGE_ID to the properties of each row."""
    count = len(properties)
    starts = np.asarray(properties.offsets).astype(np.int64)
    first, own = int(starts[0]), int(starts[-1] - starts[0])
    ends = starts[1:] - first + 2 * np.arange(1, count + 1)
    # `chosen` are indexes into one array: first the rows' own properties, then all topics, then all positions.
    chosen = np.full(own + 2 * count, -1, dtype=np.int64)
    chosen[ends - 2], chosen[ends - 1] = own + np.arange(count), own + count + np.arange(count)
    chosen[chosen < 0] = np.arange(own)
    import pyarrow.compute as pc

    places = pc.binary_join_element_wise(
        *(positions.field(name).cast(pa.string()) for name in ("ledgerId", "entryId", "batchIndex")), ":"
    )
    kind = _PROPERTIES.type
    keys = pa.concat_arrays(
        [properties.keys.slice(first, own), pa.repeat(pa.scalar(TOPIC), count), pa.repeat(pa.scalar(PLACE), count)]
    )
    items = pa.concat_arrays([properties.items.slice(first, own), topics, places])
    offsets = pa.array(np.append(0, ends), pa.int32())
    return pa.MapArray.from_arrays(offsets, keys.take(pa.array(chosen)), items.take(pa.array(chosen)), type=kind)
