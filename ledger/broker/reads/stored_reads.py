"""Places of blocks in a bucket, for readers that fetch these blocks themselves.

Rules
- The broker serves a block that its cache has, or that another reader still has to read (PIP-430). So the block is read
  from the bucket only once for all readers.
- A stream on the broker's host also gets blocks from the broker while the cache has unused memory. Then a query that
  starts later finds them there.
- The reader fetches any other block from the bucket itself, because the broker would not cache such a block.
- If the reader can map a block from a file of this host, the broker returns the file's location instead.
- All places of a reply are in one bucket. The broker serves blocks of any other bucket.
- A block counts as read when the broker returns its place, like a block of a local file.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec

from pyspark_ledger.ledger.broker.reads.cached_reads import CachedReads
from pyspark_ledger.ledger.broker.reads.offloaded_reads import ReaderId
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import StoredPart, StoredPlace, StoredPlaces
from pyspark_ledger.ledger.segment.reader import FrameSource, SegmentBlock, StoredObject
from pyspark_ledger.ledger.tiering.offloaded_segment import OffloadedSegment


class StoredReads:
    """Places of the blocks of one reply. `maps` means that the reader can map files of this host."""

    def __init__(self, source: CachedReads, *, maps: bool) -> None:
        self._source = source
        self._maps = maps
        self._bucket: StoredObject | None = None
        self._objects: dict[FrameSource, StoredObject | None] = {}

    def parts(self, range_: PositionRange, blocks: Sequence[SegmentBlock], reading: ReaderId) -> list[StoredPart]:
        """Return the parts of a range, in order. Parts without blocks are read through the broker."""
        keys = [self._key(block) for block in blocks]
        stored = [block for block, key in zip(blocks, keys, strict=True) if key]
        own = iter(self._source.direct(stored, reading, maps=self._maps))
        keyed = [(block, key if key and next(own) else "") for block, key in zip(blocks, keys, strict=True)]
        parts, at = list[StoredPart](), range_.start
        for is_own, group in groupby(keyed, key=lambda pair: bool(pair[1])):
            found = list(group)
            last = found[-1][0]
            end = Position(last.ledger_id, last.first_entry + last.entries)
            places = [_place(block, key) for block, key in found] if is_own else []
            parts.append(StoredPart(PositionRange(at, end), places))
            at = end
        return parts

    def reply(self, ranges: list[list[StoredPart]]) -> StoredPlaces:
        bucket = self._bucket
        if bucket is None:
            return StoredPlaces(ranges)
        return StoredPlaces(
            ranges, bucket.address, bucket.endpoint, bucket.region, bucket.path_style, bucket.bucket_owner
        )

    def _key(self, block: SegmentBlock) -> str:
        """Return the key of a block's data object. The key is empty if the broker must serve the block."""
        source = block.source
        if source is None or (self._maps and source.mappable):
            return ""
        if source not in self._objects:
            self._objects[source] = source.stored
        stored = self._objects[source]
        if stored is None:
            return ""
        if self._bucket is None:
            self._bucket = stored
        return stored.key if stored._replace(key="") == self._bucket._replace(key="") else ""


def _place(block: SegmentBlock, key: str) -> StoredPlace:
    place = StoredPlace(block.ledger_id, block.first_entry, block.entries, key, block.offset, block.length)
    stamps = block.source.stamps_from(block.first_entry) if isinstance(block.source, OffloadedSegment) else None
    if stamps is None:
        return place
    return msgspec.structs.replace(place, stamp_ms=stamps.time_ms, row_start=stamps.row_start)
