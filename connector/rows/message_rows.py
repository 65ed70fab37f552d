"""Conversion of Pulsar messages, single or batched, to record batches with the columns of a read.

The values of a *group*, consecutive messages with the same schema version, are decoded together. A group is read either
as columns or as `Message` objects (`ledger.rows.message_groups`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from pyspark_ledger.connector.rows.message_values import MessageSlice, MessageValues
from pyspark_ledger.connector.rows.shape import RowShape
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.arrow_payload import schema_version_of
from pyspark_ledger.ledger.message.batch_decoder import Message
from pyspark_ledger.ledger.message.entry import ParsedEntry
from pyspark_ledger.ledger.message.schema.decoder import NO_VERSION
from pyspark_ledger.ledger.rows.message_groups import Entry, MessageGroup, MessageGroups
from pyspark_ledger.ledger.rows.metadata_columns import (
    PROVENANCE,
    Topic,
    columns_of_batches,
    provenance_of_batches,
)

_INVALID_VERSION = 2**63 - 1


class PulsarRows:
    """Converter of parsed entries to record batches. Their schema is exactly that of the read (`RowShape`)."""

    def __init__(self, topic: Topic, shape: RowShape) -> None:
        self._topic = topic
        self._target = shape.schema
        self._metadata = shape.metadata
        self._provenance = not set(PROVENANCE.names).isdisjoint(self._metadata)
        self._values = MessageValues(topic, shape)
        # Columns have keys as text only. So a read that needs keys as bytes gets `Message` objects.
        self._groups = MessageGroups(topic.text, self._batch, by_message=self._values.needs_keys, rescues=shape.rescues)

    def batches(self, entries: Iterable[Entry]) -> Iterator[pa.RecordBatch]:
        return self._groups.batches(entries)

    def _batch(self, group: MessageGroup) -> pa.RecordBatch:
        positions, columns, rescued = group.positions, group.columns, dict(group.rescued)
        keys = None
        if self._values.needs_keys:
            keys = pa.array([_key_of(message, row, rescued) for row, message in enumerate(group.messages)], pa.binary())
        versions = np.empty(0, dtype=np.int64)
        if self._values.needs_versions:
            stated = (_version_of(entry) for _, entry in group.entries)
            versions = np.fromiter(stated, np.int64, len(group.entries))[columns.owner]
        messages = MessageSlice(positions, columns, versions, keys, rescued)
        arrays = self._values.columns(messages)
        more = provenance_of_batches(columns, [entry for _, entry in group.entries]) if self._provenance else None
        arrays += columns_of_batches(self._topic, positions, columns, self._metadata, more)
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)


def _version_of(entry: ParsedEntry) -> int:
    """Return the schema version of an entry's messages. If it is damaged, return a number that no schema has."""
    try:
        version = schema_version_of(entry.metadata, "")
    except Corrupt:
        return _INVALID_VERSION
    return NO_VERSION if version is None else version


def _key_of(message: Message, row: int, rescued: dict[int, tuple[str, bytes]]) -> bytes | None:
    """Return the bytes of a key. If the key is invalid base64, add its row, with error and payload, to `rescued`."""
    try:
        return message.key_bytes
    except Corrupt as failure:
        rescued[row] = failure.message, bytes(message.value or b"")
        return None
