"""Block index of an offloaded segment (PIP-17, version 1): the first entry and the offset of each block.

The page docs/concepts.md explains the words segment, block, entry and provisional stamp.

    0    magic DE47DE47  u32        4    index length  i32     8    data object length  i64
    16   data header length i64     24   blocks        i32     28   metadata length     i32
    32   metadata        BookKeeper's LedgerMetadataFormat in protobuf, without a length before it
    …    per block: (first entry id i64, part id i32, offset of the block i64)      all numbers are big-endian

Rules
- Pulsar's offloader uploads each block as one part. The part id is the number of this part.
- First entry id, part id and offset rise from block to block. The first block has entry 0, offset 0 and part 1.
- Some values are in the object twice. If two such values differ, Corrupt is raised, which names both.
- Sizes are compared with the object's size before memory is allocated.
- The streaming format (version 2) raises Unsupported.
- The stamps in the data object of a *direct segment* are provisional. Its index states the real stamps, in its custom
  metadata. `ledger/stamps` has the time of all entries, and the rows of the log before each block and at the end.

Pulsar's offloader has a known fault: if an entry does not fit into a block, the offloader stops and reports success.
The index then lists a last block that begins where the data object ends. The metadata count the entries of this block,
but the object does not have them.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from google.protobuf.message import DecodeError

from pyspark_ledger.ledger.errors import Corrupt, Refused, Unsupported
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import LedgerMetadataFormat
from pyspark_ledger.ledger.segment.format import HEADER_BYTES
from pyspark_ledger.ledger.segment.provisional_stamps import RealStamps

INDEX_MAGIC = 0xDE47DE47
STREAMING_INDEX_MAGIC = 0x3D1FB0BC
MANAGED_LEDGER = "pulsar/managed-ledger"
PAYLOAD_SCHEMAS = "ledger/payload-schemas"
STAMPS = "ledger/stamps"

_DIGITS_MAX = 18  # every number of 18 digits fits an int64
_HEAD = struct.Struct(">IiqqiI")
_BLOCK = struct.Struct(">qiq")


@dataclass(frozen=True, slots=True)
class IndexedBlock:
    """Block of the data object. `offset` is the start of the block's header."""

    first_entry: int
    part_id: int
    offset: int


class BlockStamps(NamedTuple):
    """Real stamps of a direct segment: the time of all entries, and the rows of the log before each block.

    The last number of `rows` is the number of rows at the end of the segment.
    """

    time_ms: int
    rows: tuple[int, ...]

    def encode(self) -> bytes:
        return " ".join(map(str, (self.time_ms, *self.rows))).encode()

    def of_block(self, number: int) -> RealStamps:
        """Return the stamps of the entries from a block's first entry on."""
        return RealStamps(self.time_ms, self.rows[number])


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """Index of one offloaded segment. `data_bytes` is the length of the data object."""

    data_bytes: int
    metadata: LedgerMetadataFormat
    blocks: tuple[IndexedBlock, ...]
    stamps: BlockStamps | None = None
    """Set for a direct segment. The metadata contain these stamps, too."""

    @property
    def entries(self) -> int:
        """The number of entries that the metadata state."""
        return self.metadata.lastEntryId + 1

    @property
    def stored_entries(self) -> int:
        """The number of entries in the data object: fewer than `entries` if Pulsar's offloader stopped early."""
        last = self.blocks[-1]
        return self.entries if last.offset < self.data_bytes else last.first_entry

    @property
    def managed_ledger(self) -> str:
        """The name of the ledger in Pulsar's spelling; empty if the metadata have none."""
        for pair in self.metadata.customMetadata:
            if pair.key == MANAGED_LEDGER:
                return pair.value.decode()
        return ""

    @property
    def payload_schemas(self) -> str:
        """The payload schemas of the messages as JSON; empty if no schema was registered."""
        for pair in self.metadata.customMetadata:
            if pair.key == PAYLOAD_SCHEMAS:
                return pair.value.decode(errors="replace")
        return ""

    def block_of(self, entry_id: int) -> IndexedBlock:
        """Return the block that contains an entry. Raises Refused if the segment has no such entry."""
        if not 0 <= entry_id < self.entries:
            raise Refused(f"entry {entry_id} is not in the segment, whose last entry is {self.entries - 1}")
        return self.blocks[bisect_right(self.blocks, entry_id, key=lambda block: block.first_entry) - 1]

    def encode(self) -> bytes:
        metadata = self.metadata.SerializeToString()
        length = _HEAD.size + len(metadata) + _BLOCK.size * len(self.blocks)
        head = _HEAD.pack(INDEX_MAGIC, length, self.data_bytes, HEADER_BYTES, len(self.blocks), len(metadata))
        rows = [_BLOCK.pack(block.first_entry, block.part_id, block.offset) for block in self.blocks]
        return b"".join([head, metadata, *rows])


