"""Conversion of messages to record batches, for many entries together.

An *entry* is the unit of storage, for example a batch of messages. A *marker* is an entry without messages that a
broker writes at the end of a batch or transaction. A *tombstone* is a message without a value. An *even* batch has
messages of equal sizes. The *scanner* finds the messages of other batches (`ledger.message.batch_columns`).

    entries ─▶ parts of some MiB ──▶ even batches: all values in one step ──▶ the caller's conversion ─▶ record batches
               groups of parts ────▶ other batches of messages: by a scanner ▶
                                     other entries: message by message ─────▶

Rules
- Columns are built from the messages of many entries at once. Messages of an ordinary batch do not become Python
  objects.
- The value of a tombstone is null. Markers, and messages that Pulsar's compaction removed, have no rows.
- An Arrow entry in a ledger of messages raises Refused. The error names the entry's position.
- An entry that cannot be decoded raises an error. With `rescues`, the entry becomes one message without a value, and
  `rescued` has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Refused
from pyspark_ledger.ledger.message.arrow_payload import schema_version_of
from pyspark_ledger.ledger.message.batch_columns.columns import MessageColumns, columns_of, even_columns
from pyspark_ledger.ledger.message.batch_decoder import Message, decode_messages
from pyspark_ledger.ledger.message.byte_ranges import Integers
from pyspark_ledger.ledger.message.entry import ParsedEntry, is_arrow, is_marker
from pyspark_ledger.ledger.message.schema.decoder import NO_VERSION
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.rows.metadata_columns import METADATA, Topic, columns_of_batches, message_columns

RAW = pa.schema([pa.field("value", pa.binary())])
MESSAGES = pa.schema([*RAW, *METADATA])
_BATCH_BYTES = 4 * 1024 * 1024
_BATCH_MESSAGES = 16 * 1024
_GROUP_PARTS = 4  # parts (see `_parts`) that the scanner decompresses and converts together
_INVALID_VERSION = 2**63 - 1
_RUNS_MAX = 8  # a group that changes more often between batches and other entries is converted message by message

Entry = tuple[Position, ParsedEntry]


@dataclass(frozen=True, slots=True)
class MessageGroup:
    """Messages of some entries. Message `i` belongs to `entries[columns.owner[i]]`.

    `messages` has the same messages as objects, or is empty if they were decoded as columns. `rescued` maps the number
    of an undecodable message to the reason and the payload.
    """

    entries: Sequence[Entry]
    columns: MessageColumns
    messages: Sequence[Message] = ()
    rescued: Mapping[int, tuple[str, bytes]] = field(default_factory=dict)

    @property
    def positions(self) -> list[Position]:
        return [position for position, _ in self.entries]

    def schema_versions(self) -> Integers:
        """Return the schema version of each message, -1 for none. A damaged version is a number that no schema has."""
        stated = (_version_of(entry) for _, entry in self.entries)
        return np.fromiter(stated, np.int64, len(self.entries))[self.columns.owner]

    def key_bytes(self, rescued: dict[int, tuple[str, bytes]]) -> pa.Array:
        """Return the messages' keys as bytes. Adds the row of an invalid key, with error and payload, to `rescued`."""
        return pa.array([_key_of(message, row, rescued) for row, message in enumerate(self.messages)], pa.binary())


