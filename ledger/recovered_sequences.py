"""The sequence ids in a segment that recovery has just verified: only the metadata of each entry is read again."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

from ledger import disk
from ledger.deduplication import EntrySequence, entry_sequence
from ledger.entry import parse_message
from ledger.proto.pulsar_messages_pb2 import MessageMetadata
from ledger.segment_format import FRAME_BYTES
from ledger.segment_index import EntryIndex

_HEAD = struct.Struct(">HI")
_U32 = struct.Struct(">I")
_STAMP = 0x0E02


def sequences_in(path: Path, index: EntryIndex) -> Iterator[EntrySequence | None]:
    """The numbers of every entry of the index, in order. The file is that of the index and has been verified."""
    if not index.count:
        return
    with (
        disk.opened(path) as fd,
        mmap.mmap(fd, int(index.end_offset(index.count - 1)), prot=mmap.PROT_READ) as data,
        memoryview(data) as view,
    ):
        for entry_id, (offset, length) in enumerate(zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)):
            at = offset + FRAME_BYTES
            where = f"{path} entry {entry_id}"
            yield entry_sequence(_metadata(view[at : at + length], where), where)


def _metadata(entry: memoryview, where: str) -> MessageMetadata:
    magic, size = _HEAD.unpack_from(entry)
    at = 2 * _HEAD.size + size if magic == _STAMP else _HEAD.size
    (size,) = _U32.unpack_from(entry, at)
    metadata, _ = parse_message(MessageMetadata, entry, at + _U32.size, size, where)
    entry.release()
    return metadata
