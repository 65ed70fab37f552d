"""Value in Pulsar's metadata store: the record of a managed ledger or of a cursor, plain or compressed.

    plain:       the protobuf message
    compressed:  4778  size u32  Managed…InfoMetadata (compression, uncompressed size)  compressed message …

Rules
- A protobuf message never starts with the bytes 47 78 (hexadecimal). So the first bytes show the form. Reason: the low
  three bits of the first byte are the type of a field. They are 7 in 47, and protobuf has no type 7.
- If a compressed value is damaged, the error names the first fault.
- The uncompressed size is checked before decompression.
- Fields of newer versions of Pulsar are kept when a record is read and written.
"""

from __future__ import annotations

import re
import struct
from typing import TypeAlias, TypeVar

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.compression import NONE, decompress
from pyspark_ledger.ledger.message.entry import parse_message
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import (
    ManagedCursorInfo,
    ManagedCursorInfoMetadata,
    ManagedLedgerInfo,
    ManagedLedgerInfoMetadata,
)

Info: TypeAlias = "ManagedLedgerInfo | ManagedCursorInfo"
_Info = TypeVar("_Info", ManagedLedgerInfo, ManagedCursorInfo)

VALUE_BYTES_MAX = 64 * 1024 * 1024

_MAGIC = b"\x47\x78"
# Fields 1 to 3 of a cursor's record are numbers. In a PositionInfo only the fields 1 and 2 are numbers.
_CURSOR_HEAD = re.compile(rb"\x08[\x80-\xff]{0,9}[\x00-\x7f]\x10[\x80-\xff]{0,9}[\x00-\x7f]\x18")
_HEAD_BYTES_MAX = 32
_U32 = struct.Struct(">I")


def parse_ledger_info(value: Buffer, where: str, *, max_bytes: int = VALUE_BYTES_MAX) -> ManagedLedgerInfo:
    """Return the record of a managed ledger. Raises Corrupt or Unsupported with `where`, the value's place."""
    return _parse(ManagedLedgerInfo, ManagedLedgerInfoMetadata, value, where, max_bytes)


def parse_cursor_info(value: Buffer, where: str, *, max_bytes: int = VALUE_BYTES_MAX) -> ManagedCursorInfo:
    """Return the record of a cursor. Raises Corrupt or Unsupported with `where`, the value's place."""
    return _parse(ManagedCursorInfo, ManagedCursorInfoMetadata, value, where, max_bytes)


def is_cursor_info(value: Buffer) -> bool:
    """Return whether bytes are the start of a cursor's record, plain or compressed.

    A cursor's log also has values of another kind, Pulsar's message `PositionInfo`, a cursor's set of acknowledged
    positions. Field 3 is a number in a cursor's record, and a range in a `PositionInfo`.
    """
    begin = bytes(memoryview(value).cast("B")[:_HEAD_BYTES_MAX])
    return begin.startswith(_MAGIC) or _CURSOR_HEAD.match(begin) is not None


def compression_of(value: Buffer, where: str) -> int:
    """Return the number of a value's compression, as in Pulsar's protocol. Raises Corrupt with `where`."""
    view = memoryview(value).cast("B")
    if bytes(view[:2]) != _MAGIC:
        return NONE
    head, _ = _head(ManagedLedgerInfoMetadata, view, where)
    return head.compressionType


def _parse(
    kind: type[_Info],
    head_kind: type[ManagedLedgerInfoMetadata | ManagedCursorInfoMetadata],
    value: Buffer,
    where: str,
    max_bytes: int,
) -> _Info:
    view = memoryview(value).cast("B")
    if bytes(view[:2]) == _MAGIC:
        head, at = _head(head_kind, view, where)
        compression, size = head.compressionType, head.uncompressedSize
        view = decompress(compression, view[at:], size, where, max_bytes=max_bytes)
    info, _ = parse_message(kind, view, 0, len(view), where)
    return info


def _head(
    kind: type[ManagedLedgerInfoMetadata | ManagedCursorInfoMetadata], view: memoryview, where: str
) -> tuple[ManagedLedgerInfoMetadata | ManagedCursorInfoMetadata, int]:
    """Return the metadata before the compressed message, and the message's offset."""
    at = len(_MAGIC) + _U32.size
    if at > len(view):
        raise Corrupt(f"{where} is a compressed value of {len(view)} bytes, expected at least {at}")
    (size,) = _U32.unpack_from(view, len(_MAGIC))
    return parse_message(kind, view, at, size, where)
