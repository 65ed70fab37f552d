"""Encoding of a `PositionInfo` as entries of a cursor's log.

A *whole state* has all acknowledgements of a cursor. It is one entry, or several chunks with a footer (PIP-381). A
*delta* has the acknowledgements since the previous delta or whole state.

    whole, small        0x08 …                                   the PositionInfo itself
    whole, compressed   size u32 | compressed bytes              size of the PositionInfo, first byte below 0x08
    whole, large        chunk | chunk | … | {"numParts":N,"length":L}    a whole state in slices, then the footer
    delta               0xD5 | version | base u64 | number u32 | codec u8 | size u32 | PositionInfo, or compressed bytes

Rules
- The first byte identifies the kind of an entry. A compressed state begins with its uncompressed size. This size is
  below 128 MiB, so its first byte is below 0x08. The codec of a state is a property of its entry
  (`ledger.cursor.cursor_log`).
- The base of a delta is the whole state that ends at entry `base`. Deltas are numbered from 1 without gaps. Pulsar does
  not support deltas, and does not accept them as states.
- Footers, sizes and numbers are untrusted. Each is checked against its limit before use.
- A footer is valid only if all its chunks are present and have the stated total length.
- A footer cannot refer to more entries than precede it. So the entries of the log limit the memory of a read.
- An uncompressed state has at most `FOOTER_LENGTH_MAX` bytes, because PIP-381 stores the length in a Java `int`.
- A state that could not be read again is refused when it is written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from pyspark_ledger.ledger.errors import Corrupt, Refused
from pyspark_ledger.ledger.message.compression import NAMES, NONE, ZSTD, compress, decompress

ENTRY_BYTES_MAX = 1024 * 1024
ENTRY_BYTES_LEAST = 1024
PLAIN_FIRST, FOOTER_FIRST, DELTA_FIRST = 0x08, 0x7B, 0xD5
STATE_BYTES_MAX = (1 << 27) - 1  # the largest uncompressed size of a compressed state
FOOTER_LENGTH_MAX = 2**31 - 1

_U32 = struct.Struct(">I")
_DELTA = struct.Struct(">BBQIBI")
_DELTA_VERSION = 1
_FOOTER_BYTES_MAX = 128
_SAMPLE_BYTES = 256 * 1024
_ZSTD_FAST, _ZSTD_USUAL, _ZSTD_CLOSE = 1, 3, 7


class Footer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Last entry of a state in chunks. `numParts` is the number of chunks, `length` their total size in bytes."""

    numParts: int  # noqa: N815 — PIP-381's names
    length: int


_FOOTER = msgspec.json.Decoder(Footer)


class Delta(NamedTuple):
    """Delta of the whole state that ends at entry `base`. `number` counts from 1. `info` is a PositionInfo."""

    base: int
    number: int
    info: memoryview


def encode_state(info: bytes, *, compression: int = NONE, entry_bytes: int = ENTRY_BYTES_MAX) -> list[bytes]:
    """Return the entries of a whole state: one entry, or chunks and a footer if the state exceeds `entry_bytes`.

    Raises Refused if `entry_bytes` is too small or the state is too long.
    """
    if entry_bytes < ENTRY_BYTES_LEAST:
        raise Refused(
            f"entries of {entry_bytes} bytes are too small for a cursor, at least {ENTRY_BYTES_LEAST} bytes are needed"
        )
    return in_chunks(info if compression == NONE else _compressed(info, compression), entry_bytes)


def in_chunks(state: bytes, entry_bytes: int = ENTRY_BYTES_MAX) -> list[bytes]:
    """Return the state as one entry, or as chunks and a footer if the state exceeds `entry_bytes`.

    Raises Refused if the state is too long for a footer.
    """
    if len(state) <= entry_bytes:
        return [state]
    if len(state) > FOOTER_LENGTH_MAX:
        raise Refused(
            f"a cursor's state of {len(state)} bytes is too long for a footer, {FOOTER_LENGTH_MAX} are the most",
            hint="Acknowledge the rows between the acknowledged ranges, or set cursorInfoCompressionType",
        )
    parts = [state[at : at + entry_bytes] for at in range(0, len(state), entry_bytes)]
    return [*parts, msgspec.json.encode(Footer(len(parts), len(state)))]


