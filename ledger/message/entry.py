"""One entry of a ledger, as Apache Pulsar writes it.

    [0x0e02  size u32  BrokerEntryMetadata]      the broker's stamp; outside the checksum
    [0x0e01  crc32c u32]                          over all that follows
    size u32  MessageMetadata  payload …          big-endian throughout

Rules
- We always write the checksum, and whoever decodes an entry checks it. A missing one is accepted only where
  a caller says so, because Pulsar's own clients may leave it out; in our ledgers it is corruption.
- Whoever stores an entry reads its metadata and never its payload. `entry_rows` is all that the log knows
  of rows.
- A payload is a batch exactly when field 11 is present. An Arrow payload never sets it: it states its rows
  in a property.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from pyspark_ledger.ledger.checksum import Buffer, crc32c
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import BrokerEntryMetadata, MessageMetadata

STAMP_MAGIC = b"\x0e\x02"
CHECKSUM_MAGIC = b"\x0e\x01"
ARROW_PROPERTY = "ledger.arrow.rows"
STAMP_BYTES_MAX = 2 + 4 + 22

_U32 = struct.Struct(">I")
_HEAD = struct.Struct(">HI")
_STAMP, _CHECKSUM = 0x0E02, 0x0E01
_ROW_DIGITS_MAX = 18  # always an int64
_Message = TypeVar("_Message", bound=Message)


class BrokerStamp(NamedTuple):
    """What the broker adds: its clock, and the rows of the managed ledger up to and including this entry."""

    timestamp_ms: int
    row_end: int


class ParsedEntry(NamedTuple):
    """An entry taken apart; `payload` is a view of the bytes it was parsed from."""

    stamp: BrokerStamp | None
    metadata: MessageMetadata
    payload: memoryview


def encode_entry(metadata: MessageMetadata, *payload: Buffer) -> list[Buffer]:
    """The buffers of an entry without a stamp; the payload's are passed on as they are."""
    head = metadata.SerializeToString()
    head = _U32.pack(len(head)) + head
    crc = crc32c(head)
    for buffer in payload:
        crc = crc32c(buffer, crc)
    return [CHECKSUM_MAGIC + _U32.pack(crc) + head, *payload]


def stamp_prefix(stamp: BrokerStamp) -> bytes:
    """The bytes to put before an entry. Without any row so far the index is left out: it cannot say -1."""
    metadata = BrokerEntryMetadata(broker_timestamp=stamp.timestamp_ms)
    if stamp.row_end:
        metadata.index = stamp.row_end - 1
    body = metadata.SerializeToString()
    return STAMP_MAGIC + _U32.pack(len(body)) + body


def parse_entry(buffer: Buffer, where: str, *, require_checksum: bool = True) -> ParsedEntry:
    """Take an entry apart and check its checksum; raises Corrupt naming `where` and both values."""
    view = memoryview(buffer)
    if view.format != "B":  # Arrow's buffers are signed, and comparing those is slow
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
            raise Corrupt(f"{where} has CRC32C {found:#010x}, it states {stated:#010x}")
    elif require_checksum:
        raise Corrupt(f"{where} begins with {magic:04x} at byte {at}, expected a checksum (0e01)")
    if at + 4 > len(view):
        raise Corrupt(f"{where} ends after {len(view)} bytes, expected a size at {at}")
    (size,) = _U32.unpack_from(view, at)
    metadata, at = parse_message(MessageMetadata, view, at + 4, size, where)
    return ParsedEntry(stamp, metadata, view[at:])


def parse_head(begin: memoryview, where: str) -> ParsedEntry | None:
    """An entry of which only the beginning is there, unverified; None when its metadata do not end in it."""
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
    """Whether an entry is the broker's own (a transaction's end, a replication snapshot) and never a row."""
    return metadata.HasField("marker_type")


def arrow_rows(metadata: MessageMetadata) -> int | None:
    """The rows that an Arrow payload states; None for a Pulsar payload."""
    for pair in metadata.properties:
        if pair.key == ARROW_PROPERTY:
            return _stated_rows(pair.value)
    return None


def is_arrow(metadata: MessageMetadata) -> bool:
    """Whether the payload is an Arrow IPC stream of rows."""
    return arrow_rows(metadata) is not None


def entry_rows(metadata: MessageMetadata) -> int:
    """Rows that a reader gets from an entry, as far as its metadata tells."""
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
    """A protobuf message of `size` bytes at `at`, and where the bytes after it begin; raises Corrupt."""
    end = at + size
    if end > len(view):
        raise Corrupt(f"{where} states {size} bytes of {kind.__name__} at byte {at}, {len(view) - at} are left")
    try:
        message = kind.FromString(view[at:end])  # type: ignore[arg-type]  # any buffer will do
    except (DecodeError, UnicodeDecodeError) as wrong:
        raise Corrupt(f"{where} has {size} bytes at byte {at} that are no {kind.__name__}: {wrong}") from wrong
    if not message.IsInitialized():
        raise Corrupt(f"{where} has {size} bytes of {kind.__name__} at byte {at} without a required field")
    return message, end


def _head(view: memoryview, at: int, where: str) -> tuple[int, int]:
    """The two magic bytes at `at` and the number behind them."""
    if at + _HEAD.size > len(view):
        raise Corrupt(f"{where} ends after {len(view)} bytes, expected at least {_HEAD.size} more at {at}")
    magic, number = _HEAD.unpack_from(view, at)
    return magic, number


def _parse_stamp(view: memoryview, size: int, where: str) -> tuple[BrokerStamp, int]:
    metadata, at = parse_message(BrokerEntryMetadata, view, _HEAD.size, size, where)
    row_end = metadata.index + 1 if metadata.HasField("index") else 0
    return BrokerStamp(metadata.broker_timestamp, row_end), at


def _stated_rows(text: str | bytes) -> int:
    # The runtime hands out what is no UTF-8 as bytes.
    if not (isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= _ROW_DIGITS_MAX):
        shown = text[: 2 * _ROW_DIGITS_MAX]
        raise Corrupt(f"property {ARROW_PROPERTY} is {shown!r}, expected up to {_ROW_DIGITS_MAX} digits")
    return int(text)
