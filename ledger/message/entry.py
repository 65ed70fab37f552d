"""Entry of a ledger, in Apache Pulsar's format.

    [0x0e02  size u32  BrokerEntryMetadata]      the stamp: when the broker stored the entry, and the index of its last
                                                 row; not in the checksum
    [0x0e01  crc32c u32]                         the checksum of the bytes after it
    size u32  MessageMetadata  payload …         all numbers are big-endian

A *varint* is a number of Protobuf, which normally takes as few bytes as possible. In a *wide* stamp both numbers take 8
bytes each, so the stamp has a fixed length. A writer that does not know the two numbers yet leaves space for a wide
stamp. Every reader of Protobuf reads a wide stamp like a short stamp.

A *provisional* stamp has the length of a wide stamp, and no index. It is in the data object of a direct segment, which
a task writes before either number is known (`ledger.segment.provisional_stamps`).

    0x0e02 | size 18 (u32) | 08 time (varint of 8 bytes) | 7a 07 | seven zero bytes     7a: a field that no reader knows

Rules
- Every entry is written with its checksum, and every decoder checks the checksum. A missing checksum raises Corrupt.
  Exception: a caller can allow it, because Pulsar's own clients may omit the checksum.
- The log reads an entry's metadata and never its payload. `entry_rows` returns the number of rows from the metadata.
- A payload is a batch of messages if and only if field 11 of `MessageMetadata` is present. An Arrow payload never sets
  that field: a property states its number of rows.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from pyspark_ledger.ledger.checksum import Buffer, crc32c
from pyspark_ledger.ledger.errors import Corrupt, Unsupported
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import BrokerEntryMetadata, MessageMetadata

STAMP_MAGIC = b"\x0e\x02"
CHECKSUM_MAGIC = b"\x0e\x01"
ARROW_PROPERTY = "ledger.arrow.rows"
STAMP_BYTES_MAX = 2 + 4 + 22
WIDE_STAMP_BYTES = 2 + 4 + 18
WIDE_BODY_BYTES = 18
WIDE_NUMBER_END = 1 << 55
"""Numbers of a wide stamp are below this bound."""
NO_INDEX = b"\x7a\x07" + bytes(7)
"""Field of a provisional stamp in place of the index: field 15, seven bytes. Readers of protobuf skip it."""

_FOREIGN = "entry.format", "kafka"
_U32 = struct.Struct(">I")
_HEAD = struct.Struct(">HI")
_STAMP, _CHECKSUM = 0x0E02, 0x0E01
_ROW_DIGITS_MAX = 18  # every number of 18 digits fits an int64
_Message = TypeVar("_Message", bound=Message)


class BrokerStamp(NamedTuple):
    """Stamp that the broker puts before an entry.

    `timestamp_ms` is the time at which the broker stored the entry. `row_end` is the number of rows in the ledger up to
    and including this entry.
    """

    timestamp_ms: int
    row_end: int


class ParsedEntry(NamedTuple):
    """Parts of an entry. `payload` is a view of the entry's bytes."""

    stamp: BrokerStamp | None
    metadata: MessageMetadata
    payload: memoryview


def encode_entry(metadata: MessageMetadata, *payload: Buffer) -> list[Buffer]:
    """Return an entry without a stamp, as a list of buffers. The payload's buffers are not copied."""
    head = metadata.SerializeToString()
    head = _U32.pack(len(head)) + head
    crc = crc32c(head)
    for buffer in payload:
        crc = crc32c(buffer, crc)
    return [CHECKSUM_MAGIC + _U32.pack(crc) + head, *payload]


def stamp_prefix(stamp: BrokerStamp) -> bytes:
    """Return the bytes of a stamp. If the ledger has no row yet, the stamp has no index, because -1 is not allowed."""
    metadata = BrokerEntryMetadata(broker_timestamp=stamp.timestamp_ms)
    if stamp.row_end:
        metadata.index = stamp.row_end - 1
    body = metadata.SerializeToString()
    return STAMP_MAGIC + _U32.pack(len(body)) + body


def wide_stamp(stamp: BrokerStamp) -> bytes:
    """Return the 24 bytes of a wide stamp. `row_end` is at least 1, and both numbers are below 2**55."""
    body = b"\x08" + _wide_varint(stamp.timestamp_ms) + b"\x10" + _wide_varint(stamp.row_end - 1)
    return STAMP_MAGIC + _U32.pack(WIDE_BODY_BYTES) + body


def provisional_stamp(timestamp_ms: int) -> bytes:
    """Return the 24 bytes of a provisional stamp. The time is the time of staging."""
    return STAMP_MAGIC + _U32.pack(WIDE_BODY_BYTES) + b"\x08" + _wide_varint(timestamp_ms) + NO_INDEX


def _wide_varint(value: int) -> bytes:
    return bytes([value >> (7 * step) & 0x7F | 0x80 for step in range(7)] + [value >> 49])


