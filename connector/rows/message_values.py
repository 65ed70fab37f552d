"""Values of messages as columns, raw or decoded by the topic's schemas, and the rescue column for undecodable rows.

The rescue column has a JSON text in one of two forms:

    {"_reason": "…", "_position": "3:17:4", "_topic": "persistent://…", "payload": the payload in base64}
    {"_position": …, "_topic": …, "column": value …}          columns that were added after the query was planned

Rules
- An undecodable value fails the read. The error names ledger, position and reason. Exception: if the read has a rescue
  column, the value becomes a text there.
- Columns that are not selected are not decoded. If no column is selected, values are not read.
- Databricks, a Spark platform, writes rescue texts of the same form. The names of this project's own fields start with
  an underscore.
- Damage of the ledger, such as a wrong checksum, always fails the read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from pyspark_ledger.connector.rows.shape import RowShape
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.batch_columns.columns import MessageColumns
from pyspark_ledger.ledger.message.byte_ranges import Integers
from pyspark_ledger.ledger.message.columns import ColumnFit
from pyspark_ledger.ledger.message.schema.decoder import PayloadDecoder
from pyspark_ledger.ledger.message.schema.documents import parse_schemas
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.rows.message_groups import place
from pyspark_ledger.ledger.rows.metadata_columns import Topic

_PAYLOAD_BYTES_MAX = 16 * 1024 * 1024


def undecodable(where: str, reason: str) -> Corrupt:
    """Return the error for an undecodable row in a read without a rescue column."""
    return Corrupt(
        f"{where} cannot be decoded: {reason}",
        hint="Set option 'rescuedDataColumn' to get such rows with their payload, or correct 'payloadSchema'",
    )


def payload_text(topic: str, place: str, reason: str, payload: bytes | None) -> str:
    """Return the rescue text of an undecodable payload. A payload above 16 MiB is replaced by its length."""
    fields: dict[str, object] = {"_reason": reason, "_position": place, "_topic": topic}
    if payload is not None and len(payload) > _PAYLOAD_BYTES_MAX:
        fields["_payloadBytes"] = len(payload)
    else:
        fields["payload"] = payload
    return msgspec.json.encode(fields).decode()


class RescuedPayload(msgspec.Struct, frozen=True):
    """Parsed rescue text of a payload. `size` is the payload's length, even if the text lacks the payload."""

    reason: str = msgspec.field(name="_reason")
    position: str = msgspec.field(name="_position")
    topic: str = msgspec.field(name="_topic")
    payload: bytes | None = None
    payload_bytes: int = msgspec.field(name="_payloadBytes", default=0)

    @property
    def size(self) -> int:
        return self.payload_bytes or len(self.payload or b"")

    def place(self) -> tuple[Position, int]:
        """Return the entry's position and the message's index in the entry, -1 if the message was not batched."""
        ledger_id, entry_id, *index = map(int, self.position.split(":"))
        return Position(ledger_id, entry_id), index[0] if index else -1


_RESCUED = msgspec.json.Decoder(RescuedPayload)


def parse_payload_text(text: str) -> RescuedPayload:
    """Return the parts of a rescue text that `payload_text` made."""
    return _RESCUED.decode(text)


def column_texts(topic: str, batch: pa.RecordBatch, place: Callable[[int], str]) -> pa.Array:
    """Return the rescue text of each row for columns that were added after the query was planned."""
    return pa.array(
        [
            msgspec.json.encode({"_position": place(row), "_topic": topic, **values}, enc_hook=str).decode()
            for row, values in enumerate(batch.to_pylist())
        ],
        pa.string(),
    )


def rescue_column(count: int, texts: Mapping[int, str]) -> pa.Array:
    if not texts:
        return pa.nulls(count, pa.string())
    places = np.full(count, -1, dtype=np.int64)
    places[list(texts)] = np.arange(len(texts))
    return pa.array(list(texts.values()), pa.string()).take(pa.array(places, mask=places < 0))


@dataclass(frozen=True, slots=True)
class MessageSlice:
    """Messages to decode together. Message `i` of `columns` is in the entry at `positions[columns.owner[i]]`.

    `versions` are the messages' schema versions, -1 for none. The array is empty if no version is needed. `rescued`
    maps the number of an undecodable message to the reason and the payload.
    """

    positions: list[Position]
    columns: MessageColumns
    versions: Integers
    keys: pa.Array | None = None
    rescued: Mapping[int, tuple[str, bytes]] = field(default_factory=dict)


class MessageValues:
    """Converter of messages to row columns, and to the rescue column if the read has one.

    Row columns are the raw `value`, or the columns of the topic's schemas. `PulsarRows` adds the metadata columns.
    """

    def __init__(self, topic: Topic, shape: RowShape) -> None:
        self._topic = topic
        self._rescues = shape.rescues
        self._rows = shape.rows
        self._decoder: PayloadDecoder | None = None
        self._fit = ColumnFit(self._rows)
        if shape.schemas and self._rows.names:
            where = f"the schema of {topic.text}"
            self._decoder = PayloadDecoder(parse_schemas(shape.schemas, where), self._rows.names, where)

    @property
    def needs_versions(self) -> bool:
        """Whether values are decoded by a schema."""
        return self._decoder is not None

    @property
    def needs_keys(self) -> bool:
        """Whether the schema decodes keys into columns."""
        return self._decoder is not None and self._decoder.needs_keys

    def columns(self, messages: MessageSlice) -> list[pa.Array]:
        """Return the row columns of messages, then the rescue column if there is one."""
        values = messages.columns.values
        failures: dict[int, tuple[str, bytes | None]] = dict(messages.rescued)
        if self._decoder is not None:
            decoded = self._decoder.decode(values, messages.versions, messages.keys)
            for row, reason in decoded.wrong.items():
                failures.setdefault(row, (reason, values[row].as_py()))
            columns = list(self._fit.fit(decoded.batch, f"the decoded payload of {self._topic.text}").columns)
        else:
            columns = [values] if self._rows.names else []
        if failures and not self._rescues:
            row = min(failures)
            raise undecodable(f"message {self._place(messages, row)} of {self._topic.text}", failures[row][0])
        if not self._rescues:
            return columns
        texts = {
            row: payload_text(self._topic.text, self._place(messages, row), reason, payload)
            for row, (reason, payload) in failures.items()
        }
        return [*columns, rescue_column(len(values), texts)]

    @staticmethod
    def _place(messages: MessageSlice, row: int) -> str:
        columns = messages.columns
        return place(messages.positions[int(columns.owner[row])], int(columns.batch_index[row]))
