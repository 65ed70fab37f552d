"""Rows of Pulsar entries: messages, single or batched, as record batches of `value` and, when asked, metadata.

Rules: columns are built from the messages of a block at once. A tombstone's value is null. An Arrow entry in a ledger
of messages is an error naming where it is; markers and items that were compacted out give no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from connector.metadata_columns import Topic, columns_of_messages
from ledger.entry import ParsedEntry, is_arrow, is_marker
from ledger.errors import Refused
from ledger.position import Position
from ledger.pulsar_payload import Message, decode_messages

_BATCH_BYTES = 4 * 1024 * 1024
_BATCH_MESSAGES = 16 * 1024


class PulsarRows:
    """Turns parsed entries into record batches of exactly `target`: `value` and the metadata columns, if any."""

    def __init__(self, topic: Topic, target: pa.Schema, metadata_columns: int) -> None:
        self._topic = topic
        self._target = target
        self._with_metadata = metadata_columns > 0

    def batches(self, entries: Iterable[tuple[Position, ParsedEntry]]) -> Iterator[pa.RecordBatch]:
        """The messages of entries, in order."""
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
