"""What is put beside the data of a ledger: its index object, and the user metadata of all of its objects.

The segment file is the data object, so its blocks are the parts. The metadata in the index are those that Pulsar's
offloader writes: BookKeeper's `LedgerMetadataFormat` of a closed ledger, with the name of the managed ledger as Pulsar
spells it. Here there is one replica, on this host.

Rules: the local ledger is compared with its record before anything leaves: entries, their sum of bytes, the length of
the file, and the frame of the last entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise

import numpy as np

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.names import pulsar_path
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import LedgerMetadataFormat
from pyspark_ledger.ledger.segment.format import FRAME, FRAME_BYTES
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.tiering.offloader import LocalSegment
from pyspark_ledger.offload.format.block_index import MANAGED_LEDGER, PAYLOAD_SCHEMAS, BlockIndex, IndexedBlock
from pyspark_ledger.offload.reader import VERSION, VERSION_KEY
from pyspark_ledger.offload.storage.object_store import PART_BYTES_MIN
from pyspark_ledger.offload.upload import FilePart

_HERE = "127.0.0.1:3181"  # an ensemble must name a bookie; there is none
_INCARNATION = "LedgerIncarnation"


def build_index(ledger: LocalSegment, places: EntryIndex, extra: Mapping[str, str]) -> BlockIndex:
    """The index object of a ledger; raises Corrupt where file, index and record disagree."""
    _require_whole(ledger, places)
    starts = np.arange(0, ledger.file_bytes, ledger.block_bytes, dtype=np.int64)
    firsts = np.searchsorted(places.offsets, starts)
    blocks = tuple(
        IndexedBlock(int(first), number, int(start))
        for number, (first, start) in enumerate(zip(firsts, starts, strict=True), start=1)
    )
    return BlockIndex(ledger.file_bytes, _metadata_of(ledger, places, extra), blocks)


def split_into_parts(index: BlockIndex) -> list[FilePart]:
    """The blocks as parts of the data object; several to a part where S3 would not take one alone."""
    edges = [0]
    for block in index.blocks:
        if block.offset - edges[-1] >= PART_BYTES_MIN:
            edges.append(block.offset)
    edges.append(index.data_bytes)
    return [FilePart(number, start, end - start) for number, (start, end) in enumerate(pairwise(edges), start=1)]


def user_metadata(role: str, extra: Mapping[str, str]) -> dict[str, str]:
    """The user metadata of an object: what Pulsar's offloader states, and what came with the ledger."""
    try:
        release = version("pyspark-ledger")
    except PackageNotFoundError:
        release = "0"
    return {
        VERSION_KEY: VERSION,
        "role": role,
        "S3ManagedLedgerOffloaderSoftwareVersion": f"pyspark-ledger-{release}",
        "S3ManagedLedgerOffloaderSoftwareGitSha": "none",
        **extra,
    }


def _metadata_of(ledger: LocalSegment, places: EntryIndex, extra: Mapping[str, str]) -> LedgerMetadataFormat:
    found = LedgerMetadataFormat(
        quorumSize=1,
        ensembleSize=1,
        ackQuorumSize=1,
        length=places.size_bytes,
        lastEntryId=ledger.entries - 1,
        state="CLOSED",
        digestType="CRC32C",
        ctime=ledger.created_ms,
    )
    found.segment.add(ensembleMember=[_HERE], firstEntryId=0)
    stated = {MANAGED_LEDGER: pulsar_path(ledger.name), "component": "managed-ledger", "application": "pulsar"}
    if _INCARNATION in extra:
        stated["ledger/incarnation"] = extra[_INCARNATION]
    if ledger.schemas:
        stated[PAYLOAD_SCHEMAS] = ledger.schemas
    for key, value in stated.items():
        found.customMetadata.add(key=key, value=value.encode())
    return found


def _require_whole(ledger: LocalSegment, places: EntryIndex) -> None:
    where, last = ledger.path, ledger.entries - 1
    if not ledger.entries:
        raise Corrupt(f"{where} holds no entry, and an empty ledger is never offloaded")
    if (places.count, places.size_bytes) != (ledger.entries, ledger.size_bytes):
        raise Corrupt(
            f"{where} holds {places.count} entries of {places.size_bytes} bytes, the record says {ledger.entries} of "
            f"{ledger.size_bytes}"
        )
    end = places.end_offset(last)
    if end != ledger.file_bytes:
        raise Corrupt(f"{where}: the last entry ends at {end}, the record says {ledger.file_bytes}")
    with disk.opened(where) as fd:
        frame = disk.read_exact(fd, FRAME_BYTES, int(places.offsets[last]))
    found = FRAME.unpack(frame) if len(frame) == FRAME_BYTES else (0, -1)
    if found != (int(places.lengths[last]), last):
        raise Corrupt(
            f"{where} at {int(places.offsets[last])}: (length, entry) is {found}, the index says "
            f"{(int(places.lengths[last]), last)}"
        )
