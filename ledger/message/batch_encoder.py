"""Encoder of messages into entries, as Apache Pulsar's Java client builds them. Pure.

An entry contains a single message, or a batch of messages:

    batch:  size u32  SingleMessageMetadata  value …     `ledger.message.batch_decoder` decodes it

Rules
- A batch of one message is written as a single message. Field 11, the number of messages, is present from two messages
  on, as in Pulsar's client.
- The entry's metadata have key, ordering key and schema version of the first message. `sequence_id` is that of the
  first message, `highest_sequence_id` that of the last. A single message always states the size before compression, a
  batch only if it is compressed.
- Messages without properties and ordering keys are encoded by columns, without a Python object for each message. Both
  ways give the bytes that protobuf gives, with fields in the order of their numbers.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.compression import NONE, compress
from pyspark_ledger.ledger.message.entry import encode_entry
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
    "require_columns",
]

_U32 = struct.Struct(">I")
_INT32_MAX = 2**31 - 1
_VARINT_BITS = 7
# Tags of SingleMessageMetadata, in their order on the wire.
_KEY, _SIZE, _EVENT_TIME, _KEY_B64, _SEQUENCE, _NULL = 0x12, 0x18, 0x28, 0x30, 0x40, 0x48

# A column of bytes is a pair: a table with a row for each message, and a mask of the table's used bytes.
_Bytes = npt.NDArray[np.uint8]
_Mask = npt.NDArray[np.bool_]
_Numbers = npt.NDArray[np.uint64]


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
    values = _as_binary(values, "values")
    text_keys, is_base64 = _text_keys(keys)
    times = _times(event_times_ms, len(values))
    sequence_ids = np.arange(first_sequence_id, first_sequence_id + len(values), dtype=np.uint64)
    edges = batch_edges(_lengths(values), max_messages, max_bytes)
    data, offsets = _items(values, sequence_ids, text_keys, times, is_base64=is_base64)
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


def batch_edges(sizes: npt.NDArray[np.int64], max_messages: int, max_bytes: int) -> list[int]:
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
    key_bytes = 0 if keys is None else int(_lengths(_as_binary(keys, "keys")).max(initial=0))
    value_bytes = int(_lengths(_as_binary(values, "values")).max(initial=0))
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
    message_keys = [message.key for message in messages]
    kinds = set(map(type, message_keys)) - {type(None)}
    if len(kinds) > 1:
        return b"".join(_item(message) for message in messages)
    values = pa.array([message.value for message in messages], pa.large_binary())
    sequence_ids = np.array([message.sequence_id for message in messages], np.uint64)
    times = np.array([message.event_time_ms for message in messages], np.uint64)
    keys, is_base64 = None, bytes in kinds
    if is_base64:
        message_keys = [None if key is None else key_text(key)[0] for key in message_keys]
    if kinds:
        keys = pa.array(message_keys, pa.large_string()).cast(pa.large_binary())
    return _items(values, sequence_ids, keys, times, is_base64=is_base64)[0]


def _items(
    values: pa.Array, sequence_ids: _Numbers, keys: pa.Array | None, times: _Numbers, *, is_base64: bool
) -> tuple[pa.Buffer, npt.NDArray[np.int64]]:
    """Encode the items of a batch, each with size, metadata and value.

    Returns all items in one buffer, and their offsets: item i is at `[offsets[i], offsets[i + 1])`.
    """
    count = len(values)
    everywhere = np.ones(count, dtype=np.bool_)
    keyed = np.zeros(count, dtype=np.bool_) if keys is None else _valid(keys)
    key_sizes = np.zeros(count, dtype=np.int64) if keys is None else _lengths(keys)
    before = [_constant(_KEY, keyed), _varint(key_sizes.astype(np.uint64), keyed)] if keys is not None else []
    behind = [
        _constant(_SIZE, everywhere),
        _varint(_lengths(values).astype(np.uint64), everywhere),
        *([_constant(_EVENT_TIME, times > 0), _varint(times, times > 0)] if times.any() else []),
        *([_constant(_KEY_B64, keyed), _constant(int(is_base64), keyed)] if keys is not None else []),
        _constant(_SEQUENCE, everywhere),
        _varint(sequence_ids, everywhere),
        *([_constant(_NULL, ~_valid(values)), _constant(1, ~_valid(values))] if values.null_count else []),
    ]
    if keys is None and not values.null_count and not times.any() and _are_equal(_lengths(values)):
        return _equal_items(values, _lengths(values), behind)
    sizes = key_sizes + sum(mask.sum(axis=1, dtype=np.int64) for _, mask in (*before, *behind))
    columns = [_joined([_u32(sizes), *before]), *([keys] if keys is not None else []), _joined(behind), values]
    import pyarrow.compute as pc  # imported here: other processes start a tenth faster without it

    empty = pa.scalar(b"", pa.large_binary())
    joined = pc.binary_join_element_wise(*columns, empty, null_handling="replace", null_replacement="")
    _, offsets, data = joined.buffers()
    return data, np.frombuffer(offsets, dtype=np.int64)[joined.offset : joined.offset + count + 1]


def _are_equal(sizes: npt.NDArray[np.int64]) -> bool:
    return len(sizes) > 0 and int(sizes.min()) == int(sizes.max())


def _equal_items(
    values: pa.Array, sizes: npt.NDArray[np.int64], metadata: Sequence[tuple[_Bytes, _Mask]]
) -> tuple[pa.Buffer, npt.NDArray[np.int64]]:
    """Encode items whose values have the same size.

    The length of their metadata rarely changes. So consecutive items of equal length are written as one rectangle.
    """
    count, size = len(values), int(sizes[0])
    pieces = [_u32(sum(mask.sum(axis=1, dtype=np.int64) for _, mask in metadata)), *metadata]
    rows = np.concatenate([piece for piece, _ in pieces], axis=1)
    there = np.concatenate([mask for _, mask in pieces], axis=1)
    heads = there.sum(axis=1, dtype=np.int64)
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(heads + size, out=offsets[1:])
    data = pa.allocate_buffer(int(offsets[-1]))
    target = np.frombuffer(data, dtype=np.uint8)
    _, edges, content = values.buffers()
    first = int(np.frombuffer(edges, dtype=np.int64)[values.offset])
    source = np.zeros(0, np.uint8) if content is None else np.frombuffer(content, dtype=np.uint8)
    source = source[first : first + count * size].reshape(count, size)
    for start, end in pairwise([0, *(np.flatnonzero(np.diff(heads)) + 1).tolist(), count]):
        head = int(heads[start])
        block = target[offsets[start] : offsets[end]].reshape(end - start, head + size)
        block[:, :head] = rows[start:end][there[start:end]].reshape(end - start, head)
        block[:, head:] = source[start:end]
    return data, offsets


def _constant(byte: int, where: _Mask) -> tuple[_Bytes, _Mask]:
    return np.full((len(where), 1), byte, dtype=np.uint8), where[:, None]


def _varint(numbers: _Numbers, where: _Mask) -> tuple[_Bytes, _Mask]:
    """Return a table with the varint of a number in each row, and a mask of the used bytes."""
    most = max(1, -(-int(numbers.max(initial=0)).bit_length() // _VARINT_BITS))
    shifts = np.arange(0, most * _VARINT_BITS, _VARINT_BITS, dtype=np.uint64)
    rest = numbers[:, None] >> shifts
    there = rest > 0
    there[:, 0] = True
    more = np.zeros_like(there)
    more[:, :-1] = there[:, 1:]
    groups = (rest & np.uint64(0x7F)).astype(np.uint8)
    groups[more] |= np.uint8(0x80)
    return groups, there & where[:, None]


def _u32(numbers: npt.NDArray[np.int64]) -> tuple[_Bytes, _Mask]:
    rows = numbers.astype(">u4").view(np.uint8).reshape(len(numbers), 4)
    return rows, np.ones(rows.shape, dtype=np.bool_)


def _joined(pieces: Sequence[tuple[_Bytes, _Mask]]) -> pa.Array:
    """Join the pieces of each row into one binary value."""
    rows = np.concatenate([piece for piece, _ in pieces], axis=1)
    there = np.concatenate([mask for _, mask in pieces], axis=1)
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(there.sum(axis=1), out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows[there])]
    return pa.Array.from_buffers(pa.large_binary(), len(rows), buffers)


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the number of bytes of each value, 0 for null."""
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(pc.binary_length(column), 0), dtype=np.int64)


def _valid(column: pa.Array) -> _Mask:
    return np.asarray(column.is_valid(), dtype=np.bool_)


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


def _times(column: pa.Array | None, count: int) -> _Numbers:
    if column is None:
        return np.zeros(count, dtype=np.uint64)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms"), safe=False)
    times = np.asarray(column.cast(pa.int64()).fill_null(0), dtype=np.int64)
    if times.size and times.min() < 0:
        raise Refused(f"an event time is {times.min()}, expected milliseconds since 1970")
    return times.astype(np.uint64)
