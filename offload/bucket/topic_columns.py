"""Columns of a topic in a bucket, read from few entries.

Rules
- The entries of a topic have columns, or they are messages. Columns are read from two entries of each segment: the
  first entry, and the first entry of the last block.
- An entry with columns starts with its schema. So the first bytes of a block are enough, unless the block starts with
  an entry without rows. The reader of the rows verifies the checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.arrow_payload import decode_rows, leading_schema
from pyspark_ledger.ledger.message.columns import common_type
from pyspark_ledger.ledger.message.entry import ParsedEntry, is_arrow, is_marker, parse_entry, parse_head
from pyspark_ledger.ledger.objects.prefetch import ObjectRange, RangePrefetcher
from pyspark_ledger.ledger.rows.metadata_columns import METADATA
from pyspark_ledger.ledger.segment.format import FRAME_BYTES, HEADER_BYTES
from pyspark_ledger.offload.bucket.catalogue import Segment, TopicSegments
from pyspark_ledger.offload.bucket.frames import ByteRange, stream_frames
from pyspark_ledger.offload.bucket.topic_log import segment_ranges

if TYPE_CHECKING:
    from pyspark_ledger.ledger.objects.object_store import ObjectStore

_PARALLEL_READS = 2
_PEEK_BYTES = 256 * 1024


def topic_columns(
    store: ObjectStore, topics: Sequence[TopicSegments], known: dict[str, list[pa.Schema | None]]
) -> pa.Schema | None:
    """Return the columns of a topic, or of its partitions; None for messages.

    `known` has the columns at the ends of segments by the names of their data objects. The function adds new ones.
    """
    fields: dict[str, pa.Field] = {}
    with ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="peek") as pool:
        for topic in topics:
            for segment in topic.segments:
                if segment.data_name not in known:
                    known[segment.data_name] = list(pool.map(partial(_first_columns, store), _ends(segment)))
                for columns in known[segment.data_name]:
                    if columns is None:
                        continue
                    if not len(columns) and not fields:
                        return None
                    _join(fields, columns, topic.name)
    return pa.schema(list(fields.values())) if fields else None


def _first_columns(store: ObjectStore, block: ByteRange) -> pa.Schema | None:
    """Return the columns of a block's first entry with rows.

    They are empty if the entry has messages. Returns None if no entry has rows.
    """
    where = f"{store.address}/{block.data_name}"
    first_bytes = memoryview(store.get_range(block.data_name, block.offset, min(_PEEK_BYTES, block.size_bytes))).cast(
        "B"
    )
    head = parse_head(first_bytes[HEADER_BYTES + FRAME_BYTES :], f"entry {block.ledger_id}:{block.at_entry} in {where}")
    if head is not None and not is_marker(head.metadata):
        columns = leading_schema(head.payload) if is_arrow(head.metadata) else pa.schema([])
        if columns is not None:
            return _without_metadata(columns)
    ranges = [ObjectRange(block.data_name, block.offset, block.end_offset)]
    with RangePrefetcher(store, ranges, piece_bytes=_PEEK_BYTES, in_flight=2) as prefetcher:
        for frame in stream_frames(prefetcher.pieces(0), block, where):
            entry_place = f"entry {block.ledger_id}:{frame.entry_id} in {where}"
            entry = parse_entry(frame.entry, entry_place, require_checksum=False)
            if not is_marker(entry.metadata):
                return _schema_of(entry, entry_place)
    return None


def _schema_of(entry: ParsedEntry, where: str) -> pa.Schema:
    if not is_arrow(entry.metadata):
        return pa.schema([])
    return _without_metadata(decode_rows(entry.payload, where)[0].schema)


def _without_metadata(columns: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in columns if field.name not in METADATA.names])


def _ends(segment: Segment) -> list[ByteRange]:
    blocks = segment_ranges(segment)
    return list({block.offset: block for block in (*blocks[:1], *blocks[-1:])}.values())


def _join(fields: dict[str, pa.Field], columns: pa.Schema, topic: str) -> None:
    """Add new columns to `fields`, and widen them. Raises Corrupt if a column has two types."""
    for field in columns:
        existing = fields.setdefault(field.name, field)
        kind = common_type(existing.type, field.type)
        if kind is None:
            raise Corrupt(
                f"column {field.name!r} of {topic} is {existing.type} in one entry and {field.type} in another"
            )
        fields[field.name] = existing.with_type(kind)
