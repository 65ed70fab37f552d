"""The values of messages as columns: as they are, or decoded by the topic's schemas, with what cannot be decoded.

Rules: an undecodable value fails the read, naming ledger, position and reason, unless the shape has a rescue column.
Columns that nobody asked for are not decoded; without any, values are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from connector.metadata_columns import Topic
from connector.rescued_rows import payload_text, place, rescue_column, undecodable
from connector.row_shape import RowShape
from ledger.byte_ranges import Integers
from ledger.columns import ColumnFit
from ledger.payload_schema.decoder import PayloadDecoder
from ledger.payload_schema.documents import parse_schemas
from ledger.position import Position


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
    """Makes the row columns, and the rescue column if there is one, of messages."""

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
