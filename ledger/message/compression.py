"""Pulsar's five compression types, by number. They compress payloads, cursor states and values in the metadata.

    NONE 0   LZ4 1 (raw block)   ZLIB 2 (with header)   ZSTD 3 (frame)   SNAPPY 4 (raw, begins with its size)

Rules
- The metadata beside the compressed bytes state the uncompressed size. The size is checked against a limit before
  decompression, because a few bytes must not allocate gigabytes.
- Decompression must use the whole input and give exactly the stated size. Otherwise it raises Corrupt.
- A ZLIB stream of Pulsar's Java client lacks its usual end: it has no checksum, and its last bytes are 0000ffff.
- If an Arrow codec decompresses fewer bytes than requested, it leaves the rest of the buffer unchanged. This module
  calls each codec in a way that detects the missing bytes.
- A number outside the list raises Unsupported, because a newer version may have written it.
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
_LZ4_END = 5  # LZ4 stores the last five bytes of a block, or more, without compression
_ZLIB_FLUSHED = b"\0\0\xff\xff"  # the last bytes of a ZLIB stream of Pulsar's Java client


def compress(kind: int, buffer: bytes | memoryview, *, level: int = _ZSTD_LEVEL) -> bytes:
    """Compress a buffer. Raises Refused for an unknown number. `level` applies to ZSTD only."""
    if kind == NONE:
        return bytes(buffer)
    if kind == ZLIB:
        return zlib.compress(buffer)
    if kind not in {LZ4, ZSTD, SNAPPY}:
        raise Refused(f"compression {kind} is not known", hint=f"Use 0 to {SNAPPY}: {', '.join(NAMES)}")
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

    `framed` means that the caller detects missing bytes from the content itself. Without `framed`, LZ4 is
    decompressed a second time to detect them. NONE returns the buffer itself for any size, because clients may omit
    the size.

    Raises Corrupt if size and bytes disagree. Raises Unsupported for a size above `max_bytes` or an unknown number.
    Each error names `where`.
    """
    if kind == NONE:
        return memoryview(buffer)
    if not 0 <= kind < len(NAMES):
        raise Unsupported(
            f"{where} is compressed by codec {kind}, this version decompresses 0 to {SNAPPY} ({', '.join(NAMES)})"
        )
    if uncompressed_size > max_bytes:
        raise Unsupported(
            f"{where} states {uncompressed_size} bytes before {NAMES[kind]} compression, at most {max_bytes} are read"
        )
    if uncompressed_size < 0:
        raise Corrupt(f"{where} states {uncompressed_size} bytes before {NAMES[kind]} compression, expected 0 or more")
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
        raise Corrupt(
            f"{where} has {len(buffer)} bytes that {NAMES[kind]} does not decompress to {size} bytes: {wrong}"
        ) from wrong


def _inflate_lz4(buffer: bytes | memoryview, size: int, where: str, *, framed: bool) -> memoryview:
    """Decompress an LZ4 block, which does not state its size.

    If the block also decompresses into a buffer of one byte less, it has fewer bytes than stated.
    """
    if size == 0:
        if bytes(buffer[:2]) == _EMPTY_LZ4:
            return memoryview(b"")
        raise Corrupt(f"{where} is LZ4 of {len(buffer)} bytes and states 0 bytes, expected one byte 00")
    inflated = _inflate(LZ4, buffer, size, where)
    if framed and size >= _LZ4_END and inflated[-_LZ4_END:] == memoryview(buffer)[-_LZ4_END:]:
        return inflated
    if _fits_lz4(buffer, size - 1):
        raise Corrupt(f"{where} is LZ4 of {len(buffer)} bytes that gives less than the stated {size} bytes")
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
        raise Corrupt(
            f"{where} has {len(buffer)} bytes that ZLIB does not decompress to {size} bytes: {wrong}"
        ) from wrong
    if len(inflated) != size:
        found = f"more than {size}" if len(inflated) > size else str(len(inflated))
        raise Corrupt(f"{where} is ZLIB of {len(buffer)} bytes that gives {found} bytes, stated are {size}")
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
        raise Corrupt(f"{where} begins with a SNAPPY size of {stated} bytes, its metadata state {size}")


@cache
def _codec(kind: int, level: int = _ZSTD_LEVEL) -> pa.Codec:
    if kind == ZSTD:
        return pa.Codec("zstd", compression_level=level)
    return pa.Codec("lz4_raw" if kind == LZ4 else "snappy")
