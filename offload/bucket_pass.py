"""The header-only pass: the heads of every entry of some segments, read once in order, and kept while they are needed.

Rules: bytes go by in bounded pieces and are not kept; what stays is some 32 bytes for each entry. Objects do not
change, so heads that were gathered once are good for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from offload.bucket_log import segment_spans
from offload.catalogue import Segment
from offload.entry_heads import EntryHeads, gather_heads
from offload.frame_stream import Span, StreamedFrame, stream_frames
from offload.object_store import ObjectStore
from offload.read_ahead import ObjectRange, ReadAhead


def read_heads(store: ObjectStore, segments: Sequence[Segment]) -> dict[int, EntryHeads]:
    """The heads of segments, by ledger id; raises Corrupt, DataLoss or what the store raises."""
    spans = [(segment, span) for segment in segments for span in segment_spans(segment)]
    ranges = [ObjectRange(span.data_name, span.offset, span.end_offset) for _, span in spans]
    found: dict[int, EntryHeads] = {}
    with ReadAhead(store, ranges) as ahead:
        numbered = list(enumerate(span for _, span in spans))
        for segment in segments:
            mine = [(number, span) for number, span in numbered if span.ledger_id == segment.ledger_id]
            where = f"{store.address}/{segment.data_name}"
            found[segment.ledger_id] = gather_heads(
                _frames(ahead, mine, where), segment.ledger_id, segment.data_name, where
            )
    return found


def _frames(ahead: ReadAhead, spans: Sequence[tuple[int, Span]], where: str) -> Iterator[StreamedFrame]:
    for number, span in spans:
        yield from stream_frames(ahead.pieces(number), span, where)