def parse_index(data: bytes, where: str) -> BlockIndex:
    """Parse an index object. Raises Corrupt or Unsupported with `where`, the expected and the found value."""
    if len(data) < _HEAD.size:
        raise Corrupt(f"{where}: an index has at least {_HEAD.size} bytes, this object {len(data)}")
    magic, length, data_bytes, header_bytes, count, metadata_bytes = _HEAD.unpack_from(data)
    if magic == STREAMING_INDEX_MAGIC:
        raise Unsupported(f"{where}: index magic {magic:#010x} is that of Pulsar's streaming offload (version 2)")
    if magic != INDEX_MAGIC:
        raise Corrupt(f"{where}: index magic is {magic:#010x}, expected {INDEX_MAGIC:#010x}")
    if header_bytes != HEADER_BYTES:
        raise Corrupt(f"{where}: blocks have headers of {header_bytes} bytes, expected {HEADER_BYTES}")
    expected = _HEAD.size + metadata_bytes + _BLOCK.size * count
    if count < 1 or expected != len(data) or length != len(data):
        raise Corrupt(
            f"{where}: {count} blocks and {metadata_bytes} bytes of metadata make {expected} bytes, "
            f"but {length} are stated and the object has {len(data)}"
        )
    body = data[_HEAD.size : _HEAD.size + metadata_bytes]
    try:
        metadata = LedgerMetadataFormat.FromString(body)
    except DecodeError as wrong:
        raise Corrupt(f"{where}: {metadata_bytes} bytes at {_HEAD.size} are not ledger metadata: {wrong}") from wrong
    blocks = tuple(IndexedBlock(*row) for row in _BLOCK.iter_unpack(data[_HEAD.size + metadata_bytes :]))
    index = BlockIndex(data_bytes, metadata, blocks, _stamps(metadata, len(blocks), where))
    try:
        _ = index.managed_ledger
    except UnicodeDecodeError as wrong:
        raise Corrupt(f"{where}: the name of the managed ledger is not UTF-8: {wrong}") from wrong
    _require_rising(index, where)
    return index


def _stamps(metadata: LedgerMetadataFormat, blocks: int, where: str) -> BlockStamps | None:
    """Return the real stamps of a direct segment. None for any other segment."""
    text = next((pair.value for pair in metadata.customMetadata if pair.key == STAMPS), None)
    if text is None:
        return None
    numbers = [int(number) for number in text.split(b" ") if number.isdigit() and len(number) <= _DIGITS_MAX]
    stamps = BlockStamps(numbers[0] if numbers else -1, tuple(numbers[1:]))
    rising = all(before <= after for before, after in pairwise(stamps.rows))
    if stamps.encode() != text or len(stamps.rows) != blocks + 1 or not rising:
        raise Corrupt(
            f"{where}: {STAMPS} is {text[:80]!r}, expected a time and {blocks + 1} rising row numbers, for {blocks} "
            f"blocks and the end"
        )
    return stamps


def _require_rising(index: BlockIndex, where: str) -> None:
    first, last = index.blocks[0], index.blocks[-1]
    if (first.first_entry, first.offset) != (0, 0):
        raise Corrupt(f"{where}: the first block is {first}, expected entry 0 at offset 0")
    for before, after in pairwise(index.blocks):
        if after.first_entry <= before.first_entry or after.offset <= before.offset or after.part_id <= before.part_id:
            raise Corrupt(f"{where}: block {after} follows {before}: entries, parts and offsets must rise")
    if last.offset != index.data_bytes and last.offset + HEADER_BYTES > index.data_bytes:
        raise Corrupt(f"{where}: the last block begins at {last.offset}, the data object has {index.data_bytes} bytes")
