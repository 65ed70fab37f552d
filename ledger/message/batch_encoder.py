"""Encoder of messages into entries, as Apache Pulsar's Java client builds them. Pure functions.

An entry contains a single message, or a batch of messages:

    batch:  size u32  SingleMessageMetadata  value …     `ledger.message.batch_decoder` decodes it

Rules
- A batch of one message is written as a single message. Field 11, the number of messages, is present from two messages
  on, as in Pulsar's client.
- The entry's metadata have the key, the ordering key (a second key) and the schema version of the first message.
  `sequence_id` is the id of the first message, `highest_sequence_id` the id of the last. A single message always states
  its size before compression. A batch states this size only if it is compressed.
- Messages without properties and ordering keys are encoded by columns, without a Python object for each message. The
  bytes are the same as with protobuf's own encoder.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.compression import NONE, compress
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.message.outgoing.batch_items import Numbers, Sizes, join_columns, join_lists, lengths
from pyspark_ledger.ledger.message.outgoing.message import (
    OutgoingMessage,
    ProducerMetadata,
    entry_bytes_most,
    entry_metadata,
    key_text,
    single_message,
    single_payload,
)
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata, SingleMessageMetadata

__all__ = [
    "OutgoingMessage",
    "ProducerMetadata",
    "batch_edges",
    "encode_columns",
    "encode_messages",
    "encode_ordinary",
    "require_columns",
]

_U32 = struct.Struct(">I")
_INT32_MAX = 2**31 - 1


def encode_messages(
    envelope: ProducerMetadata, messages: Sequence[OutgoingMessage], publish_time_ms: int
) -> list[Buffer]:
    """Return the entry of these messages as a list of buffers: a batch, or a single message."""
    if not messages:
        raise Refused("an entry with no message was requested", hint="Give at least one message")
    first = messages[0]
    if len(messages) == 1:
        metadata, single = single_message(envelope, first, publish_time_ms)
        return encode_entry(metadata, single)
    if any([message.properties or message.ordering_key is not None for message in messages]):  # noqa: C419 — faster
        payload: Buffer = b"".join(_item(message) for message in messages)
    else:
        payload = _plain(messages)
    metadata = entry_metadata(envelope, first.sequence_id, publish_time_ms, first.key)
    if first.ordering_key is not None:
        metadata.ordering_key = first.ordering_key
    return _batch(envelope, metadata, payload, len(messages), messages[-1].sequence_id)


def encode_ordinary(
    envelope: ProducerMetadata,
    values: list[bytes],
    keys: list[str | None],
    first_sequence_id: int,
    publish_time_ms: int,
) -> list[Buffer]:
    """Return the entry of messages that have a value, perhaps a key of text, and consecutive sequence ids."""
    count = len(values)
    if count == 1:
        return encode_messages(envelope, [OutgoingMessage(values[0], first_sequence_id, keys[0])], publish_time_ms)
    sequence_ids = np.arange(first_sequence_id, first_sequence_id + count, dtype=np.uint64)
    payload = join_lists(values, keys, sequence_ids, np.zeros(count, np.uint64))
    metadata = entry_metadata(envelope, first_sequence_id, publish_time_ms, keys[0])
    return _batch(envelope, metadata, payload, count, first_sequence_id + count - 1)


def encode_columns(
    envelope: ProducerMetadata,
    values: pa.Array,
    first_sequence_id: int,
    publish_time_ms: int,
    *,
    keys: pa.Array | None = None,
    event_times_ms: pa.Array | None = None,
    max_messages: int = 1000,
    max_bytes: int = 128 * 1024,
) -> Iterator[tuple[list[Buffer], int]]:
    """Encode messages given as columns. Yields the entries in order, each with its number of messages.

    `values` is binary or text, null for a tombstone. `keys` is binary or text. `event_times_ms` are milliseconds since
    1970. A batch has at most `max_messages` messages and `max_bytes` of values. Exception: a larger value is a batch
    of its own.
    """
    if not len(values):
        return
    values = _as_binary(values, "values")
    text_keys, is_base64 = _text_keys(keys)
    times = _times(event_times_ms, len(values))
    sequence_ids = np.arange(first_sequence_id, first_sequence_id + len(values), dtype=np.uint64)
    edges = batch_edges(lengths(values), max_messages, max_bytes)
    data, offsets = join_columns(values, sequence_ids, text_keys, times, is_base64=is_base64)
    for start, end in pairwise(edges):
        key = None if text_keys is None or not text_keys[start].is_valid else text_keys[start].as_py().decode()
        sequence_id = int(sequence_ids[start])
        metadata = entry_metadata(envelope, sequence_id, publish_time_ms, key, is_base64=is_base64)
        if end - start == 1:
            value = values[start].as_py()
            if times[start]:
                metadata.event_time = int(times[start])
            yield encode_entry(metadata, single_payload(envelope, metadata, value)), 1
        else:
            payload = data[int(offsets[start]) : int(offsets[end])]
            yield _batch(envelope, metadata, payload, end - start, sequence_id + end - start - 1), end - start


def batch_edges(sizes: Sizes, max_messages: int, max_bytes: int) -> list[int]:
    """Divide messages of these sizes into batches. Returns their bounds: batch i is `[edges[i], edges[i + 1])`."""
    ends = np.cumsum(sizes)
    edges, at, before = [0], 0, 0
    while at < len(sizes):
        fits = int(np.searchsorted(ends, before + max_bytes, side="right"))
        at = min(max(fits, at + 1), at + max_messages)
        before = int(ends[at - 1])
        edges.append(at)
    return edges


def require_columns(
    values: pa.Array,
    keys: pa.Array | None,
    event_times_ms: pa.Array | None,
    entry_bytes_max: int,
    value_bytes_max: int = _INT32_MAX,
) -> None:
    """Raise Refused for columns of unsupported types or different lengths, and for a message that needs chunks."""
    for name, column in (("keys", keys), ("event times", event_times_ms)):
        if column is not None and len(column) != len(values):
            raise Refused(f"{len(values)} values and {len(column)} {name} were given, expected equal numbers")
    _times(event_times_ms, len(values))
    key_bytes = 0 if keys is None else int(lengths(_as_binary(keys, "keys")).max(initial=0))
    value_bytes = int(lengths(_as_binary(values, "values")).max(initial=0))
    size = entry_bytes_most(value_bytes, key_bytes)
    hint = "Send large messages one by one with `send`, which divides them into chunks"
    if size > entry_bytes_max:
        raise Refused(
            f"a message of the column takes up to {size} bytes, an entry of this ledger holds at most "
            f"{entry_bytes_max}",
            hint=hint,
        )
    if value_bytes > value_bytes_max:
        raise Refused(f"a value of the column has {value_bytes} bytes, chunk_max_bytes is {value_bytes_max}", hint=hint)


def _batch(
    envelope: ProducerMetadata, metadata: MessageMetadata, payload: Buffer, count: int, highest_sequence_id: int
) -> list[Buffer]:
    if envelope.compression != NONE:
        metadata.compression = envelope.compression
        metadata.uncompressed_size = memoryview(payload).nbytes
        payload = compress(envelope.compression, memoryview(payload))
    metadata.num_messages_in_batch = count
    metadata.highest_sequence_id = highest_sequence_id
    return encode_entry(metadata, payload)


def _item(message: OutgoingMessage) -> bytes:
    """Encode one message of a batch with protobuf."""
    item = SingleMessageMetadata(payload_size=message.size, sequence_id=message.sequence_id)
    for name, value in message.properties.items():
        item.properties.add(key=name, value=value)
    if message.key is not None:
        item.partition_key, item.partition_key_b64_encoded = key_text(message.key)
    if message.ordering_key is not None:
        item.ordering_key = message.ordering_key
    if message.event_time_ms:
        item.event_time = message.event_time_ms
    if message.value is None:
        item.null_value = True
    head = item.SerializeToString()
    return _U32.pack(len(head)) + head + (message.value or b"")


def _plain(messages: Sequence[OutgoingMessage]) -> Buffer:
    """Encode messages without properties and ordering keys. Encodes by columns if all keys are text, or all bytes."""
    keys = [message.key for message in messages]
    if {str, bytes} <= set(map(type, keys)):
        return b"".join(_item(message) for message in messages)
    sequence_ids = np.array([message.sequence_id for message in messages], np.uint64)
    times = np.array([message.event_time_ms for message in messages], np.uint64)
    return join_lists([message.value for message in messages], keys, sequence_ids, times)


def _as_binary(column: pa.Array, name: str) -> pa.Array:
    """Return a column of bytes or text as large binary, without a copy of the data."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    import pyarrow.compute as pc

    kind = column.type
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or _is_text(kind)):
        raise Refused(f"{name} are {kind}, expected binary or text")
    most = pc.max(pc.binary_length(column)).as_py() or 0
    if most > _INT32_MAX:
        raise Refused(f"one of the {name} has {most} bytes, a message holds at most {_INT32_MAX}")
    if _is_text(kind):
        column = column.cast(pa.large_string())
    return column.cast(pa.large_binary())


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _text_keys(keys: pa.Array | None) -> tuple[pa.Array | None, bool]:
    """Return keys as their text in the metadata, and whether that text is base64."""
    if keys is None:
        return None, False
    text = _is_text(keys.type)
    column = _as_binary(keys, "keys")
    if text:
        return column, False
    # This loop runs once a message, because Arrow has no base64.
    encoded = [None if key is None else base64.b64encode(key) for key in column.to_pylist()]
    return pa.array(encoded, pa.large_binary()), True


def _times(column: pa.Array | None, count: int) -> Numbers:
    if column is None:
        return np.zeros(count, dtype=np.uint64)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms"), safe=False)
    times = np.asarray(column.cast(pa.int64()).fill_null(0), dtype=np.int64)
    if times.size and times.min() < 0:
        raise Refused(f"an event time is {times.min()}, expected milliseconds since 1970")
    return times.astype(np.uint64)
