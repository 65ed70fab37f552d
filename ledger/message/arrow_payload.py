"""Rows as the payload of an entry: one complete Arrow IPC stream, which begins with the schema.

An Arrow IPC stream is Arrow's byte format for record batches. It consists of *Arrow messages*: the
schema, dictionaries and batches.

Rules
- Reading copies nothing: columns are views of the payload. Exception: columns that were encoded
  (`ledger.message.column_encoding`) are decoded.
- A stream that was cut between two of its Arrow messages is a valid shorter stream. To detect the cut, a payload must
  end with the stream's end mark. The entry's metadata also state the row count.
- A schema's version is eight bytes big-endian, as Pulsar numbers the schemas of a topic.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Literal

import pyarrow as pa

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.message.entry import ARROW_PROPERTY
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import KeyValue, MessageMetadata

_VERSION = struct.Struct(">q")
DICTIONARY = {b"ledger.encoding": b"dictionary"}
"""Field metadata of a column that the encoder stored as a dictionary. Readers get a column of the values."""
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def encode_rows(batches: Sequence[pa.RecordBatch], *, compression: Literal["lz4", "zstd"] | None = None) -> pa.Buffer:
    """Encode batches of one schema as one stream. Raises Refused if there is no batch, or the schemas differ."""
    if not batches:
        raise Refused("no record batch was given, a stream of rows needs at least one batch for its schema")
    schema = batches[0].schema
    for number, batch in enumerate(batches):
        if not batch.schema.equals(schema):
            raise Refused(
                f"record batch {number} has the columns {_columns(batch.schema)}, the first has {_columns(schema)}"
            )
    options = pa.ipc.IpcWriteOptions(compression=compression)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def decode_rows(
    payload: Buffer, where: str = "an Arrow payload", wanted: Callable[[str], bool] | None = None
) -> list[pa.RecordBatch]:
    """Return the batches of a stream, as views of `payload`. Raises Corrupt naming `where`.

    `wanted` selects columns by name; other columns are neither decompressed nor read.
    """
    buffer = pa.py_buffer(payload)
    if bytes(buffer[-len(_END) :]) != _END:
        raise Corrupt(f"{where} of {buffer.size} bytes does not end with the end mark of a stream ({_END.hex()})")
    source = pa.BufferReader(buffer)
    try:
        with pa.ipc.open_stream(source) as reader:
            names = reader.schema.names
            is_subset = wanted is not None and not all(map(wanted, names))
            batches = [] if is_subset else list(reader)
        if is_subset and wanted is not None:
            included = [number for number, name in enumerate(names) if wanted(name)]
            source = pa.BufferReader(buffer)
            # The numbers of rows are needed. For an empty list, Arrow would read all columns. Arrow's threads take five
            # times longer to start than few columns take to decompress.
            some = pa.ipc.IpcReadOptions(included_fields=included or [0], use_threads=False)
            with pa.ipc.open_stream(source, options=some) as reader:
                batches = list(reader)
        for batch in batches:
            batch.validate()
        batches = [_decoded(batch) for batch in batches]
    except (pa.ArrowException, OSError) as wrong:
        raise Corrupt(f"{where} of {buffer.size} bytes is no stream of rows: {wrong}") from wrong
    if source.tell() != buffer.size:
        raise Corrupt(f"{where} has {buffer.size} bytes, but its stream of rows ends at byte {source.tell()}")
    return batches


def leading_schema(begin: Buffer) -> pa.Schema | None:
    """Return the columns of a stream from its first bytes; None if these do not contain the whole schema."""
    try:
        schema = pa.ipc.read_schema(pa.BufferReader(pa.py_buffer(begin)))
    except (pa.ArrowException, OSError, ValueError):
        return None
    return pa.schema([_decoded_field(field) for field in schema], schema.metadata)


def _is_encoded(field: pa.Field) -> bool:
    return bool(field.metadata) and DICTIONARY.items() <= field.metadata.items()


def _decoded_field(field: pa.Field) -> pa.Field:
    if not _is_encoded(field):
        return field
    metadata = {name: value for name, value in field.metadata.items() if name not in DICTIONARY}
    return field.with_type(field.type.value_type).with_metadata(metadata or None)


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with decoded columns. Raises ArrowException for a dictionary index without a value."""
    if not any(map(_is_encoded, batch.schema)):
        return batch
    columns = [
        column.dictionary.take(column.indices) if _is_encoded(field) else column
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    fields = [_decoded_field(field) for field in batch.schema]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, batch.schema.metadata))


def arrow_metadata(
    producer: str,
    sequence_id: int,
    publish_time_ms: int,
    rows: int,
    schema_version: int,
    txn: tuple[int, int] | None = None,
) -> MessageMetadata:
    """Return the metadata of an entry of rows.

    `txn` is the id of the run (the entries of one Spark batch) as two unsigned halves, the most significant first.
    """
    metadata = MessageMetadata(
        producer_name=producer,
        sequence_id=sequence_id,
        publish_time=publish_time_ms,
        properties=[KeyValue(key=ARROW_PROPERTY, value=str(rows))],
        schema_version=_VERSION.pack(schema_version),
    )
    if txn is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = txn
    return metadata


def version_bytes(version: int) -> bytes:
    return _VERSION.pack(version)


def schema_version_of(metadata: MessageMetadata, where: str) -> int | None:
    """Return the version of the entry's registered schema, None if the entry states none. Raises Corrupt."""
    if not metadata.HasField("schema_version"):
        return None
    if len(metadata.schema_version) != _VERSION.size:
        raise Corrupt(f"{where} has a schema version of {len(metadata.schema_version)} bytes, expected 8")
    (version,) = _VERSION.unpack(metadata.schema_version)
    return int(version)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
