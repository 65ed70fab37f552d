"""Payloads of messages as columns, decoded by the schemas that their ledger has registered.

Rules
- The columns are those of the newest schema, then `__position`. docs/rows.md lists the types of schemas.
- A payload that does not match its schema is an error, which names the message's position and the reason.
- A message without a value is a row of nulls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.message.schema.decoder import PayloadDecoder
from pyspark_ledger.ledger.message.schema.documents import TopicSchemas
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.rows.message_groups import Entry, MessageGroup, MessageGroups, place
from pyspark_ledger.ledger.rows.metadata_columns import METADATA, Topic, columns_of_batches
from pyspark_ledger.ledger.rows.row_type import RowType

_POSITION = "__position"


class PayloadRows:
    """Converter of the messages of a topic to record batches. `columns` are those of the payloads."""

    def __init__(self, topic: Topic, schemas: TopicSchemas) -> None:
        self._topic = topic
        self._decoder = PayloadDecoder(schemas, where=f"the schema of {topic.text}")
        self.columns = self._decoder.schema
        # Columns have keys as text only. So a schema that needs keys as bytes gets `Message` objects.
        self._groups = MessageGroups(topic.text, self._batch, by_message=self._decoder.needs_keys)

    def batches(self, entries: Iterable[Entry]) -> Iterator[pa.RecordBatch]:
        """Yield the payloads of entries. Raises Corrupt for a payload that does not match its schema."""
        return self._groups.batches(entries)

    def place(self, batch: pa.RecordBatch, row: int) -> str:
        """Return the name of a row of a batch for errors: its position and its topic."""
        at = batch.column(_POSITION)[row].as_py()
        return self._where(Position(at["ledgerId"], at["entryId"]), at["batchIndex"])

    def _batch(self, group: MessageGroup) -> pa.RecordBatch:
        columns = group.columns
        failures: dict[int, tuple[str, bytes]] = {}
        keys = group.key_bytes(failures) if self._decoder.needs_keys else None
        decoded = self._decoder.decode(columns.values, group.schema_versions(), keys)
        reasons = decoded.wrong | {row: reason for row, (reason, _) in failures.items()}
        if reasons:
            row = min(reasons)
            where = self._where(group.positions[int(columns.owner[row])], int(columns.batch_index[row]))
            raise Corrupt(
                f"{where} cannot be decoded: {reasons[row]}",
                hint="Read the payloads as bytes with `batches`, or register the schema with which they were written",
            )
        position = columns_of_batches(self._topic, group.positions, columns, [_POSITION])
        schema = decoded.batch.schema.append(METADATA.field(_POSITION))
        return pa.RecordBatch.from_arrays([*decoded.batch.columns, *position], schema=schema)

    def _where(self, position: Position, batch_index: int) -> str:
        return f"message {place(position, batch_index)} of {self._topic.text}"


def no_payload_schema(ledger: str, row_type: RowType[Any]) -> Refused:
    """Return the error for messages without a schema in a ledger that has a type."""
    return Refused(
        f"ledger {ledger!r} has messages and no payload schema, so {row_type} cannot be its type",
        hint="Register the schema of the payloads: `register_payload_schemas`",
    )
