"""Pulsar's five compressions, by their numbers: of payloads, and of values in the metadata.

    NONE 0   LZ4 1 (raw block)   ZLIB 2 (with header)   ZSTD 3 (frame)   SNAPPY 4 (raw, opens with its size)

Rules
- The size is stated beside the compressed bytes, and limited before decompression: a few bytes must not request
  gigabytes. The result has exactly that size and uses all of the input, or the bytes are Corrupt.
- Pulsar's Java client flushes a ZLIB stream and does not end it: the stream has no checksum, and ends in 0000ffff.
- If a codec of Arrow returns fewer bytes than requested, it leaves the rest of the buffer unchanged. Each codec here
  is called in a way that detects this.
- A number outside the list is Unsupported: a newer writer's.
"""

from __future__ import annotations

import zlib
from functools import cache

import pyarrow as pa

from pyspark_ledger.ledger.errors import Corrupt, Refused, Unsupported

NONE, LZ4, ZLIB, ZSTD, SNAPPY = range(5)
NAMES = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
UNCOMPRESSED_BYTES_MAX = 128 * 1024 * 1024

_ZSTD_LEVEL = 3  # Pulsar's level
_EMPTY_LZ4 = b"\0"
_LZ4_END = 5  # a block ends with at least this many uncompressed bytes
_ZLIB_FLUSHED = b"\0\0\xff\xff"  # an empty stored block: it flushes all input before it


def compress(kind: int, buffer: bytes | memoryview, *, level: int = _ZSTD_LEVEL) -> bytes:
    """Compress a buffer. Raises Refused for an unknown number. `level` is ZSTD's; readers need not know it."""
    if kind == NONE:
        return bytes(buffer)
    if kind == ZLIB:
        return zlib.compress(buffer)
    if kind not in {LZ4, ZSTD, SNAPPY}:
        raise Refused(f"compression {kind} is not known", hint=f"Known are 0 to {SNAPPY}: {', '.join(NAMES)}")
    if kind == LZ4 and len(buffer) == 0:
        return _EMPTY_LZ4
    return bytes(_codec(kind, level).compress(buffer, asbytes=True))


def decompress(
    kind: int,
    buffer: bytes | memoryview,
    uncompressed_size: int,
    where: str,
    *,
    max_bytes: int = UNCOMPRESSED_BYTES_MAX,
    framed: bool = False,
) -> memoryview:
    """Decompress to exactly `uncompressed_size` bytes.

    `framed` is for a caller that checks every byte by the content itself: LZ4 is then decompressed once, and the caller
    detects a shorter result. NONE returns the buffer itself for any size, because clients need not state one. Raises
    Corrupt if size and bytes disagree, Unsupported for a size over `max_bytes` or an unknown number, naming `where`.
    """
    if kind == NONE:
        return memoryview(buffer)
    if not 0 <= kind < len(NAMES):
        raise Unsupported(f"{where} is compressed by codec {kind}, known are 0 to {SNAPPY} ({', '.join(NAMES)})")
    if uncompressed_size > max_bytes:
        raise Unsupported(
            f"{where} states {uncompressed_size} bytes before {NAMES[kind]}, at most {max_bytes} are read"
        )
    if uncompressed_size < 0:
        raise Corrupt(f"{where} states {uncompressed_size} bytes before {NAMES[kind]}")
    if kind == ZLIB:
        return _inflate_zlib(buffer, uncompressed_size, where)
    if kind == LZ4:
        return _inflate_lz4(buffer, uncompressed_size, where, framed=framed)
    if kind == SNAPPY:
        _require_snappy_size(memoryview(buffer), uncompressed_size, where)
    return _inflate(kind, buffer, uncompressed_size, where)


def _inflate(kind: int, buffer: bytes | memoryview, size: int, where: str) -> memoryview:
    try:
        return memoryview(_codec(kind).decompress(buffer, size)).cast("B")
    except (OSError, pa.ArrowInvalid) as wrong:
        raise Corrupt(f"{where} is no {NAMES[kind]} of {len(buffer)} bytes that gives {size}: {wrong}") from wrong


def _inflate_lz4(buffer: bytes | memoryview, size: int, where: str, *, framed: bool) -> memoryview:
    """Decompress a block, which does not state its size. A result that fits with a byte less is shorter than stated."""
    if size == 0:
        if bytes(buffer[:2]) == _EMPTY_LZ4:
            return memoryview(b"")
        raise Corrupt(f"{where} is LZ4 of {len(buffer)} bytes that states 0 bytes, expected one byte of 00")
    inflated = _inflate(LZ4, buffer, size, where)
    if framed and size >= _LZ4_END and inflated[-_LZ4_END:] == memoryview(buffer)[-_LZ4_END:]:
        return inflated
    if _fits_lz4(buffer, size - 1):
        raise Corrupt(f"{where} is LZ4 of {len(buffer)} bytes that gives less than the {size} bytes it states")
    return inflated


def _fits_lz4(buffer: bytes | memoryview, size: int) -> bool:
    if size == 0:
        return bytes(buffer[:2]) == _EMPTY_LZ4
    try:
        _codec(LZ4).decompress(buffer, size)
    except OSError:
        return False
    return True


def _inflate_zlib(buffer: bytes | memoryview, size: int, where: str) -> memoryview:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(buffer, size + 1)
    except zlib.error as wrong:
        raise Corrupt(f"{where} is no ZLIB of {len(buffer)} bytes that gives {size}: {wrong}") from wrong
    if len(inflated) != size:
        found = f"more than {size}" if len(inflated) > size else str(len(inflated))
        raise Corrupt(f"{where} is ZLIB of {len(buffer)} bytes that gives {found} bytes, it states {size}")
    flushed = not buffer or bytes(buffer[-len(_ZLIB_FLUSHED) :]) == _ZLIB_FLUSHED
    if inflater.unused_data or not (inflater.eof or flushed):
        state = f"{len(inflater.unused_data)} bytes too many" if inflater.eof else "no end"
        raise Corrupt(f"{where} is ZLIB of {len(buffer)} bytes with {state}")
    return memoryview(inflated)


def _require_snappy_size(view: memoryview, size: int, where: str) -> None:
    stated = 0
    for number, byte in enumerate(view[:5].cast("B")):
        stated |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            break
    if stated != size:
        raise Corrupt(f"{where} opens with a SNAPPY size of {stated} bytes, {size} are stated beside it")


@cache
def _codec(kind: int, level: int = _ZSTD_LEVEL) -> pa.Codec:
    if kind == ZSTD:
        return pa.Codec("zstd", compression_level=level)
    return pa.Codec("lz4_raw" if kind == LZ4 else "snappy")
