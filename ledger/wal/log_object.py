"""Bytes of an object of the write-ahead log: header, directory of parts, payloads, checksum of the whole object.

    0       4        6       8          24        32        40       56          64        68            72
    +-------+--------+-------+----------+---------+---------+--------+-----------+---------+-------------+
    | LWAL  | format | flags | store id | epoch   | number  | nonce  | time (ms) | bytes of| CRC32C of   |
    | 4     | u16    | u16   | 16       | u64     | u64     | 16     | u64       | dir. u32| 0 to 68 u32 |
    +-------+--------+-------+----------+---------+---------+--------+-----------+---------+-------------+
    | directory: a msgpack array of parts, then its CRC32C (u32)                                         |
    +----------------------------------------------------------------------------------------------------+
    | payloads of the parts, in the order of the directory                                               |
    +----------------------------------------------------------------------------------------------------+
    | CRC32C of all bytes before (u32)                                                                   |
    +----------------------------------------------------------------------------------------------------+

Integers are big-endian. *Bytes of dir.* is the length of the directory. msgpack is a compact binary form of JSON. The
epoch is a number that each new broker of the store raises. The nonce is the random id of the broker that wrote the
object. The high byte of *flags* is the number of earlier objects that were not acknowledged when the object was put.
So the object states up to which number everything was acknowledged. An object of format 1 does not state this. A part
is of the kind `records` (changed rows of the metadata) or `bytes` (bytes of a file). Its payload is its content.
`ledger.database.changed_rows` has the format of `records`.

Invariants
- If any bit is damaged, the decoder raises `Corrupt`. The error names the object and the place, and has the expected
  and the found value.
- If the object has a newer format, the decoder raises `Unsupported`.
- A batch, a group of changes that becomes visible in one step, is a sequence of parts. Only its last part has the flag
  `last`. A batch may continue in the next object.
- A claim, an empty object that a broker puts when it takes the store over (`ledger.wal.take_over`), has no part.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from pyspark_ledger.ledger.checksum import Buffer, crc32c
from pyspark_ledger.ledger.errors import Corrupt, Unsupported

_MAGIC, FORMAT = b"LWAL", 2
_UNSTATED = 1  # the format without a statement
_CLAIM = 1
_PENDING_SHIFT, _PENDING_MAX = 8, 255
_HEADER = struct.Struct(">4sHH16sQQ16sQI")
_CRC = struct.Struct(">I")
HEADER_BYTES = _HEADER.size + _CRC.size
RECORDS: Literal["records"] = "records"
BYTES: Literal["bytes"] = "bytes"


class WalPart(msgspec.Struct, frozen=True, array_like=True):
    """Description of one part in the directory of a log object.

    A part of kind `records` contains rows of one metadata transaction. A part of kind `bytes` contains bytes of a file
    of the store's directory, from `offset` on.
    """

    kind: Literal["records", "bytes"]
    length: int
    crc32c: int
    last: bool
    file: str = ""
    offset: int = 0


class Header(NamedTuple):
    """Identity of a log object. `nonce` is the random id of the broker that wrote the object.

    `pending` earlier objects were not acknowledged when the object was put. If the object does not state this, none is
    assumed to be acknowledged.
    """

    store_id: uuid.UUID
    epoch: int
    number: int
    nonce: uuid.UUID
    time_ms: int
    claim: bool = False
    pending: int = 0

    @property
    def acknowledged(self) -> int:
        """The number below which every object was acknowledged when this object was put."""
        return self.number - self.pending


class WalRange(NamedTuple):
    """Numbers of the two objects that contain the first and the last part of a batch."""

    first: int
    last: int


class LogObject(NamedTuple):
    """Decoded object: its header, its parts with their payloads, and the offset of the first payload."""

    header: Header
    parts: list[tuple[WalPart, memoryview]]
    start: int = 0


_decode_parts = msgspec.msgpack.Decoder(list[WalPart]).decode
_encode_parts = msgspec.msgpack.Encoder().encode


def encode_object(header: Header, parts: Sequence[tuple[WalPart, Buffer]]) -> list[Buffer]:
    """Return the bytes of an object, as several buffers in order. No payload is copied.

    Each payload must have the length and the checksum in its `WalPart`.
    """
    directory = _encode_parts([part for part, _ in parts])
    assert header.pending <= _PENDING_MAX, header  # noqa: S101 — the largest window is smaller
    head = _HEADER.pack(
        _MAGIC,
        FORMAT,
        header.pending << _PENDING_SHIFT | (_CLAIM if header.claim else 0),
        header.store_id.bytes,
        header.epoch,
        header.number,
        header.nonce.bytes,
        header.time_ms,
        len(directory),
    )
    prefix = b"".join([head, _CRC.pack(crc32c(head)), directory, _CRC.pack(crc32c(directory))])
    whole = crc32c(prefix)
    for _, payload in parts:
        whole = crc32c(payload, whole)
    return [prefix, *[payload for _, payload in parts], _CRC.pack(whole)]


def decode_header(data: Buffer, where: str) -> tuple[Header, int]:
    """Return the header, and the length of the directory in bytes. `data` starts with the header."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        raise Corrupt(f"{where} has {len(view)} bytes, a header has {HEADER_BYTES}")
    magic, number, flags, store, epoch, at, nonce, time_ms, length = _HEADER.unpack_from(view)
    if magic != _MAGIC:
        raise Corrupt(f"{where} starts with {magic.hex()}, expected {_MAGIC.hex()}: not an object of a ledger store")
    _require_sum(view[: _HEADER.size], _HEADER.size, view, f"{where}, header")
    pending = flags >> _PENDING_SHIFT
    if number not in (_UNSTATED, FORMAT) or flags & ~_CLAIM & _PENDING_MAX or (number == _UNSTATED and pending):
        raise Unsupported(
            f"{where} has format {number} and flags {flags:#x}, this version reads formats {_UNSTATED} and {FORMAT}",
            hint="Use a newer version of this package",
        )
    pending = at if number == _UNSTATED else pending
    claim = bool(flags & _CLAIM)
    return Header(uuid.UUID(bytes=store), epoch, at, uuid.UUID(bytes=nonce), time_ms, claim, pending), length


