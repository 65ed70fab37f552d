"""Conversion of Pulsar messages, single or batched, to record batches of values and metadata columns.

Rules
- Columns are built from the messages of many entries at once. Messages of an ordinary batch never become objects.
- The value of a tombstone is null. Markers and messages that were compacted out have no rows.
- An Arrow entry in a ledger of messages raises Refused with its position.
- An entry that cannot be decoded raises an error, or becomes one rescued row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from pyspark_ledger.connector.rows.message_values import MessageSlice, MessageValues
from pyspark_ledger.connector.rows.metadata_columns import (
    PROVENANCE,
    Topic,
    columns_of_batches,
    message_columns,
    provenance_of_batches,
)
from pyspark_ledger.connector.rows.shape import RowShape
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Refused
from pyspark_ledger.ledger.message.arrow_payload import schema_version_of
from pyspark_ledger.ledger.message.batch_columns import MessageColumns, columns_of
from pyspark_ledger.ledger.message.batch_decoder import Message, decode_messages
from pyspark_ledger.ledger.message.entry import ParsedEntry, is_arrow, is_marker
from pyspark_ledger.ledger.message.schema.decoder import NO_VERSION
from pyspark_ledger.ledger.position import Position

_GROUP_BYTES = 16 * 1024 * 1024  # decompressed and converted together
_GROUP_MESSAGES = 64 * 1024
_BATCH_BYTES = 4 * 1024 * 1024
_BATCH_MESSAGES = 16 * 1024
_INVALID_VERSION = 2**63 - 1
_RUNS_MAX = 8  # a group with more alternations between batches and other entries is converted message by message

Entry = tuple[Position, ParsedEntry]


class PulsarRows:
    """Converter of parsed entries to record batches with exactly the shape's schema."""

    def __init__(self, topic: Topic, shape: RowShape) -> None:
        self._topic = topic
        self._target = shape.schema
        self._metadata = shape.metadata
        self._provenance = not set(PROVENANCE.names).isdisjoint(self._metadata)
        self._rescues = shape.rescues
        self._values = MessageValues(topic, shape)

    def batches(self, entries: Iterable[Entry]) -> Iterator[pa.RecordBatch]:
        group: list[Entry] = []
        size = count = 0
        for position, entry in entries:
            group.append((position, entry))
            size += max(entry.metadata.uncompressed_size, len(entry.payload))
            count += max(entry.metadata.num_messages_in_batch, 1)
            if size >= _GROUP_BYTES or count >= _GROUP_MESSAGES:
                yield from self._group(group)
                group, size, count = [], 0, 0
        if group:
            yield from self._group(group)

    def _group(self, group: list[Entry]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group. Batches are converted as columns, runs of other entries message by message."""
        if self._values.needs_keys:  # only Message has keys as bytes
            yield from self._one_by_one(group)
            return
        columns, is_columns = columns_of([entry for _, entry in group])
        run_starts = [0, *(i for i in range(1, len(group)) if is_columns[i] != is_columns[i - 1]), len(group)]
        if columns is None or len(run_starts) > _RUNS_MAX:
            yield from self._one_by_one(group)
            return
        whole = self._batch(group, columns)
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
                yield self._of_messages(group, owners, messages, rescued)
                group, owners, messages, rescued, size = [], [], [], {}, 0
        if messages:
            yield self._of_messages(group, owners, messages, rescued)

    def _messages(
        self, position: Position, entry: ParsedEntry, rescued: dict[int, tuple[str, bytes]], row: int
    ) -> list[Message]:
        where = f"entry {position} of {self._topic.text}"
        if is_marker(entry.metadata):
            return []
        try:
            if is_arrow(entry.metadata):
                raise Refused(
                    f"{where} holds Arrow columns, the ledger was opened as one of Pulsar messages",
                    hint="Start the query again: the ledger has got columns since",
                )
            return decode_messages(entry, where)
        except LedgerError as failure:
            if not self._rescues:
                raise
            rescued[row] = failure.message, bytes(entry.payload)
            return [_without_value(entry)]

    def _of_messages(
        self, group: list[Entry], owners: list[int], messages: list[Message], rescued: dict[int, tuple[str, bytes]]
    ) -> pa.RecordBatch:
        keys = None
        if self._values.needs_keys:
            keys = pa.array([_key_of(message, row, rescued) for row, message in enumerate(messages)], pa.binary())
        return self._batch(group, message_columns(np.array(owners, dtype=np.int64), messages), keys, rescued)

    def _batch(
        self,
        group: list[Entry],
        columns: MessageColumns,
        keys: pa.Array | None = None,
        rescued: dict[int, tuple[str, bytes]] | None = None,
    ) -> pa.RecordBatch:
        positions = [position for position, _ in group]
        versions = np.empty(0, dtype=np.int64)
        if self._values.needs_versions:
            versions = np.fromiter((_version_of(entry) for _, entry in group), np.int64, len(group))[columns.owner]
        messages = MessageSlice(
            positions, columns.owner, columns.batch_index, columns.values, versions, keys, rescued or {}
        )
        arrays = self._values.columns(messages)
        more = provenance_of_batches(columns, [entry for _, entry in group]) if self._provenance else None
        arrays += columns_of_batches(self._topic, positions, columns, self._metadata, more)
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)


def _version_of(entry: ParsedEntry) -> int:
    """Return the schema version of an entry's messages; an invalid number for a version that is no number."""
    try:
        version = schema_version_of(entry.metadata, "")
    except Corrupt:
        return _INVALID_VERSION
    return NO_VERSION if version is None else version


def _key_of(message: Message, row: int, rescued: dict[int, tuple[str, bytes]]) -> bytes | None:
    """Return the bytes of a key. A key that is no valid base64 makes its row undecodable."""
    try:
        return message.key_bytes
    except Corrupt as failure:
        rescued[row] = failure.message, bytes(message.value or b"")
        return None


def _without_value(entry: ParsedEntry) -> Message:
    """Return a message without value for an undecodable entry, with times and sequence id of its metadata."""
    metadata = entry.metadata
    times = metadata.event_time, metadata.publish_time
    return Message(-1, None, None, {}, *times, "", metadata.sequence_id, None, False, None, None, None)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield slices of a batch, limited in rows and (for rows of similar size) in bytes."""
    rows = min(_BATCH_MESSAGES, max(1, batch.num_rows * _BATCH_BYTES // max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
