"""The columns of a block's entries, by as few of its bytes as tell them.

Rules: an entry of columns begins with their schema, so the first bytes of a block are enough; whoever reads the rows
verifies the checksum. Only where a block begins with more of something else is it read on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from connector.schema import METADATA
from ledger.arrow_payload import decode_rows, leading_schema
from ledger.entry import ParsedEntry, is_arrow, is_marker, parse_entry, parse_head
from ledger.segment_format import FRAME_BYTES, HEADER_BYTES
from offload.frame_stream import Span, stream_frames
from offload.read_ahead import ObjectRange, ReadAhead

if TYPE_CHECKING:
    from offload.object_store import ObjectStore

_PEEK_BYTES = 256 * 1024


def columns_of_span(store: ObjectStore, span: Span) -> pa.Schema | None:
    """The columns of the first entry of a block with rows; none for a message, None when there are only markers."""
    where = f"{store.address}/{span.data_name}"
    begin = memoryview(store.get_range(span.data_name, span.offset, min(_PEEK_BYTES, span.size_bytes))).cast("B")
    head = parse_head(begin[HEADER_BYTES + FRAME_BYTES :], f"entry {span.ledger_id}:{span.at_entry} in {where}")
    if head is not None and is_arrow(head.metadata):
        columns = leading_schema(head.payload)
        if columns is not None:
            return _without_metadata(columns)
    ranges = [ObjectRange(span.data_name, span.offset, span.end_offset)]
    with ReadAhead(store, ranges, piece_bytes=_PEEK_BYTES, in_flight=2) as ahead:
        for frame in stream_frames(ahead.pieces(0), span, where):
            place = f"entry {span.ledger_id}:{frame.entry_id} in {where}"
            entry = parse_entry(frame.entry, place, require_checksum=False)
            if not is_marker(entry.metadata):
                return _schema_of(entry, place)
    return None


def _schema_of(entry: ParsedEntry, where: str) -> pa.Schema:
    if not is_arrow(entry.metadata):
        return pa.schema([])
    return _without_metadata(decode_rows(entry.payload, where)[0].schema)


def _without_metadata(columns: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in columns if field.name not in METADATA.names])