def decode_object(data: Buffer, where: str) -> LogObject:
    """Decode an object and compare all checksums. Raises Corrupt for damage, Unsupported for a newer format."""
    view = memoryview(data)
    header, directory_bytes = decode_header(view, where)
    start = HEADER_BYTES + directory_bytes + _CRC.size
    end = len(view) - _CRC.size
    if start > end:
        raise Corrupt(f"{where} has {len(view)} bytes, header and directory need {start + _CRC.size}")
    _require_sum(view[HEADER_BYTES : start - _CRC.size], start - _CRC.size, view, f"{where}, directory")
    try:
        listed = _decode_parts(view[HEADER_BYTES : start - _CRC.size])
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{where}, directory: {error}") from error
    if start + sum(part.length for part in listed) != end:
        stated = sum(part.length for part in listed)
        raise Corrupt(f"{where} has {end - start} bytes of payload, its directory states {stated}")
    parts, at = [], start
    for number, part in enumerate(listed):
        payload = view[at : at + part.length]
        found = crc32c(payload)
        if found != part.crc32c:
            raise Corrupt(f"{where}, part {number} at {at}: CRC32C {found:#010x}, stated is {part.crc32c:#010x}")
        parts.append((part, payload))
        at += part.length
    _require_sum(view[:end], end, view, where)
    if header.claim and parts:
        raise Corrupt(f"{where} is a claim with {len(parts)} parts, expected none")
    return LogObject(header, parts, start)


def _require_sum(covered: memoryview, at: int, view: memoryview, where: str) -> None:
    found, stated = crc32c(covered), _CRC.unpack_from(view, at)[0]
    if found != stated:
        raise Corrupt(f"{where}: CRC32C {found:#010x} of {len(covered)} bytes, stated at {at} is {stated:#010x}")
