"""Metadata columns of rows, such as key, position and times (`METADATA`).

A read from a bucket has more columns, such as the producer's name (`PROVENANCE`). The column `__messageId` is Pulsar's
`MessageIdData` in protobuf:

    08 ledger-id  10 entry-id  [18 partition]  [20 batch-index]        varints; the ledger's name states the partition

08 to 20 are Protobuf's tags of the fields, in hexadecimal.

Rules
- Every column is built for many rows at once. A value of an entry is created once and repeated for its rows.
- In an Arrow entry the batch index is the row number. A message that was not batched has no batch index in
  `__messageId`, and -1 in `__position`.
- Pulsar's times are unsigned in protobuf and signed here, as in Java. A time outside of the range of timestamps is
  null, like a missing time.
- `__index` is the message's index in the topic. It is null if the broker's stamp before the entry has no index. The
  stamp (`BrokerEntryMetadata`) has the time at which the broker stored the entry, and this index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_ledger.ledger.message.batch_columns.columns import MessageArrays, MessageColumns
from pyspark_ledger.ledger.message.columns import cast_column
from pyspark_ledger.ledger.message.entry import ARROW_PROPERTY, arrow_rows
from pyspark_ledger.ledger.message.varints import varint
from pyspark_ledger.ledger.names import partition_of, topic_text
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.settings.setting import signed

if TYPE_CHECKING:
    from pyspark_ledger.ledger.message.batch_decoder import Message
    from pyspark_ledger.ledger.message.entry import ParsedEntry
    from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata


METADATA = pa.schema(
    [
        pa.field("__key", pa.string()),
        pa.field("__topic", pa.string()),
        pa.field("__messageId", pa.binary()),
        pa.field("__publishTime", pa.timestamp("us", tz="UTC")),
        pa.field("__eventTime", pa.timestamp("us", tz="UTC")),
        pa.field("__messageProperties", pa.map_(pa.string(), pa.string())),
        pa.field(
            "__position",
            pa.struct(
                [
                    pa.field("ledgerId", pa.int64()),
                    pa.field("entryId", pa.int64()),
                    pa.field("batchIndex", pa.int32()),
                ]
            ),
        ),
    ]
)
# Metadata columns that a writer can set. All other columns of METADATA are computed from the row's position and entry.
WRITABLE_METADATA = ("__key", "__eventTime", "__messageProperties")

Integers = npt.NDArray[np.int64]
Columns = dict[str, Callable[[], pa.Array]]
_TIMESTAMP, _PROPERTIES = METADATA.field("__publishTime").type, METADATA.field("__messageProperties").type
_PARTITION_MAX = 2**31 - 1
MILLISECONDS_MAX = (2**63 - 1) // 1000  # the largest time of a timestamp in microseconds


@dataclass(frozen=True, slots=True)
class Topic:
    """Topic of a ledger in Pulsar's notation, and its partition, -1 for a topic without partitions."""

    text: str
    partition: int

    @classmethod
    def of(cls, canonical: str) -> Topic:
        """Return the topic of a ledger. `canonical` is the ledger's name, `tenant/namespace/persistent/topic`."""
        part = partition_of(canonical)
        return cls(topic_text(canonical), part[1] if part and part[1] <= _PARTITION_MAX else -1)


def columns_of_entry(
    topic: Topic,
    position: Position,
    metadata: MessageMetadata,
    first_row: int,
    batch: pa.RecordBatch,
    names: Sequence[str] = METADATA.names,
    more: Columns | None = None,
) -> list[pa.Array]:
    """Return the metadata columns `names` for a batch of one Arrow entry. The batch starts at row `first_row`.

    If the writer set `__key`, `__eventTime` or `__messageProperties`, the batch has a column of that name. Otherwise
    all rows have the value of the entry's metadata. `more` has functions for additional columns.
    """
    rows = batch.num_rows
    numbers = np.arange(first_row, first_row + rows, dtype=np.int64)
    ledgers, entries = np.full(rows, position.ledger_id), np.full(rows, position.entry_id)
    key = metadata.partition_key if metadata.HasField("partition_key") else None
    properties = [(pair.key, pair.value) for pair in metadata.properties if pair.key != ARROW_PROPERTY]
    columns: Columns = {
        "__key": lambda: pa.repeat(pa.scalar(key, pa.string()), rows),
        "__topic": lambda: pa.repeat(pa.scalar(topic.text, pa.string()), rows),
        "__messageId": lambda: message_ids(topic.partition, [position], np.zeros(rows, dtype=np.int64), numbers),
        "__publishTime": lambda: _times(np.full(rows, signed(metadata.publish_time), dtype=np.int64)),
        "__eventTime": lambda: _times(np.full(rows, signed(metadata.event_time), dtype=np.int64)),
        "__messageProperties": lambda: _repeated_map(properties, rows),
        "__position": lambda: _positions(ledgers, entries, numbers),
        **(more or {}),
    }
    where = f"entry {position} of {topic.text}"
    written = {name for name in WRITABLE_METADATA if name in batch.schema.names}
    return [
        cast_column(batch.column(name), METADATA.field(name), where) if name in written else columns[name]()
        for name in names
    ]


