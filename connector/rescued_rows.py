"""Rows that could not be decoded: an error that says where and why, or a text in a column of their own.

    {"_reason": "…", "_position": "3:17:4", "_topic": "persistent://…", "payload": base64 of what was there}
    {"_position": …, "_topic": …, "column": value …}          columns that came after the query was planned

Rules: the text is JSON, as users of Databricks' rescued data know it, with what is ours under names with an underscore.
Damage of the log itself, a checksum that does not hold, is never rescued.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import pyarrow as pa

from ledger.errors import Corrupt
from ledger.position import Position

_PAYLOAD_BYTES_MAX = 16 * 1024 * 1024


def place(position: Position, batch_index: int) -> str:
    """A row's address as text; a message that was not batched has none inside its entry."""
    return f"{position}:{batch_index}" if batch_index >= 0 else str(position)


def undecodable(where: str, reason: str) -> Corrupt:
    """The error for one that nobody rescues."""
    return Corrupt(
        f"{where} cannot be decoded: {reason}",
        hint="Set option 'rescuedDataColumn' to keep such rows beside the others, or correct 'payloadSchema'",
    )


def payload_text(topic: str, place: str, reason: str, payload: bytes | None) -> str:
    """What is kept of a payload that could not be decoded; of one beyond 16 MiB its length only."""
    said: dict[str, object] = {"_reason": reason, "_position": place, "_topic": topic}
    if payload is not None and len(payload) > _PAYLOAD_BYTES_MAX:
        said["_payloadBytes"] = len(payload)
    else:
        said["payload"] = payload
    return msgspec.json.encode(said).decode()


class RescuedPayload(msgspec.Struct, frozen=True):
    """What such a text says. `size` counts a payload that is not kept, too."""

    reason: str = msgspec.field(name="_reason")
    position: str = msgspec.field(name="_position")
    topic: str = msgspec.field(name="_topic")
    payload: bytes | None = None
    payload_bytes: int = msgspec.field(name="_payloadBytes", default=0)

    @property
    def size(self) -> int:
        """Bytes of the payload."""
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
    """What is kept of columns that the query does not know: a text per row."""
    return pa.array(
        [
            msgspec.json.encode({"_position": place(row), "_topic": topic, **values}, enc_hook=str).decode()
            for row, values in enumerate(batch.to_pylist())
        ],
        pa.string(),
    )


def rescue_column(count: int, texts: Mapping[int, str]) -> pa.Array:
    """The column of `count` rows with these texts, null elsewhere."""
    if not texts:
        return pa.nulls(count, pa.string())
    places = np.full(count, -1, dtype=np.int64)
    places[list(texts)] = np.arange(len(texts))
    return pa.array(list(texts.values()), pa.string()).take(pa.array(places, mask=places < 0))
