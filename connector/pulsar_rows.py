"""Rows of Pulsar entries: messages, single or batched, as record batches of `value` and, when asked, metadata.

Rules: columns are built from the messages of many entries at once; messages of an ordinary batch never become objects.
A tombstone's value is null. An Arrow entry in a ledger of messages is an error naming where it is; markers and items
that were compacted out give no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from connector.metadata_columns import Topic, columns_of_batches, columns_of_messages
from ledger.entry import ParsedEntry, is_arrow, is_marker
from ledger.errors import Refused
from ledger.position import Position
from ledger.pulsar_columns import MessageColumns, columns_of
from ledger.pulsar_payload import Message, decode_messages

_GROUP_BYTES = 16 * 1024 * 1024  # inflated and read together
_GROUP_MESSAGES = 64 * 1024
_BATCH_BYTES = 4 * 1024 * 1024
_BATCH_MESSAGES = 16 * 1024
_RUNS_MAX = 8  # in a group where what is columns and what is not alternate more often, nothing is

Entry = tuple[Position, ParsedEntry]


class PulsarRows:
    """Turns parsed entries into record batches of exactly `target`: `value` and the metadata columns, if any."""

    def __init__(self, topic: Topic, target: pa.Schema, metadata_columns: int) -> None:
        self._topic = topic
        self._target = target
        self._with_metadata = metadata_columns > 0

    def batches(self, entries: Iterable[Entry]) -> Iterator[pa.RecordBatch]:
        """The messages of entries, in order."""
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
        """Batches of messages are read as columns; runs of anything else, in between, message by message."""
        columns, taken = columns_of([entry for _, entry in group])
        edges = [0, *(i for i in range(1, len(group)) if taken[i] != taken[i - 1]), len(group)]
        if columns is None or len(edges) > _RUNS_MAX:
            yield from self._one_by_one(group)
            return
        whole = self._of_columns([position for position, _ in group], columns)
        for start, end in pairwise(edges):
            if taken[start]:
                first, last = np.searchsorted(columns.owner, (start, end))
                yield from _in_parts(whole.slice(first, last - first))
            else:
                yield from self._one_by_one(group[start:end])

    def _of_columns(self, positions: list[Position], columns: MessageColumns) -> pa.RecordBatch:
        arrays = [columns.values]
        if self._with_metadata:
            arrays += columns_of_batches(self._topic, positions, columns)
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)

    def _one_by_one(self, entries: Iterable[Entry]) -> Iterator[pa.RecordBatch]:
        positions: list[Position] = []
        owners: list[int] = []
        messages: list[Message] = []
        size = 0
        for position, entry in entries:
            found = self._messages(position, entry)
            owners += [len(positions)] * len(found)
            positions.append(position)
            messages += found
            size += sum(len(message.value) for message in found if message.value is not None)
            if size >= _BATCH_BYTES or len(messages) >= _BATCH_MESSAGES:
                yield self._batch(positions, owners, messages)
                positions, owners, messages, size = [], [], [], 0
        if messages:
            yield self._batch(positions, owners, messages)

    def _messages(self, position: Position, entry: ParsedEntry) -> list[Message]:
        where = f"entry {position} of {self._topic.text}"
        if is_marker(entry.metadata):
            return []
        if is_arrow(entry.metadata):
            raise Refused(
                f"{where} holds Arrow columns, the ledger was opened as one of Pulsar messages",
                hint="Start the query again: the ledger has got columns since",
            )
        return decode_messages(entry, where)

    def _batch(self, positions: list[Position], owners: list[int], messages: list[Message]) -> pa.RecordBatch:
        columns = [pa.array([message.value for message in messages], pa.binary())]
        if self._with_metadata:
            columns += columns_of_messages(self._topic, positions, np.array(owners, dtype=np.int64), messages)
        return pa.RecordBatch.from_arrays(columns, schema=self._target)


def _in_parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in parts that are neither too long nor, as far as rows are alike, too large."""
    rows = min(_BATCH_MESSAGES, max(1, batch.num_rows * _BATCH_BYTES // max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
