"""Goal: a message that protobuf cannot express is refused, naming its part. Method: one wrong part at a time."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.compression import LZ4, SNAPPY, ZLIB, ZSTD
from pyspark_ledger.ledger.message.outgoing.message import (
    OutgoingMessage,
    ProducerMetadata,
    require_message,
    single_message,
)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"value": "text"}, "value is str"),
        ({"value": b"", "key": 7}, "key is int"),
        ({"value": b"", "ordering_key": "o"}, "ordering key is str"),
        ({"value": b"", "event_time_ms": -1}, "event time is -1"),
        ({"value": b"", "properties": {"a": 1}}, "property 'a' of a message is 1"),
        ({"value": b"", "properties": {"ledger.arrow.rows": "1"}}, "reserved for entries of rows"),
    ],
)
def test_what_no_entry_can_say_is_refused_by_its_part(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=said):
        require_message(OutgoingMessage(sequence_id=0, **fields))


@pytest.mark.parametrize("kind", [LZ4, ZLIB, ZSTD, SNAPPY])
def test_the_stated_size_is_never_exceeded(kind: int) -> None:
    noise = bytes(range(256)) * 3
    for value, key, properties in ((None, "ü" * 90, {}), (noise, b"\xff" * 90, {"ü" * 50: "é" * 500, "": ""})):
        message = OutgoingMessage(value, 2**63 - 1, key, properties, 2**63 - 1, b"o" * 70)
        metadata, payload = single_message(ProducerMetadata("p", kind, b"v"), message, 2**62)
        assert metadata.ByteSize() + len(payload) < require_message(message)