def parse_entry(buffer: Buffer, where: str, *, require_checksum: bool = True) -> ParsedEntry:
    """Parse an entry and check its checksum. Raises Corrupt with `where` and both checksums."""
    view = memoryview(buffer)
    if view.format != "B":  # Arrow's buffers have signed bytes, which Python compares slowly
        view = view.cast("B")
    stamp, at = None, 0
    magic, stated = _head(view, at, where)
    if magic == _STAMP:
        stamp, at = _parse_stamp(view, stated, where)
        magic, stated = _head(view, at, where)
    if magic == _CHECKSUM:
        at += _HEAD.size
        found = crc32c(view[at:])
        if found != stated:
            raise Corrupt(f"{where} has CRC32C {found:#010x}, but states {stated:#010x}")
    elif require_checksum:
        raise Corrupt(f"{where} begins with {magic:04x} at byte {at}, expected a checksum (0e01)")
    if at + 4 > len(view):
        raise Corrupt(f"{where} ends after {len(view)} bytes, expected a size at {at}")
    (size,) = _U32.unpack_from(view, at)
    metadata, at = parse_message(MessageMetadata, view, at + 4, size, where)
    return ParsedEntry(stamp, metadata, view[at:])


def parse_head(begin: memoryview, where: str) -> ParsedEntry | None:
    """Parse the stamp and metadata from the first bytes of an entry. The checksum is not checked.

    Returns None if these bytes do not contain all of the metadata.
    """
    at, stamp = 0, None
    try:
        magic, stated = _head(begin, at, where)
        if magic == _STAMP:
            stamp, at = _parse_stamp(begin, stated, where)
            magic, stated = _head(begin, at, where)
        at += _HEAD.size if magic == _CHECKSUM else 0
        (size,) = _U32.unpack_from(begin, at)
        metadata, at = parse_message(MessageMetadata, begin, at + 4, size, where)
    except (Corrupt, struct.error):
        return None
    return ParsedEntry(stamp, metadata, begin[at:])


def is_marker(metadata: MessageMetadata) -> bool:
    """Return whether an entry is a broker's marker, for example the end of a transaction. A marker has no rows."""
    return metadata.HasField("marker_type")


def arrow_rows(metadata: MessageMetadata) -> int | None:
    """Return the number of rows of an Arrow payload, as the metadata state it; None for a Pulsar payload."""
    for pair in metadata.properties:
        if pair.key == ARROW_PROPERTY:
            return _stated_rows(pair.value)
    return None


def is_arrow(metadata: MessageMetadata) -> bool:
    """Return whether the payload is an Arrow IPC stream of rows."""
    return arrow_rows(metadata) is not None


def foreign_format(metadata: MessageMetadata) -> str:
    """Return the format of a payload that is neither Arrow nor Pulsar's, or an empty text.

    KoP (Kafka on Pulsar) stores a record batch of Kafka as the payload, and states this in a property. Its settings
    `entryFormat=kafka` and `entryFormat=mixed_kafka` both store the same property.
    """
    return next((pair.value for pair in metadata.properties if (pair.key, pair.value) == _FOREIGN), "")


def require_known_format(metadata: MessageMetadata, where: str) -> None:
    """Raise Unsupported for a payload that is neither Arrow nor Pulsar's. Called before a payload is decoded."""
    if found := foreign_format(metadata):
        raise Unsupported(
            f"{where} was stored by KoP with entry.format={found}: its payload is a record batch of Kafka",
            hint="Read the topic with a Kafka client. KoP stores Pulsar messages with entryFormat=pulsar",
        )


def entry_rows(metadata: MessageMetadata) -> int:
    """Return the number of rows that a reader gets from an entry, computed from the entry's metadata."""
    if metadata.HasField("marker_type"):
        return 0
    rows = arrow_rows(metadata)
    if rows is not None:
        return rows
    if metadata.HasField("num_messages_in_batch"):
        return max(metadata.num_messages_in_batch - len(metadata.compacted_batch_indexes), 0)
    if metadata.num_chunks_from_msg > 1:
        return int(metadata.chunk_id == metadata.num_chunks_from_msg - 1)
    return 1


def parse_message(kind: type[_Message], view: memoryview, at: int, size: int, where: str) -> tuple[_Message, int]:
    """Return the protobuf message of `size` bytes at `at`, and the offset after it. Raises Corrupt naming `where`."""
    end = at + size
    if end > len(view):
        raise Corrupt(f"{where} states {size} bytes of {kind.__name__} at byte {at}, {len(view) - at} are left")
    try:
        message = kind.FromString(view[at:end])  # type: ignore[arg-type]  # any buffer will do
    except (DecodeError, UnicodeDecodeError) as wrong:
        raise Corrupt(f"{where} has {size} bytes at byte {at} that are not a {kind.__name__}: {wrong}") from wrong
    if not message.IsInitialized():
        raise Corrupt(f"{where} has {size} bytes of {kind.__name__} at byte {at} without a required field")
    return message, end


def _head(view: memoryview, at: int, where: str) -> tuple[int, int]:
    """Return the two magic bytes at `at`, and the number after them."""
    if at + _HEAD.size > len(view):
        raise Corrupt(f"{where} ends after {len(view)} bytes, expected at least {_HEAD.size} more at {at}")
    magic, number = _HEAD.unpack_from(view, at)
    return magic, number


def _parse_stamp(view: memoryview, size: int, where: str) -> tuple[BrokerStamp, int]:
    metadata, at = parse_message(BrokerEntryMetadata, view, _HEAD.size, size, where)
    row_end = metadata.index + 1 if metadata.HasField("index") else 0
    return BrokerStamp(metadata.broker_timestamp, row_end), at


def _stated_rows(text: str | bytes) -> int:
    # Protobuf's runtime returns invalid UTF-8 as bytes.
    if not (isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= _ROW_DIGITS_MAX):
        shown = text[: 2 * _ROW_DIGITS_MAX]
        raise Corrupt(f"property {ARROW_PROPERTY} is {shown!r}, expected up to {_ROW_DIGITS_MAX} digits")
    return int(text)
