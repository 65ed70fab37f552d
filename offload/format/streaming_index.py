"""Index object of a streaming offload (version 2): several segments in one data object. Read, never written.

The page docs/concepts.md explains the words segment, block, entry and data object.

    0    magic 3D1FB0BC  u32        4    index length  i32     8    data object length  i64
    16   data header length i64     24   per ledger, up to the end:
         ledger id i64   blocks i32   metadata length i32   ManagedLedgerInfo.LedgerInfo
         per block: (first entry id i64, part id i32, offset of the block i64)      all numbers are big-endian

    block header: magic 26A66D32  header length i64  block length i64  first entry id i64  ledger id i64  92 zero bytes

Rules
- Pulsar 4.0 never calls its writer of this format. The parser exists so that an error can name the segments of such an
  object.
- A data object may have only a later piece of a segment. So the first entry may have any id.
- Lengths are compared with the object's size before memory is allocated.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import NamedTuple

from google.protobuf.message import DecodeError

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from pyspark_ledger.ledger.segment.format import HEADER_BYTES, STREAMING_BLOCK_MAGIC
from pyspark_ledger.offload.format.block_index import STREAMING_INDEX_MAGIC, IndexedBlock

_HEAD = struct.Struct(">Iiqq")
_GROUP = struct.Struct(">qii")
_BLOCK = struct.Struct(">qiq")
_HEADER = struct.Struct(">Iqqqq92s")
_ZEROS = bytes(92)


class StreamedSegment(NamedTuple):
    """Segment in the data object. `info` is Pulsar's record of the segment at the time of the offload."""

    ledger_id: int
    info: ManagedLedgerInfo.LedgerInfo
    blocks: tuple[IndexedBlock, ...]


class StreamingIndex(NamedTuple):
    """Segments of one data object, in order."""

    data_bytes: int
    segments: tuple[StreamedSegment, ...]

    def encode(self) -> bytes:
        groups = b"".join(_encode_segment(segment) for segment in self.segments)
        return _HEAD.pack(STREAMING_INDEX_MAGIC, _HEAD.size + len(groups), self.data_bytes, HEADER_BYTES) + groups


class StreamingBlock(NamedTuple):
    """Header of a block of a streaming offload."""

    block_bytes: int
    first_entry: int
    ledger_id: int


def parse_streaming_index(data: bytes, where: str) -> StreamingIndex:
    """Parse an index object of version 2. Raises Corrupt with `where`, the expected and the found value."""
    if len(data) < _HEAD.size:
        raise Corrupt(f"{where}: an index has at least {_HEAD.size} bytes, this object {len(data)}")
    magic, length, data_bytes, header_bytes = _HEAD.unpack_from(data)
    if magic != STREAMING_INDEX_MAGIC:
        raise Corrupt(f"{where}: index magic is {magic:#010x}, expected {STREAMING_INDEX_MAGIC:#010x}")
    if length != len(data):
        raise Corrupt(f"{where}: the index states {length} bytes, the object has {len(data)}")
    if header_bytes != HEADER_BYTES:
        raise Corrupt(f"{where}: blocks have headers of {header_bytes} bytes, expected {HEADER_BYTES}")
    at, segments = _HEAD.size, []
    while at < len(data):
        segment, at = _parse_segment(data, at, where)
        segments.append(segment)
    if not segments:
        raise Corrupt(f"{where}: the index lists no ledger")
    blocks = [block for segment in segments for block in segment.blocks]
    for before, after in pairwise(blocks):
        if after.offset <= before.offset or after.part_id <= before.part_id:
            raise Corrupt(f"{where}: block {after} follows {before}: parts and offsets must rise")
    if blocks[0].offset or blocks[-1].offset + HEADER_BYTES > data_bytes:
        first, last = blocks[0].offset, blocks[-1].offset
        raise Corrupt(f"{where}: blocks begin at {first} to {last}, expected 0 to less than {data_bytes}")
    return StreamingIndex(data_bytes, tuple(segments))


def parse_streaming_header(data: bytes | memoryview, where: str) -> StreamingBlock:
    """Parse a block header of version 2. Raises Corrupt if any bit is wrong."""
    if len(data) < HEADER_BYTES:
        raise Corrupt(f"{where}: a block header has {HEADER_BYTES} bytes, {len(data)} are left")
    magic, header_bytes, block_bytes, first_entry, ledger_id, zeros = _HEADER.unpack_from(data)
    if magic != STREAMING_BLOCK_MAGIC:
        raise Corrupt(f"{where}: block magic is {magic:#010x}, expected {STREAMING_BLOCK_MAGIC:#010x}")
    if header_bytes != HEADER_BYTES or block_bytes < HEADER_BYTES:
        raise Corrupt(f"{where}: header of {header_bytes} bytes in a block of {block_bytes}, expected {HEADER_BYTES}")
    if zeros != _ZEROS:
        at = next(i for i, byte in enumerate(zeros) if byte)
        raise Corrupt(f"{where}: byte {36 + at} of the block header is {zeros[at]:#04x}, expected 0x00")
    return StreamingBlock(block_bytes, first_entry, ledger_id)


def _parse_segment(data: bytes, at: int, where: str) -> tuple[StreamedSegment, int]:
    if at + _GROUP.size > len(data):
        raise Corrupt(f"{where}: a ledger at byte {at} needs {_GROUP.size} bytes, {len(data) - at} are left")
    ledger_id, count, metadata_bytes = _GROUP.unpack_from(data, at)
    start = at + _GROUP.size
    if count < 1 or metadata_bytes < 0 or start + metadata_bytes + count * _BLOCK.size > len(data):
        raise Corrupt(
            f"{where}: ledger {ledger_id} at byte {at} states {count} blocks and {metadata_bytes} bytes of metadata, "
            f"{len(data) - start} bytes are left"
        )
    rows = start + metadata_bytes
    end = rows + count * _BLOCK.size
    try:
        info = ManagedLedgerInfo.LedgerInfo.FromString(data[start:rows])
    except DecodeError as wrong:
        raise Corrupt(f"{where}: {metadata_bytes} bytes at {start} are not a ledger's record: {wrong}") from wrong
    if not info.IsInitialized() or info.ledgerId != ledger_id:
        raise Corrupt(f"{where}: ledger {ledger_id} at byte {at} has metadata of ledger {info.ledgerId}")
    blocks = tuple(IndexedBlock(*row) for row in _BLOCK.iter_unpack(data[rows:end]))
    for before, after in pairwise(blocks):
        if after.first_entry <= before.first_entry:
            raise Corrupt(f"{where}: block {after} of ledger {ledger_id} follows {before}: entries must rise")
    return StreamedSegment(ledger_id, info, blocks), end


def _encode_segment(segment: StreamedSegment) -> bytes:
    metadata = segment.info.SerializeToString()
    rows = [_BLOCK.pack(block.first_entry, block.part_id, block.offset) for block in segment.blocks]
    return b"".join([_GROUP.pack(segment.ledger_id, len(segment.blocks), len(metadata)), metadata, *rows])