class MessageGroups:
    """Converter of entries to record batches. `convert` makes a record batch of a group of messages.

    If `by_message` is set, every message becomes an object. If `rescues` is set, an undecodable entry becomes a message
    without a value.
    """

    def __init__(
        self,
        topic: str,
        convert: Callable[[MessageGroup], pa.RecordBatch],
        *,
        by_message: bool = False,
        rescues: bool = False,
    ) -> None:
        self._topic = topic
        self._convert = convert
        self._by_message = by_message
        self._rescues = rescues

    def batches(self, entries: Iterable[Entry]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of entries. Raises Refused, Corrupt or Unsupported naming the entry."""
        group: list[Entry] = []
        parts = 0
        for part in _parts(entries):
            columns = None if self._by_message else even_columns([entry for _, entry in part])
            if columns is None:
                group += part
                parts += 1
            if group and (columns is not None or parts == _GROUP_PARTS):
                yield from self._group(group)
                group, parts = [], 0
            if columns is not None:
                yield from _slices(self._convert(MessageGroup(part, columns)))
        if group:
            yield from self._group(group)

    def _group(self, group: list[Entry]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group. Batches of messages are converted as columns, other entries message by message."""
        if self._by_message:
            yield from self._one_by_one(group)
            return
        columns, is_columns = columns_of([entry for _, entry in group])
        run_starts = [0, *(i for i in range(1, len(group)) if is_columns[i] != is_columns[i - 1]), len(group)]
        if columns is None or len(run_starts) > _RUNS_MAX:
            yield from self._one_by_one(group)
            return
        whole = self._convert(MessageGroup(group, columns))
        for start, end in pairwise(run_starts):
            if is_columns[start]:
                first, last = np.searchsorted(columns.owner, (start, end))
                yield from _slices(whole.slice(first, last - first))
            else:
                yield from self._one_by_one(group[start:end])

    def _one_by_one(self, entries: Iterable[Entry]) -> Iterator[pa.RecordBatch]:
        group: list[Entry] = []
        owners: list[int] = []
        messages: list[Message] = []
        rescued: dict[int, tuple[str, bytes]] = {}
        size = 0
        for position, entry in entries:
            decoded = self._messages(position, entry, rescued, len(messages))
            owners += [len(group)] * len(decoded)
            group.append((position, entry))
            messages += decoded
            size += sum(len(message.value) for message in decoded if message.value is not None)
            if size >= _BATCH_BYTES or len(messages) >= _BATCH_MESSAGES:
                yield self._convert(_group_of(group, owners, messages, rescued))
                group, owners, messages, rescued, size = [], [], [], {}, 0
        if messages:
            yield self._convert(_group_of(group, owners, messages, rescued))

    def _messages(
        self, position: Position, entry: ParsedEntry, rescued: dict[int, tuple[str, bytes]], row: int
    ) -> list[Message]:
        where = f"entry {position} of {self._topic}"
        if is_marker(entry.metadata):
            return []
        try:
            if is_arrow(entry.metadata):
                raise Refused(
                    f"{where} holds Arrow columns, but the query has planned to read Pulsar messages",
                    hint="Start the query again. Columns were written to the ledger after the query's start",
                )
            return decode_messages(entry, where)
        except LedgerError as failure:
            if not self._rescues:
                raise
            rescued[row] = failure.message, bytes(entry.payload)
            metadata = entry.metadata
            times = metadata.event_time, metadata.publish_time
            return [Message(-1, None, None, {}, *times, "", metadata.sequence_id, None, False, None, None, None)]


def message_rows(topic: Topic, entries: Iterable[Entry], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the messages of entries as record batches. `schema` has columns of `MESSAGES`, in any order."""
    metadata = [name for name in schema.names if name not in RAW.names]

    def convert(group: MessageGroup) -> pa.RecordBatch:
        columns = dict(
            zip(metadata, columns_of_batches(topic, group.positions, group.columns, metadata), strict=True),
            value=group.columns.values,
        )
        return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)

    return MessageGroups(topic.text, convert).batches(entries)


def place(position: Position, batch_index: int) -> str:
    """Return a row's position as text. A negative `batch_index`, of a message that was not batched, is left out."""
    return f"{position}:{batch_index}" if batch_index >= 0 else str(position)


def _version_of(entry: ParsedEntry) -> int:
    try:
        version = schema_version_of(entry.metadata, "")
    except Corrupt:
        return _INVALID_VERSION
    return NO_VERSION if version is None else version


def _key_of(message: Message, row: int, rescued: dict[int, tuple[str, bytes]]) -> bytes | None:
    try:
        return message.key_bytes
    except Corrupt as failure:
        rescued[row] = failure.message, bytes(message.value or b"")
        return None


def _group_of(
    entries: list[Entry], owners: list[int], messages: list[Message], rescued: dict[int, tuple[str, bytes]]
) -> MessageGroup:
    return MessageGroup(entries, message_columns(np.array(owners, dtype=np.int64), messages), messages, rescued)


def _parts(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield the entries in parts of at most `_BATCH_BYTES` and `_BATCH_MESSAGES`, and at least one entry."""
    part: list[Entry] = []
    size = count = 0
    for position, entry in entries:
        entry_bytes = max(entry.metadata.uncompressed_size, len(entry.payload))
        entry_messages = max(entry.metadata.num_messages_in_batch, 1)
        if part and (size + entry_bytes > _BATCH_BYTES or count + entry_messages > _BATCH_MESSAGES):
            yield part
            part, size, count = [], 0, 0
        part.append((position, entry))
        size += entry_bytes
        count += entry_messages
    if part:
        yield part


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield equal slices of a batch with limited rows and bytes.

    If the rows differ in size, a slice can have more bytes.
    """
    count = max(-(-batch.num_rows // _BATCH_MESSAGES), -(-batch.nbytes // _BATCH_BYTES), 1)
    rows = max(-(-batch.num_rows // count), 1)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
