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
from pyspark_ledger.ledger.rows.message_groups import Entry, MessageGroup, MessageGroups
from pyspark_ledger.ledger.rows.metadata_columns import (
    PROVENANCE,
    Topic,
    columns_of_batches,
    provenance_of_batches,
)


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
        keys = group.key_bytes(rescued) if self._values.needs_keys else None
        versions = group.schema_versions() if self._values.needs_versions else np.empty(0, dtype=np.int64)
        messages = MessageSlice(positions, columns, versions, keys, rescued)
        arrays = self._values.columns(messages)
        more = provenance_of_batches(columns, [entry for _, entry in group.entries]) if self._provenance else None
        arrays += columns_of_batches(self._topic, positions, columns, self._metadata, more)
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)
