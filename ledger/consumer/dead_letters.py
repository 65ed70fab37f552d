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
  letter are also added there. If the ledger of dead letters has partitions, they are one commit, too.
- Messages are copied as bytes, not decoded by their schema. Otherwise a message with an error could not be moved.
- No Python code runs for each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.client.schemas import registered_columns, require_columns_registered
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.consumer.opened_rows import OpenedRows
from pyspark_ledger.ledger.errors import Refused, Terminated
from pyspark_ledger.ledger.ledger_selection import dead_letter_ledger
from pyspark_ledger.ledger.message.arrow_payload import arrow_metadata
from pyspark_ledger.ledger.message.column_encoding import RowEncoder
from pyspark_ledger.ledger.message.columns import ColumnFit, common_type, schema_bytes, schema_from_bytes
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.message.run_marker import query_run
from pyspark_ledger.ledger.names import partition_names, partition_of, short_name
from pyspark_ledger.ledger.partition_routing import by_partition
from pyspark_ledger.ledger.positions.row_selection import RowSelection
from pyspark_ledger.ledger.protocol.actions import (
    CreateLedger,
    DescribeLedger,
    GetSchema,
    RegisterSchema,
    SchemaVersion,
)
from pyspark_ledger.ledger.protocol.commits import BatchOrigin, CommitRun, CommitRuns, LedgerParts
from pyspark_ledger.ledger.protocol.cursors import AckDeadLetters, AskDelivery, DeliveredRange
from pyspark_ledger.ledger.protocol.ledgers import AskPartitions
from pyspark_ledger.ledger.protocol.reads import OpenRead
from pyspark_ledger.ledger.rows.batch_sizes import entry_pieces
from pyspark_ledger.ledger.rows.message_groups import RAW
from pyspark_ledger.ledger.rows.metadata_columns import METADATA, WRITABLE_METADATA

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client
    from pyspark_ledger.ledger.transport.part_writer import PartWriter

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
    logs = partition_names(target, client.ask(AskPartitions(target)).partitions)
    if not logs:
        client.ask(CreateLedger(target, exist_ok=True, lists=False))
    whole = _registered(client, target, columns)
    # Each partition has the columns of the whole ledger, under its own versions.
    registered = {log: _registered(client, log, schema_from_bytes(whole.arrow_schema, target)) for log in logs}
    rows = with_origin(_rows(client, ledger, columns, shares))
    try:
        _commit(client, registered or {target: whole}, f"dead-letters of {ledger} {cursor}", number, rows)
    except Terminated as ended:
        raise Terminated(
            f"the dead letters of cursor {cursor!r} of {short_name(ledger)} were not written: {ended.message}",
            hint=f"Delete the ledger {short_name(target)}, or use a cursor of another name",
        ) from ended
    client.ask(AckDeadLetters(ledger, cursor, number))


def _rows(
    client: Client, ledger: str, columns: pa.Schema, shares: Iterable[DeliveredRange]
) -> Iterator[pa.RecordBatch]:
    wanted = pa.schema([*columns, *_WRITTEN, *map(METADATA.field, _ORIGIN)])
    for share in shares:
        request = OpenRead(ledger, share.range.start, share.range.end)
        yield from OpenedRows(client, request, RowSelection(share.skip), wanted).batches()


def _registered(client: Client, target: str, columns: pa.Schema) -> SchemaVersion:
    """Return the columns of the dead-letter ledger. First add the columns that it lacks."""
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
    client: Client, targets: Mapping[str, SchemaVersion], query: str, number: int, rows: Iterable[pa.RecordBatch]
) -> None:
    """Append rows as batch `number` of a query to one ledger or its partitions, all at once, or nothing if repeated.

    The key of a row selects its partition. Rows without a key go to the partitions in turn, batch by batch.
    """
    run, encoder, logs = query_run(query, number), RowEncoder(), list(targets)
    fits = [
        ColumnFit(pa.schema([*schema_from_bytes(target.arrow_schema, log), *_WRITTEN]))
        for log, target in targets.items()
    ]
    parts: dict[str, PartWriter] = {}
    sequence = 0
    for batch in rows:
        for place, routed in by_partition(batch, len(logs), number):
            log = logs[place]
            if log not in parts:
                parts[log] = client.stage_part(query, number)
            for piece in entry_pieces(fits[place].fit(routed, f"the dead letters for {log}")):
                metadata = arrow_metadata(
                    query, sequence, system_clock_ms(), piece.num_rows, targets[log].version, (run.most, run.least)
                )
                parts[log].write(encode_entry(metadata, encoder.encode([piece])), piece.num_rows)
                sequence += 1
    staged, origin = {log: part.close() for log, part in parts.items()}, BatchOrigin(named=True)
    if partition_of(logs[0]) is None:
        client.ask(CommitRun(logs[0], query, number, run.most, run.least, list(staged.values()), origin=origin))
    else:
        runs = [LedgerParts(log, [part]) for log, part in staged.items()]
        client.ask(CommitRuns(query, number, run.most, run.least, runs, origin=origin))


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
