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
    spans = [span for segment in segments for span in segment_spans(segment)]
    ranges = [ObjectRange(span.data_name, span.offset, span.end_offset) for span in spans]
    by_ledger: dict[int, list[tuple[int, Span]]] = {segment.ledger_id: [] for segment in segments}
    for number, span in enumerate(spans):
        by_ledger[span.ledger_id].append((number, span))
    found: dict[int, EntryHeads] = {}
    with ReadAhead(store, ranges) as ahead:
        for segment in segments:
            ledger_id, where = segment.ledger_id, f"{store.address}/{segment.data_name}"
            frames = _frames(ahead, by_ledger[ledger_id], where)
            found[ledger_id] = gather_heads(frames, ledger_id, segment.data_name, where)
    return found


def _frames(ahead: ReadAhead, spans: Sequence[tuple[int, Span]], where: str) -> Iterator[StreamedFrame]:
    for number, span in spans:
        yield from stream_frames(ahead.pieces(number), span, where)
