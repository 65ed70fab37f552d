"""Contents of the objects of an offloaded segment: block index and upload parts.

The data object has the bytes of the segment file, and is uploaded in parts of whole blocks. The block index contains
the same metadata as a block index of Pulsar's offloader: `LedgerMetadataFormat`, a Protobuf structure of BookKeeper,
the storage of Pulsar's segments. The metadata name the ledger as Pulsar does, `tenant/namespace/persistent/name`. They
also state one replica on this host, which is a placeholder. The page docs/concepts.md explains the words segment,
block, entry, data object and direct segment.

Rule: before the upload, the segment file is compared with its record in the store's metadata. Both must agree in the
number of entries, the sum of their bytes, the length of the file and the frame of the last entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.names import pulsar_path
from pyspark_ledger.ledger.objects.object_store import PART_BYTES_MIN
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import LedgerMetadataFormat
from pyspark_ledger.ledger.segment.format import FRAME, FRAME_BYTES
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.tiering.offloader import LocalSegment
from pyspark_ledger.offload.format.block_index import (
    MANAGED_LEDGER,
    PAYLOAD_SCHEMAS,
    STAMPS,
    BlockIndex,
    BlockStamps,
    IndexedBlock,
)
from pyspark_ledger.offload.upload import FilePart

_ENSEMBLE_MEMBER = "127.0.0.1:3181"  # a placeholder: the format requires the address of a BookKeeper server
_INCARNATION = "LedgerIncarnation"


def build_index(ledger: LocalSegment, entry_index: EntryIndex, extra: Mapping[str, str]) -> BlockIndex:
    """Return the block index of a segment. Raises Corrupt if file, entry index and record disagree.

    The file of a direct segment is not read: its data object is in the bucket already.
    """
    _require_consistent(ledger, entry_index)
    starts = np.arange(0, ledger.file_bytes, ledger.block_bytes, dtype=np.int64)
    firsts = np.searchsorted(entry_index.offsets, starts)
    blocks = tuple(
        IndexedBlock(int(first), number, int(start))
        for number, (first, start) in enumerate(zip(firsts, starts, strict=True), start=1)
    )
    metadata, stamps = _metadata_of(ledger, entry_index, extra), None
    if ledger.direct is not None:
        ends = [int(entry_index.row_ends[first - 1]) for first in firsts[1:].tolist()]
        stamps = BlockStamps(ledger.direct.stamps.time_ms, (entry_index.first_row, *ends, entry_index.row_end))
        metadata.customMetadata.add(key=STAMPS, value=stamps.encode())
    return BlockIndex(ledger.file_bytes, metadata, blocks, stamps)


def split_into_parts(index: BlockIndex) -> list[FilePart]:
    """Return the upload parts of the data object: whole blocks, joined until a part has S3's minimum size."""
    bounds = [0]
    for block in index.blocks:
        if block.offset - bounds[-1] >= PART_BYTES_MIN:
            bounds.append(block.offset)
    bounds.append(index.data_bytes)
    return [FilePart(number, start, end - start) for number, (start, end) in enumerate(pairwise(bounds), start=1)]


def _metadata_of(ledger: LocalSegment, entry_index: EntryIndex, extra: Mapping[str, str]) -> LedgerMetadataFormat:
    found = LedgerMetadataFormat(
        quorumSize=1,
        ensembleSize=1,
        ackQuorumSize=1,
        length=entry_index.size_bytes,
        lastEntryId=ledger.entries - 1,
        state="CLOSED",
        digestType="CRC32C",
        ctime=ledger.created_ms,
    )
    found.segment.add(ensembleMember=[_ENSEMBLE_MEMBER], firstEntryId=0)
    custom = {MANAGED_LEDGER: pulsar_path(ledger.name), "component": "managed-ledger", "application": "pulsar"}
    if _INCARNATION in extra:
        custom["ledger/incarnation"] = extra[_INCARNATION]
    if ledger.schemas:
        custom[PAYLOAD_SCHEMAS] = ledger.schemas
    for key, value in custom.items():
        found.customMetadata.add(key=key, value=value.encode())
    return found


def _require_consistent(ledger: LocalSegment, entry_index: EntryIndex) -> None:
    where, last = ledger.path, ledger.entries - 1
    if not ledger.entries:
        raise Corrupt(f"{where} holds no entry, but an empty segment is never offloaded")
    if (entry_index.count, entry_index.size_bytes) != (ledger.entries, ledger.size_bytes):
        raise Corrupt(
            f"{where} holds {entry_index.count} entries of {entry_index.size_bytes} bytes, "
            f"the record says {ledger.entries} of {ledger.size_bytes}"
        )
    end = entry_index.end_offset(last)
    if end != ledger.file_bytes:
        raise Corrupt(f"{where}: the last entry ends at {end}, the record says {ledger.file_bytes}")
    if ledger.direct is not None:
        return
    with disk.opened(where) as fd:
        frame = disk.read_exact(fd, FRAME_BYTES, int(entry_index.offsets[last]))
    found = FRAME.unpack(frame) if len(frame) == FRAME_BYTES else (0, -1)
    if found != (int(entry_index.lengths[last]), last):
        raise Corrupt(
            f"{where} at {int(entry_index.offsets[last])}: (length, entry) is {found}, the index says "
            f"{(int(entry_index.lengths[last]), last)}"
        )
