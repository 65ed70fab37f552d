"""Decoder of the messages in a Pulsar client's entry: a single message, or a batch of messages.

An *entry* is the unit of storage. A *chunk* is a part of a message that is too large for one entry. A *stamp* before an
entry has the time and the row number that the broker gave it.

    batch:  size u32  SingleMessageMetadata  value …     field 11 of the entry's metadata is the number of messages

Rules
- A message of a batch has its own key, ordering key (a second key of Pulsar's clients), properties and flag for a null
  value. A message that states no event time or sequence id has the event time or sequence id of its entry.
- Pulsar's compaction keeps only the newest message of each key, and marks the removed messages of a batch. These are
  not returned. The other messages keep their index.
- A value is a view of the entry, or of its decompressed bytes. A null value (a tombstone) differs from an empty value.
- An encrypted entry raises an error that names the keys, unless `ledger.message.encryption` decrypted it before.
- An entry of another format, such as a record batch of Kafka that KoP stored, raises Unsupported.
- A marker, an entry that a broker writes for example at the end of a transaction, has no message.
- `ChunkAssembler` joins the chunks of a message, and returns the whole message at the position of its last chunk.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterator

import msgspec

from pyspark_ledger.ledger.errors import Corrupt, Refused, Unsupported
from pyspark_ledger.ledger.message.compression import NONE, UNCOMPRESSED_BYTES_MAX, decompress
from pyspark_ledger.ledger.message.entry import (
    BrokerStamp,
    ParsedEntry,
    is_arrow,
    is_marker,
    parse_message,
    require_known_format,
)
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata, SingleMessageMetadata

_U32 = struct.Struct(">I")


class Message(msgspec.Struct, frozen=True):
    """Message as a reader receives it. Times are milliseconds since 1970, an event time of 0 means none.

    `batch_index` is -1 for a message that was not batched. `key` is the text in the metadata, which is base64 if
    `key_is_base64`. `broker_time` and `index` are from the stamp that the broker puts before an entry. They are None if
    the entry has no stamp.
    """

    batch_index: int
    key: str | None
    value: memoryview | None
    properties: dict[str, str]
    event_time: int
    publish_time: int
    producer: str
    sequence_id: int
    ordering_key: bytes | None
    key_is_base64: bool
    schema_version: bytes | None
    broker_time: int | None
    index: int | None

    @property
    def key_bytes(self) -> bytes | None:
        """The key as bytes. Raises Corrupt if the key claims to be base64 and is not."""
        if self.key is None:
            return None
        if not self.key_is_base64:
            return self.key.encode()
        try:
            return base64.b64decode(self.key, validate=True)
        except (binascii.Error, ValueError) as wrong:
            raise Corrupt(f"key {self.key!r} is marked as base64 and is not base64: {wrong}") from wrong


def decode_messages(parsed: ParsedEntry, where: str, *, max_bytes: int = UNCOMPRESSED_BYTES_MAX) -> list[Message]:
    """Return the messages of an entry, in order. Returns an empty list for a marker.

    Raises Refused for an Arrow payload. Raises Unsupported for an encrypted entry, a chunk, an unknown compression, or
    more than `max_bytes` after decompression. Raises Corrupt for damaged bytes. Each error names `where`.
    """
    metadata = parsed.metadata
    if is_marker(metadata):
        return []
    _require_clear(metadata, where)
    _require_messages(metadata, where)
    payload = parsed.payload
    if metadata.compression != NONE:
        size = metadata.uncompressed_size
        payload = decompress(metadata.compression, payload, size, where, max_bytes=max_bytes)
    if metadata.HasField("num_messages_in_batch"):
        return list(_batch(parsed.stamp, metadata, payload, where))
    return [_single(parsed.stamp, metadata, payload, where)]


def _require_clear(metadata: MessageMetadata, where: str) -> None:
    if metadata.encryption_keys:
        names = ", ".join(repr(key.key) for key in metadata.encryption_keys)
        raise Unsupported(
            f"{where} is encrypted with key {names}, and this read does not decrypt",
            hint="Read the ledger with a Pulsar client, or its offloaded segments with option 'cryptoKeys'",
        )


def _require_messages(metadata: MessageMetadata, where: str) -> None:
    if is_arrow(metadata):
        raise Refused(f"{where} holds Arrow rows, expected Pulsar messages")
    require_known_format(metadata, where)
    if metadata.num_chunks_from_msg > 1:
        raise Unsupported(
            f"{where} is chunk {metadata.chunk_id} of {metadata.num_chunks_from_msg} of message "
            f"{metadata.uuid!r}, a chunk alone is not delivered",
            hint="Assemble the chunks first",
        )


def _text(value: str | bytes, where: str) -> str:
    """Return a text of the metadata. Raises Corrupt for invalid UTF-8, which Protobuf's runtime returns as bytes."""
    if isinstance(value, str):
        return value
    raise Corrupt(f"{where} has a text in its metadata that is not UTF-8: {value[:40]!r}")


def _key(message: MessageMetadata | SingleMessageMetadata, where: str) -> str | None:
    return _text(message.partition_key, where) if message.HasField("partition_key") else None


def _properties(message: MessageMetadata | SingleMessageMetadata, where: str) -> dict[str, str]:
    return {_text(pair.key, where): _text(pair.value, where) for pair in message.properties}


