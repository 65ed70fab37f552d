"""Message of a producer, its checks, and the metadata of its entry. Pure functions.

Rules
- A message that Protobuf cannot encode is refused. The error names the wrong part.
- A key of bytes is stored as base64 text, and `partition_key_b64_encoded` is true. For a key of text, that field is
  present and false.
- A message that is not batched always states its size before compression.
"""

from __future__ import annotations

import base64
import operator
from collections.abc import Mapping
from typing import SupportsIndex

import msgspec

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.compression import NONE, compress
from pyspark_ledger.ledger.message.entry import ARROW_PROPERTY
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata

_BYTES_OR_NONE = (bytes, type(None))
_NUMBER_END = 2**63
_AROUND_BYTES = 512  # an upper bound of a message's metadata without key and properties


class OutgoingMessage(msgspec.Struct, frozen=True, gc=False):
    """Message of a producer. A value of None is a tombstone; an event time of 0 means none."""

    value: bytes | None
    sequence_id: int
    key: str | bytes | None = None
    properties: Mapping[str, str] = {}
    event_time_ms: int = 0
    ordering_key: bytes | None = None

    @property
    def size(self) -> int:
        """Number of bytes of the value. Limits of a batch count these bytes."""
        return len(self.value) if self.value is not None else 0


class ProducerMetadata(msgspec.Struct, frozen=True):
    """Metadata that all entries of a producer share. `compression` is a number of `ledger.message.compression`."""

    producer: str
    compression: int = NONE
    schema_version: bytes | None = None


def require_message(message: OutgoingMessage) -> int:
    """Check a message. Raises Refused naming the part that Protobuf cannot encode.

    Returns an upper bound of the message's size in an entry.
    """
    value, key = message.value, message.key
    if type(value) is bytes and type(key) is str and key.isascii() and message.event_time_ms == 0:
        number = message.sequence_id
        if (
            type(number) is int
            and 0 <= number < _NUMBER_END
            and not message.properties
            and message.ordering_key is None
        ):
            return entry_bytes_most(len(value), len(key))  # a shortcut for most messages, in a third of the time
    if not isinstance(value, _BYTES_OR_NONE):
        raise Refused(f"a message's value is {type(value).__name__}, expected bytes or None")
    if isinstance(key, str):
        _require_text(key, "key")
    elif not isinstance(key, _BYTES_OR_NONE):
        raise Refused(f"a message's key is {type(key).__name__}, expected str, bytes or None")
    _require_number(message.event_time_ms, "event time", "milliseconds since 1970")
    require_sequence_id(message.sequence_id)
    most = entry_bytes_most(0 if value is None else len(value), 0 if key is None else len(key))
    if message.ordering_key is not None:
        if not isinstance(message.ordering_key, bytes):
            raise Refused(f"a message's ordering key is {type(message.ordering_key).__name__}, expected bytes or None")
        most += len(message.ordering_key)
    return most + _require_properties(message.properties) if message.properties else most


def _require_properties(properties: object) -> int:
    """Check properties. Returns an upper bound of their size in an entry."""
    if not isinstance(properties, Mapping):
        raise Refused(f"a message's properties are {type(properties).__name__}, expected a mapping of text")
    most = 0
    for name, value in properties.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise Refused(f"property {name!r} of a message is {value!r}, expected text")
        _require_text(name + value, "property")
        if name == ARROW_PROPERTY:
            raise Refused(f"property {name!r} is reserved for entries of rows", hint="Choose another name")
        most += 4 * (len(name) + len(value)) + 20
    return most


def require_sequence_id(sequence_id: object) -> None:
    """Raise Refused if a sequence id is not a whole number from 0 to 2^63-1."""
    _require_number(sequence_id, "sequence id", "a number from 0 to 2^63-1")


def _require_number(value: object, what: str, expected: str) -> None:
    if type(value) is int and 0 <= value < _NUMBER_END:
        return  # a shortcut: the `isinstance` check of `SupportsIndex` below takes microseconds
    if not isinstance(value, SupportsIndex) or not 0 <= operator.index(value) < _NUMBER_END:
        raise Refused(f"a message's {what} is {value!r}, expected {expected}")


def _require_text(text: str, what: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused(f"a message's {what} {text[:80]!r} is not valid Unicode") from None


def entry_bytes_most(value_bytes: int, key_bytes: int) -> int:
    """Return an upper bound of a message's size as an entry.

    A character of a key may take four bytes in UTF-8, and compression may enlarge a value slightly.
    """
    return value_bytes + value_bytes // 128 + 4 * key_bytes + _AROUND_BYTES


def ordinary_key_chars(messages: int, value_bytes: int, entry_bytes_max: int) -> int:
    """Return the length of a key, in characters, up to which `messages` with such keys always fit into an entry.

    `value_bytes` is the size of all values together. The result is negative if the messages do not fit without keys.
    """
    return ((entry_bytes_max - value_bytes - value_bytes // 128) // messages - _AROUND_BYTES) // 4


def entry_metadata(
    envelope: ProducerMetadata,
    sequence_id: int,
    publish_time_ms: int,
    key: str | bytes | None,
    *,
    is_base64: bool = False,
) -> MessageMetadata:
    """Return an entry's metadata with the fields of its producer and the key of its first message."""
    metadata = MessageMetadata(producer_name=envelope.producer, sequence_id=sequence_id, publish_time=publish_time_ms)
    if key is not None:
        metadata.partition_key, encoded = key_text(key)
        metadata.partition_key_b64_encoded = encoded or is_base64
    if envelope.schema_version is not None:
        metadata.schema_version = envelope.schema_version
    return metadata


def key_text(key: str | bytes) -> tuple[str, bool]:
    """Return the text of a key in the metadata, and whether this text is base64."""
    return (key, False) if isinstance(key, str) else (base64.b64encode(key).decode("ascii"), True)


def single_message(
    envelope: ProducerMetadata, message: OutgoingMessage, publish_time_ms: int
) -> tuple[MessageMetadata, bytes]:
    """Return the metadata and the compressed payload of a message that is not batched."""
    metadata = entry_metadata(envelope, message.sequence_id, publish_time_ms, message.key)
    for name, value in message.properties.items():
        metadata.properties.add(key=name, value=value)
    if message.event_time_ms:
        metadata.event_time = message.event_time_ms
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key
    return metadata, single_payload(envelope, metadata, message.value)


def single_payload(envelope: ProducerMetadata, metadata: MessageMetadata, value: bytes | None) -> bytes:
    """Return the compressed payload of one value. Write its size, the flag of a null and the codec to the metadata."""
    payload = b"" if value is None else value
    metadata.uncompressed_size = len(payload)
    if value is None:
        metadata.null_value = True
    if envelope.compression == NONE:
        return payload
    metadata.compression = envelope.compression
    return compress(envelope.compression, payload)
