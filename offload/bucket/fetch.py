"""Reads of a bucket's segments: the visible entries of a task's part, and the heads of all entries of some segments.

Rules of a part
- The checksum of every entry that has one is verified here, in the process that uses its rows. Pulsar's clients may
  leave it out.
- A chunked message is given whole, at its last chunk. Its other chunks are fetched wherever they are.
- Payloads are opened before anything else is made of them: each chunk of a message is encrypted by itself.
- In a part that was not scanned, an entry of a transaction or a chunk is an error. Reason: whether the entry is visible
  is not known.

Rules of heads
- The heads of segments are read once, in order. Bytes are read in bounded pieces and are not kept. Some 32 bytes per
  entry stay.
- Objects do not change, so heads that were read once stay valid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, NotFound, Refused
from pyspark_ledger.ledger.message.batch_decoder import ChunkAssembler
from pyspark_ledger.ledger.message.entry import ParsedEntry, is_arrow, is_marker, parse_entry
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.segment.format import FRAME, FRAME_BYTES
from pyspark_ledger.offload.bucket.catalogue import Segment
from pyspark_ledger.offload.bucket.entry_heads import Chunk, EntryHeads, gather_heads
from pyspark_ledger.offload.bucket.frames import ByteRange, StreamedFrame, stream_frames
from pyspark_ledger.offload.bucket.topic_log import Part, segment_ranges
from pyspark_ledger.offload.storage.object_store import ObjectStore
from pyspark_ledger.offload.storage.prefetch import ObjectRange, RangePrefetcher

_log = logging.getLogger(__name__)


# Decrypts an encrypted entry; the text names the entry in errors.
Opener = Callable[[ParsedEntry, str], ParsedEntry]


def read_part(
    store: ObjectStore, part: Part, *, skip_missing: bool = False, opener: Opener | None = None
) -> Iterator[tuple[Position, ParsedEntry]]:
    """The entries of a part that a reader may see, in order; with `skip_missing` what is not there is logged only.

    Encrypted entries come as they are, or as `opener` gives them.
    """
    ranges = [ObjectRange(span.data_name, span.offset, span.end_offset) for span in part.ranges]
    with RangePrefetcher(store, ranges) as ahead:
        for number, span in enumerate(part.ranges):
            try:
                yield from _read_span(store, part, span, ahead.pieces(number), opener)
            except (DataLoss, NotFound) as missing:
                if not skip_missing:
                    raise
                _log.warning("entries %d:%d to %d are left out: %s", span.ledger_id, span.first, span.end - 1, missing)


def _read_span(
    store: ObjectStore, part: Part, span: ByteRange, pieces: Iterable[Buffer], opener: Opener | None
) -> Iterator[tuple[Position, ParsedEntry]]:
    where = f"{store.address}/{span.data_name}"
    for frame in stream_frames(pieces, span, where):
        if frame.entry_id < span.first:
            continue
        position = Position(span.ledger_id, frame.entry_id)
        if position in part.hidden:
            continue
        entry = _parsed(frame.entry, f"entry {position} in {where}", opener)
        seen = _seen(store, part, position, entry, opener)
        if seen is not None:
            yield position, seen


def _parsed(data: memoryview, where: str, opener: Opener | None) -> ParsedEntry:
    entry = parse_entry(data, where, require_checksum=False)
    return entry if opener is None or not entry.metadata.encryption_keys else opener(entry, where)


def _seen(
    store: ObjectStore, part: Part, position: Position, entry: ParsedEntry, opener: Opener | None
) -> ParsedEntry | None:
    metadata = entry.metadata
    if is_marker(metadata):
        return None
    chunked = metadata.num_chunks_from_msg > 1
    if not part.scanned and not is_arrow(metadata) and (chunked or metadata.HasField("txnid_most_bits")):
        kind = "a chunk of a message" if chunked else "of a transaction"
        raise Refused(
            f"entry {position} is {kind}, and option 'offloadScan' is 'none'",
            hint="Set offloadScan to auto: what is to be seen of it is known only after a pass over the topic",
        )
    if not chunked:
        return entry
    chunks = part.messages.get(position)
    return None if chunks is None else _whole(store, chunks, entry, opener)


def _whole(store: ObjectStore, chunks: tuple[Chunk, ...], last: ParsedEntry, opener: Opener | None) -> ParsedEntry:
    """The message; its last chunk as it is where that is encrypted and could not be opened."""
    if last.metadata.encryption_keys:
        return last
    assembler = ChunkAssembler()
    for chunk in chunks[:-1]:
        where = f"entry {chunk.position} in {store.address}/{chunk.data_name}"
        assembler.add(_parsed(_fetched(store, chunk, where), where, opener), where)
    where = f"entry {chunks[-1].position} in {store.address}/{chunks[-1].data_name}"
    whole = assembler.add(last, where)
    if whole is None:
        raise Corrupt(f"{where} is the last of {len(chunks)} chunks, which do not make a message")
    return whole


def _fetched(store: ObjectStore, chunk: Chunk, where: str) -> memoryview:
    data = memoryview(store.get_range(chunk.data_name, chunk.offset, FRAME_BYTES + chunk.length)).cast("B")
    length, entry_id = FRAME.unpack_from(data, 0)
    if (length, entry_id) != (chunk.length, chunk.position.entry_id):
        raise Corrupt(
            f"{where} at {chunk.offset}: frame of entry {entry_id} with {length} bytes, expected {chunk.length} bytes"
        )
    return data[FRAME_BYTES:]


def read_heads(store: ObjectStore, segments: Sequence[Segment]) -> dict[int, EntryHeads]:
    """The heads of segments, by ledger id; raises Corrupt, DataLoss or what the store raises."""
    spans = [span for segment in segments for span in segment_ranges(segment)]
    ranges = [ObjectRange(span.data_name, span.offset, span.end_offset) for span in spans]
    by_ledger: dict[int, list[tuple[int, ByteRange]]] = {segment.ledger_id: [] for segment in segments}
    for number, span in enumerate(spans):
        by_ledger[span.ledger_id].append((number, span))
    found: dict[int, EntryHeads] = {}
    with RangePrefetcher(store, ranges) as ahead:
        for segment in segments:
            ledger_id, where = segment.ledger_id, f"{store.address}/{segment.data_name}"
            frames = _frames(ahead, by_ledger[ledger_id], where)
            found[ledger_id] = gather_heads(frames, ledger_id, segment.data_name, where)
    return found


def _frames(ahead: RangePrefetcher, spans: Sequence[tuple[int, ByteRange]], where: str) -> Iterator[StreamedFrame]:
    for number, span in spans:
        yield from stream_frames(ahead.pieces(number), span, where)