def _repeated_map(pairs: Sequence[tuple[str, str]], rows: int) -> pa.Array:
    """Return a map column with the same pairs in each row. Reason: `pa.repeat` of a map costs 0.3 µs for each row."""
    offsets = pa.array(np.arange(rows + 1) * len(pairs), pa.int32())
    order = pa.array(np.tile(np.arange(len(pairs)), rows))
    keys, values = (pa.array([pair[i] for pair in pairs], pa.string()).take(order) for i in (0, 1))
    return pa.MapArray.from_arrays(offsets, keys, values, _PROPERTIES)


def message_columns(owner: Integers, messages: Sequence[Message]) -> MessageColumns:
    """Return messages as columns. Message `i` belongs to entry `owner[i]`."""
    count = len(messages)
    return MessageArrays(
        owner,
        np.fromiter((message.batch_index for message in messages), np.int64, count),
        pa.array([message.value for message in messages], pa.binary()),
        pa.array([message.key for message in messages], pa.string()),
        np.fromiter((message.event_time for message in messages), np.uint64, count).astype(np.int64),
        np.fromiter((message.publish_time for message in messages), np.uint64, count).astype(np.int64),
        pa.array([list(message.properties.items()) for message in messages], _PROPERTIES),
        np.fromiter((message.sequence_id for message in messages), np.uint64, count).astype(np.int64),
        pa.array([message.ordering_key for message in messages], pa.binary()),
    )


def columns_of_batches(
    topic: Topic,
    positions: Sequence[Position],
    messages: MessageColumns,
    names: Sequence[str],
    more: Columns | None = None,
) -> list[pa.Array]:
    """Return the metadata columns `names`. The entry of message `i` is at `positions[messages.owner[i]]`."""

    def places() -> pa.Array:
        ledger_ids = np.fromiter((position.ledger_id for position in positions), np.int64, len(positions))
        entry_ids = np.fromiter((position.entry_id for position in positions), np.int64, len(positions))
        return _positions(ledger_ids[messages.owner], entry_ids[messages.owner], messages.batch_index)

    columns: Columns = {
        "__key": lambda: messages.keys,
        "__topic": lambda: pa.repeat(pa.scalar(topic.text, pa.string()), len(messages.owner)),
        "__messageId": lambda: message_ids(topic.partition, positions, messages.owner, messages.batch_index),
        "__publishTime": lambda: _times(messages.publish_times),
        "__eventTime": lambda: _times(messages.event_times),
        "__messageProperties": lambda: messages.properties,
        "__position": places,
        **(more or {}),
    }
    return [columns[name]() for name in names]


