"""What a task does with its part: fetches the spans, and gives the entries that a reader may see.

Rules
- The checksum of every entry that has one is verified here, in the process that uses its rows. Pulsar's clients may
  leave it out.
- A chunked message is given whole, where its last chunk stands; its other chunks are fetched wherever they are.
- Payloads are opened before anything else is made of them: each chunk of a message is encrypted by itself.
- In a part that was not judged, an entry of a transaction or a chunk is an error: whether it is seen is not known.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from ledger.entry import Buffer, ParsedEntry, is_arrow, is_marker, parse_entry
from ledger.errors import Corrupt, DataLoss, NotFound, Refused
from ledger.position import Position
from ledger.pulsar_payload import ChunkAssembler
from ledger.segment_format import FRAME, FRAME_BYTES
from offload.bucket_log import Part
from offload.entry_heads import Chunk
from offload.frame_stream import Span, stream_frames
from offload.object_store import ObjectStore
from offload.read_ahead import ObjectRange, ReadAhead

_log = logging.getLogger(__name__)
# What makes an entry of an encrypted one; `where` names it in errors.
Opener = Callable[[ParsedEntry, str], ParsedEntry]


def read_part(
    store: ObjectStore, part: Part, *, skip_missing: bool = False, opener: Opener | None = None
) -> Iterator[tuple[Position, ParsedEntry]]:
    """The entries of a part that a reader may see, in order; with `skip_missing` what is not there is logged only.

    Encrypted entries come as they are, or as `opener` gives them.
    """
    ranges = [ObjectRange(span.data_name, span.offset, span.end_offset) for span in part.spans]
    with ReadAhead(store, ranges) as ahead:
        for number, span in enumerate(part.spans):
            try:
                yield from _read_span(store, part, span, ahead.pieces(number), opener)
            except (DataLoss, NotFound) as missing:
                if not skip_missing:
                    raise
                _log.warning("entries %d:%d to %d are left out: %s", span.ledger_id, span.first, span.end - 1, missing)


def _read_span(
    store: ObjectStore, part: Part, span: Span, pieces: Iterable[Buffer], opener: Opener | None
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
    if not part.judged and not is_arrow(metadata) and (chunked or metadata.HasField("txnid_most_bits")):
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
