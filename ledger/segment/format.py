"""Bytes of a segment, a file of a ledger. They equal the data object of an offload by Pulsar (PIP-17, version 1).

    file     block block … block      each is block_bytes long, except the last, which ends with its last entry

    block    0       4            12             20               28               128
             +-------+------------+--------------+----------------+----------------+-------+---+---------+
             | magic | header 128 | block length | first entry id | 100 zero bytes | frame | … | padding |
             +-------+------------+--------------+----------------+----------------+-------+---+---------+
              FBDBABCB i64          i64            i64

    frame    +-----------+--------------+----------------+
             | length u32| entry id i64 | entry (length) |
             +-----------+--------------+----------------+

    padding  FE DC DE AD FE DC …        four bytes, repeated to the end of the block, which may cut the last four

All integers are big-endian. A frame is an entry with its length and its id.

Invariants
- An entry is never split between blocks. Entry ids count from 0 and are consecutive in the file.
- Where a reader expects the length of the next frame, it may find padding. The first bit of padding is 1. The first bit
  of a length is 0.
- While a segment is open, the header of its last block has the length `block_bytes`. Reserved space of zeros follows
  the last frame. No entry has 0 bytes, so a frame with length 0 marks the end.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from pyspark_ledger.ledger.errors import Corrupt, Refused, Unsupported

BLOCK_MAGIC = 0xFBDBABCB
STREAMING_BLOCK_MAGIC = 0x26A66D32
HEADER_BYTES = 128
FRAME_BYTES = 12
PADDING = b"\xfe\xdc\xde\xad"
BLOCK_BYTES_DEFAULT = 64 * 1024 * 1024
BLOCK_BYTES_MIN = 256  # enough for one small entry; the settings require more, because S3 has a minimum for parts
BLOCK_BYTES_MAX = 2**31  # a frame's length has 31 bits
FRAME = struct.Struct(">Iq")

_HEADER = struct.Struct(">Iqqq100s")
_ZEROS = bytes(100)
_PADDING_PIECE = PADDING * (256 * 1024)


class BlockHeader(NamedTuple):
    """Header of a block: the block's length in bytes, with header and padding, and the id of its first entry."""

    block_bytes: int
    first_entry: int


def pack_header(header: BlockHeader) -> bytes:
    """Return the 128 bytes at the start of a block."""
    return _HEADER.pack(BLOCK_MAGIC, HEADER_BYTES, header.block_bytes, header.first_entry, _ZEROS)


def parse_header(data: bytes | bytearray | memoryview, where: str) -> BlockHeader:
    """Read a block header and compare every byte, also the zeros. Raises Corrupt or Unsupported."""
    if len(data) < HEADER_BYTES:
        raise Corrupt(f"{where}: a block header has {HEADER_BYTES} bytes, {len(data)} are left")
    magic, header_bytes, block_bytes, first_entry, zeros = _HEADER.unpack_from(data)
    if magic == STREAMING_BLOCK_MAGIC:
        raise Unsupported(
            f"{where}: block magic {magic:#010x} belongs to Pulsar's streaming offload (version 2)",
            hint=f"Only blocks with magic {BLOCK_MAGIC:#010x} (version 1) can be read",
        )
    if magic != BLOCK_MAGIC:
        raise Corrupt(f"{where}: block magic is {magic:#010x}, expected {BLOCK_MAGIC:#010x}")
    if header_bytes != HEADER_BYTES:
        raise Corrupt(f"{where}: block header states a length of {header_bytes}, expected {HEADER_BYTES}")
    if zeros != _ZEROS:
        at = next(i for i, byte in enumerate(zeros) if byte)
        raise Corrupt(f"{where}: byte {28 + at} of the block header is {zeros[at]:#04x}, expected 0x00")
    if block_bytes < HEADER_BYTES:
        raise Corrupt(f"{where}: block states {block_bytes} bytes, expected at least the {HEADER_BYTES} of its header")
    return BlockHeader(block_bytes, first_entry)


def entry_bytes_max(block_bytes: int) -> int:
    """Return the size of the largest entry, with its stamp, that fits into a block."""
    return block_bytes - HEADER_BYTES - FRAME_BYTES


def require_block_bytes(block_bytes: int) -> None:
    """Raise Refused for a block size that the format does not allow."""
    if not BLOCK_BYTES_MIN <= block_bytes < BLOCK_BYTES_MAX:
        raise Refused(
            f"a block of {block_bytes} bytes is outside [{BLOCK_BYTES_MIN}, {BLOCK_BYTES_MAX})",
            hint=f"The default is {BLOCK_BYTES_DEFAULT}",
        )


def padding(length: int) -> list[memoryview]:
    """Return `length` bytes of padding, as views of a shared buffer."""
    piece = memoryview(_PADDING_PIECE)
    whole, rest = divmod(length, len(piece))
    return [piece] * whole + ([piece[:rest]] if rest else [])


def find_wrong_padding(data: memoryview) -> int:
    """Return the offset of the first byte that is not padding, or -1 if all bytes are."""
    expected = np.frombuffer(_PADDING_PIECE, dtype=np.uint8)
    for start in range(0, len(data), len(expected)):
        part = np.frombuffer(data[start : start + len(expected)], dtype=np.uint8)
        same = part == expected[: len(part)]
        if not same.all():
            return start + int(np.argmin(same))
    return -1