def message_ids(partition: int, positions: Sequence[Position], owner: Integers, index: Integers) -> pa.Array:
    """Return message ids as a binary column.

    Message `i` belongs to the entry at `positions[owner[i]]`. Its batch index is `index[i]`, -1 if it was not batched.
    """
    heads = [_head(position, partition) for position in positions]
    head_lengths = np.fromiter((len(head) for head in heads), np.int64, len(heads))
    tail_lengths = np.where(index < 0, 0, 1 + _varint_lengths(np.maximum(index, 0)))
    lengths = head_lengths[owner] + tail_lengths
    offsets = np.zeros(len(index) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = np.zeros(int(offsets[-1]), dtype=np.uint8)
    for length in np.unique(head_lengths).tolist():
        same_length = np.flatnonzero(head_lengths == length)
        table = np.zeros((len(heads), length), dtype=np.uint8)
        table[same_length] = np.frombuffer(b"".join(heads[number] for number in same_length), dtype=np.uint8).reshape(
            -1, length
        )
        rows = np.flatnonzero(head_lengths[owner] == length)
        data[offsets[rows].astype(np.int64)[:, None] + np.arange(length)] = table[owner[rows]]
    _put_tails(data, offsets[1:].astype(np.int64) - tail_lengths, tail_lengths, index)
    return pa.Array.from_buffers(pa.binary(), len(index), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _put_tails(data: npt.NDArray[np.uint8], starts: Integers, lengths: Integers, index: Integers) -> None:
    """Write field 4, the batch index, into the id of each message of a batch.

    Fields of equal length are written together.
    """
    for length in np.unique(lengths):
        if length == 0:
            continue
        rows = lengths == length
        at, rest = starts[rows], index[rows].copy()
        data[at] = 0x20
        for digit in range(1, int(length)):
            more = 0x80 if digit < length - 1 else 0
            data[at + digit] = (rest & 0x7F) | more
            rest >>= 7


def _varint_lengths(values: Integers) -> Integers:
    lengths = np.ones(len(values), dtype=np.int64)
    for bits in (7, 14, 21, 28, 35):
        lengths += values >= 1 << bits
    return lengths


def _head(position: Position, partition: int) -> bytes:
    head = b"\x08" + varint(position.ledger_id) + b"\x10" + varint(position.entry_id)
    return head if partition < 0 else head + b"\x18" + varint(partition)


def _times(milliseconds: Integers) -> pa.Array:
    """Return timestamps. Pulsar writes 0 for a missing time."""
    null = (milliseconds == 0) | (milliseconds > MILLISECONDS_MAX) | (milliseconds < -MILLISECONDS_MAX)
    return pa.array(np.where(null, 0, milliseconds) * 1000, pa.int64(), mask=null).cast(_TIMESTAMP)


def _positions(ledgers: Integers, entries: Integers, index: Integers) -> pa.Array:
    fields = list(METADATA.field("__position").type)
    columns = [
        pa.array(ledgers.astype(np.int64)),
        pa.array(entries.astype(np.int64)),
        pa.array(index.astype(np.int32)),
    ]
    return pa.StructArray.from_arrays(columns, fields=fields)


PROVENANCE = pa.schema(
    [
        pa.field("__producer", pa.string()),
        pa.field("__sequenceId", pa.int64()),
        pa.field("__orderingKey", pa.binary()),
        pa.field("__schemaVersion", pa.binary()),
        pa.field("__brokerPublishTime", pa.timestamp("us", tz="UTC")),
        pa.field("__index", pa.int64()),
    ]
)
_TIME = PROVENANCE.field("__brokerPublishTime").type


def provenance_of_batches(messages: MessageColumns, entries: Sequence[ParsedEntry]) -> Columns:
    """Return a function for each column of `PROVENANCE`. Message `i` belongs to `entries[messages.owner[i]]`."""
    owner = messages.owner

    def index() -> pa.Array:
        counts = np.fromiter((_messages(entry) for entry in entries), np.int64, len(entries))[owner]
        ends = np.fromiter((_row_end(entry) for entry in entries), np.int64, len(entries))[owner]
        return pa.array(ends - counts + np.maximum(messages.batch_index, 0), pa.int64(), mask=ends < counts)

    return {
        "__producer": lambda: _repeat([entry.metadata.producer_name for entry in entries], pa.string(), owner),
        "__sequenceId": lambda: pa.array(messages.sequence_ids),
        "__orderingKey": lambda: messages.ordering_keys,
        "__schemaVersion": lambda: _repeat([_version(entry) for entry in entries], pa.binary(), owner),
        "__brokerPublishTime": lambda: _repeat([_broker_time(entry) for entry in entries], pa.int64(), owner).cast(
            _TIME
        ),
        "__index": index,
    }


def provenance_of_entry(entry: ParsedEntry, first_row: int, rows: int) -> Columns:
    """Return a function for each column of `PROVENANCE`, for rows `[first_row, first_row + rows)` of an Arrow entry."""
    metadata = entry.metadata

    def index() -> pa.Array:
        end = _row_end(entry)
        numbers = np.arange(first_row, first_row + rows, dtype=np.int64)
        return pa.array(end - _messages(entry) + numbers, pa.int64()) if end else pa.nulls(rows, pa.int64())

    def same(value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), rows)

    return {
        "__producer": lambda: same(metadata.producer_name, pa.string()),
        "__sequenceId": lambda: same(signed(metadata.sequence_id), pa.int64()),
        "__orderingKey": lambda: same(
            metadata.ordering_key if metadata.HasField("ordering_key") else None, pa.binary()
        ),
        "__schemaVersion": lambda: same(_version(entry), pa.binary()),
        "__brokerPublishTime": lambda: same(_broker_time(entry), pa.int64()).cast(_TIME),
        "__index": index,
    }


def _repeat(values: Sequence[object], kind: pa.DataType, owner: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(values, kind).take(pa.array(owner))


def _version(entry: ParsedEntry) -> bytes | None:
    return entry.metadata.schema_version if entry.metadata.HasField("schema_version") else None


def _broker_time(entry: ParsedEntry) -> int | None:
    """Return the time of the broker's stamp in microseconds since 1970, None for a time that is out of range.

    The checksum does not cover the stamp, so the time may have any value.
    """
    stated = entry.stamp.timestamp_ms if entry.stamp else 0
    return stated * 1000 if 0 < stated <= MILLISECONDS_MAX else None


def _row_end(entry: ParsedEntry) -> int:
    return min(entry.stamp.row_end, 2**63 - 1) if entry.stamp else 0


def _messages(entry: ParsedEntry) -> int:
    """Return the number by which an entry raises the topic's message index."""
    metadata = entry.metadata
    stated = arrow_rows(metadata)
    if stated is not None:
        return stated
    return metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 1