def _single(stamp: BrokerStamp | None, metadata: MessageMetadata, payload: memoryview, where: str) -> Message:
    return Message(
        -1,
        _key(metadata, where),
        None if metadata.null_value else payload,
        _properties(metadata, where),
        metadata.event_time,
        metadata.publish_time,
        _text(metadata.producer_name, where),
        metadata.sequence_id,
        metadata.ordering_key if metadata.HasField("ordering_key") else None,
        metadata.partition_key_b64_encoded,
        metadata.schema_version if metadata.HasField("schema_version") else None,
        (stamp.timestamp_ms or None) if stamp else None,
        stamp.row_end - 1 if stamp and stamp.row_end else None,
    )


def _batch(stamp: BrokerStamp | None, metadata: MessageMetadata, payload: memoryview, where: str) -> Iterator[Message]:
    count, size = metadata.num_messages_in_batch, len(payload)
    if count < 1:
        raise Corrupt(f"{where} is a batch of {count} messages, expected at least 1")
    publish_time, producer = metadata.publish_time, _text(metadata.producer_name, where)
    schema_version = metadata.schema_version if metadata.HasField("schema_version") else None
    broker_time = (stamp.timestamp_ms or None) if stamp else None
    first = stamp.row_end - count if stamp and stamp.row_end >= count else None
    at = 0
    for number in range(count):
        item, start, at = _item(payload, at, number, count, where)
        if item.compacted_out:
            continue
        yield Message(
            number,
            _key(item, where),
            None if item.null_value else payload[start:at],
            _properties(item, where),
            item.event_time if item.HasField("event_time") else metadata.event_time,
            publish_time,
            producer,
            item.sequence_id if item.HasField("sequence_id") else metadata.sequence_id,
            item.ordering_key if item.HasField("ordering_key") else None,
            item.partition_key_b64_encoded,
            schema_version,
            broker_time,
            None if first is None else first + number,
        )
    if at != size:
        raise Corrupt(f"{where}: the {count} messages of the batch end at byte {at} of {size}")


def _item(payload: memoryview, at: int, number: int, count: int, where: str) -> tuple[SingleMessageMetadata, int, int]:
    """Return the metadata of message `number` of a batch, and the start and end of its value."""
    if at + 4 > len(payload):
        raise Corrupt(f"{where}: the batch of {count} ends at byte {len(payload)}, message {number} is at {at}")
    (size,) = _U32.unpack_from(payload, at)
    item, start = parse_message(SingleMessageMetadata, payload, at + 4, size, where)
    end = start + item.payload_size
    if not start <= end <= len(payload):
        raise Corrupt(
            f"{where}: message {number} of {count} states {item.payload_size} bytes at byte {start}, "
            f"{len(payload) - start} are left"
        )
    return item, start, end


class ChunkAssembler:
    """Assembler of whole messages from their chunks, which may be interleaved with other messages.

    As in a Pulsar consumer, a first chunk restarts its message, and a repeated chunk is ignored. A message with a
    missing chunk is never delivered. The assembler keeps at most `max_bytes` of chunks.
    """

    def __init__(self, *, max_bytes: int = UNCOMPRESSED_BYTES_MAX) -> None:
        self._max_bytes = max_bytes
        self._parts: dict[tuple[str, str], list[memoryview]] = {}
        self._bytes = 0

    def add(self, parsed: ParsedEntry, where: str) -> ParsedEntry | None:
        """Add an entry. Returns the whole message as an entry if this entry is its last chunk, else None.

        Returns an entry that is not a chunk unchanged. Raises Corrupt for a chunk whose number or size disagrees with
        its message. Raises Unsupported if the chunks of unfinished messages exceed `max_bytes`.
        """
        metadata = parsed.metadata
        count, number = metadata.num_chunks_from_msg, metadata.chunk_id
        if count <= 1 or is_marker(metadata):
            return parsed
        _require_clear(metadata, where)  # each chunk is encrypted separately
        if not 0 <= number < count:
            raise Corrupt(f"{where} is chunk {number} of {count} of message {metadata.uuid!r}")
        key = (metadata.producer_name, metadata.uuid)
        parts = self._parts.get(key, [])
        earlier = [] if number == 0 else parts
        if number < len(earlier) or (number and not earlier):
            return None
        if number > len(earlier):
            self._drop(key)
            return None
        self._require_room(key, parts if number == 0 else [], parsed.payload, where)
        if number == 0:
            self._drop(key)
        self._parts.setdefault(key, []).append(parsed.payload)
        self._bytes += len(parsed.payload)
        return self._whole(key, parsed, where) if number == count - 1 else None

    def _require_room(self, key: tuple[str, str], replaced: list[memoryview], payload: memoryview, where: str) -> None:
        size = self._bytes - sum(len(part) for part in replaced) + len(payload)
        if size > self._max_bytes:
            raise Unsupported(
                f"{where} brings the chunks of {len(self._parts.keys() | {key})} unfinished messages to "
                f"{size} bytes, at most {self._max_bytes} are kept in memory"
            )

    def _whole(self, key: tuple[str, str], last: ParsedEntry, where: str) -> ParsedEntry:
        payload = b"".join(self._parts[key])
        self._drop(key)
        stated = last.metadata.total_chunk_msg_size
        if len(payload) != stated:
            raise Corrupt(f"{where}: the chunks of message {key[1]!r} have {len(payload)} bytes, stated are {stated}")
        metadata = MessageMetadata()
        metadata.CopyFrom(last.metadata)
        for field in ("num_chunks_from_msg", "chunk_id", "total_chunk_msg_size"):
            metadata.ClearField(field)
        return ParsedEntry(last.stamp, metadata, memoryview(payload))

    def _drop(self, key: tuple[str, str]) -> None:
        self._bytes -= sum(len(part) for part in self._parts.pop(key, ()))