def decode_state(state: bytes | memoryview, compression: int, where: str) -> memoryview:
    """Return the PositionInfo of a whole state. `state` is the single entry of the state, or its joined chunks.

    Raises Corrupt or Unsupported naming `where`.
    """
    view = memoryview(state)
    if not view or view[0] == PLAIN_FIRST:
        return view
    if compression == NONE:
        raise Corrupt(f"{where} begins with {view[0]:#04x}, a PositionInfo begins with {PLAIN_FIRST:#04x}")
    if len(view) < _U32.size:
        raise Corrupt(f"{where} of {len(view)} bytes is too short for an uncompressed size of {_U32.size} bytes")
    (size,) = _U32.unpack_from(view)
    return decompress(compression, view[_U32.size :], size, where, max_bytes=STATE_BYTES_MAX)


def parse_footer(payload: bytes | memoryview, where: str) -> Footer:
    """Parse a footer. Raises Corrupt if the payload is not a footer or its numbers are impossible."""
    if len(payload) > _FOOTER_BYTES_MAX:
        raise Corrupt(
            f"{where} begins like a footer and has {len(payload)} bytes, a footer has at most {_FOOTER_BYTES_MAX}"
        )
    try:
        footer = _FOOTER.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise Corrupt(f"{where} begins like a footer and is not a footer: {wrong}") from wrong
    if not 1 <= footer.length <= FOOTER_LENGTH_MAX or not 1 <= footer.numParts <= footer.length + 1:
        raise Corrupt(f"{where} states {footer.numParts} parts of {footer.length} bytes in total")
    return footer


def state_ending_at(last: int, read: Callable[[int], memoryview], where: str) -> memoryview:
    """Return the joined bytes of the whole state that ends at entry `last`. Raises Corrupt if no state ends there."""
    payload = read(last)
    if not len(payload) or payload[0] != FOOTER_FIRST:
        return payload
    footer = parse_footer(payload, f"entry {last} of {where}")
    if footer.numParts > last:
        raise Corrupt(f"entry {last} of {where} states {footer.numParts} parts, but {last} entries precede it")
    found, parts = 0, []
    for number in range(last - footer.numParts, last):
        parts.append(read(number))
        found += len(parts[-1])
        if found > footer.length:
            break
    if found != footer.length:
        raise Corrupt(f"entry {last} of {where} states {footer.length} bytes in its parts, but they have {found}")
    return memoryview(b"".join(parts))


def encode_delta(base: int, number: int, info: bytes, *, compression: int = NONE) -> bytes:
    """Encode a delta. `info` has at most `STATE_BYTES_MAX` bytes. It is compressed only if this shrinks it."""
    body, codec = info, NONE
    if compression != NONE:
        shrunk = compress(compression, info)
        if len(shrunk) < len(info):
            body, codec = shrunk, compression
    return _DELTA.pack(DELTA_FIRST, _DELTA_VERSION, base, number, codec, len(info)) + body


def parse_delta(payload: bytes | memoryview, where: str) -> Delta:
    """Parse a delta. Raises Corrupt or Unsupported naming `where`."""
    view = memoryview(payload)
    if len(view) < _DELTA.size:
        raise Corrupt(f"{where} of {len(view)} bytes is too short for a delta")
    first, version, base, number, codec, size = _DELTA.unpack_from(view)
    if (first, version) != (DELTA_FIRST, _DELTA_VERSION):
        raise Corrupt(f"{where} begins with {first:#04x} {version}, a delta with {DELTA_FIRST:#04x} {_DELTA_VERSION}")
    body = decompress(codec, view[_DELTA.size :], size, where, max_bytes=STATE_BYTES_MAX)
    if len(body) != size:
        raise Corrupt(f"{where} has {len(body)} bytes, stated are {size}")
    return Delta(base, number, body)


def compression_number(name: str) -> int:
    """Return the number of a compression by its name in Pulsar. Raises Refused for an unknown name."""
    if name.upper() not in NAMES:
        raise Refused(f"compression {name!r} is not known", hint=f"Use one of {', '.join(NAMES)}")
    return NAMES.index(name.upper())


def _compressed(info: bytes, compression: int) -> bytes:
    if len(info) > STATE_BYTES_MAX:
        raise Refused(
            f"a cursor's state of {len(info)} bytes is too long to be compressed, {STATE_BYTES_MAX} are the most",
            hint="Set cursorInfoCompressionType to NONE for this store",
        )
    return _U32.pack(len(info)) + compress(compression, info, level=_level(info, compression))


def _level(info: bytes, compression: int) -> int:
    """Return the compression level. ZSTD uses a high level if a sample shrinks to less than a fifth."""
    if compression != ZSTD:
        return _ZSTD_USUAL
    sample = memoryview(info)[:_SAMPLE_BYTES]
    return _ZSTD_CLOSE if len(compress(ZSTD, sample, level=_ZSTD_FAST)) * 5 < len(sample) else _ZSTD_USUAL
