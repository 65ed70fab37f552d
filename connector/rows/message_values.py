"""Values of messages as columns, raw or decoded by the topic's schemas, and the rescue column for undecodable rows.

    {"_reason": "…", "_position": "3:17:4", "_topic": "persistent://…", "payload": base64 of what was there}
    {"_position": …, "_topic": …, "column": value …}          columns that came after the query was planned

Rules
- An undecodable value fails the read, naming ledger, position and reason. Except when the shape has a rescue column.
- Columns that nobody asked for are not decoded. If none is asked for, values are not looked at.
- The text of a rescue column is JSON, in the form of Databricks' rescued data. The names of the project's own fields
  begin with an underscore.
- Damage of the log itself, a checksum that does not match, is never rescued.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from pyspark_ledger.connector.rows.metadata_columns import Topic
from pyspark_ledger.connector.rows.shape import RowShape
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.byte_ranges import Integers
from pyspark_ledger.ledger.message.columns import ColumnFit
from pyspark_ledger.ledger.message.schema.decoder import PayloadDecoder
from pyspark_ledger.ledger.message.schema.documents import parse_schemas
from pyspark_ledger.ledger.position import Position

_PAYLOAD_BYTES_MAX = 16 * 1024 * 1024


def place(position: Position, batch_index: int) -> str:
    """Return a row's address as text; a message that was not batched has no index in its entry."""
    return f"{position}:{batch_index}" if batch_index >= 0 else str(position)


def undecodable(where: str, reason: str) -> Corrupt:
    """Return the error for an undecodable row that is not rescued."""
    return Corrupt(
        f"{where} cannot be decoded: {reason}",
        hint="Set option 'rescuedDataColumn' to keep such rows beside the others, or correct 'payloadSchema'",
    )


def payload_text(topic: str, place: str, reason: str, payload: bytes | None) -> str:
    """Return the rescue text of an undecodable payload; a payload beyond 16 MiB is kept as its length only."""
    said: dict[str, object] = {"_reason": reason, "_position": place, "_topic": topic}
    if payload is not None and len(payload) > _PAYLOAD_BYTES_MAX:
        said["_payloadBytes"] = len(payload)
    else:
        said["payload"] = payload
    return msgspec.json.encode(said).decode()


class RescuedPayload(msgspec.Struct, frozen=True):
    """Parsed rescue text of a payload. `size` also counts a payload that is not kept."""

    reason: str = msgspec.field(name="_reason")
    position: str = msgspec.field(name="_position")
    topic: str = msgspec.field(name="_topic")
    payload: bytes | None = None
    payload_bytes: int = msgspec.field(name="_payloadBytes", default=0)

    @property
    def size(self) -> int:
        return self.payload_bytes or len(self.payload or b"")

    def place(self) -> tuple[Position, int]:
        """The entry, and the message in it (-1: it is no batch)."""
        ledger_id, entry_id, *index = map(int, self.position.split(":"))
        return Position(ledger_id, entry_id), index[0] if index else -1


_RESCUED = msgspec.json.Decoder(RescuedPayload)


def parse_payload_text(text: str) -> RescuedPayload:
    """The inverse of `payload_text`."""
    return _RESCUED.decode(text)


def column_texts(topic: str, batch: pa.RecordBatch, place: Callable[[int], str]) -> pa.Array:
    """Return the rescue texts of columns that the query does not know: one per row."""
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
    """Messages to decode. Message `i` is `index[i]` of the entry at `positions[owner[i]]`.

    `versions` are schema versions, -1 for none, where they are needed; `lost` says of messages without a value why they
    have none, with what was there instead.
    """

    positions: list[Position]
    owner: Integers
    index: Integers
    values: pa.Array
    versions: Integers
    keys: pa.Array | None = None
    lost: Mapping[int, tuple[str, bytes]] = field(default_factory=dict)


class MessageValues:
    """Converter of messages into the row columns, and the rescue column if there is one."""

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
        """Whether values are decoded, by the schema versions of their messages."""
        return self._decoder is not None

    @property
    def needs_keys(self) -> bool:
        """Whether the keys of messages are a part of their rows."""
        return self._decoder is not None and self._decoder.needs_keys

    def columns(self, messages: MessageSlice) -> list[pa.Array]:
        """The columns of messages, in their order."""
        wrong: dict[int, tuple[str, bytes | None]] = dict(messages.lost)
        if self._decoder is not None:
            decoded = self._decoder.decode(messages.values, messages.versions, messages.keys)
            for row, reason in decoded.wrong.items():
                wrong.setdefault(row, (reason, messages.values[row].as_py()))
            columns = list(self._fit.fit(decoded.batch, f"what is decoded of {self._topic.text}").columns)
        else:
            columns = [messages.values] if self._rows.names else []
        if wrong and not self._rescues:
            row = min(wrong)
            raise undecodable(f"message {self._place(messages, row)} of {self._topic.text}", wrong[row][0])
        if not self._rescues:
            return columns
        texts = {
            row: payload_text(self._topic.text, self._place(messages, row), reason, payload)
            for row, (reason, payload) in wrong.items()
        }
        return [*columns, rescue_column(len(messages.owner), texts)]

    @staticmethod
    def _place(messages: MessageSlice, row: int) -> str:
        return place(messages.positions[int(messages.owner[row])], int(messages.index[row]))
