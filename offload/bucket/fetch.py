"""Reads of a bucket's segments: the entries of a *part*, which is the input of one task, and the heads of all entries.

A part returns only *visible* entries, which a consumer of Pulsar would get. Markers and entries of aborted transactions
are not visible. The *head* of an entry is its offset, length, time, number of rows and transaction (`entry_heads`). A
topic is *scanned* if the heads of all its entries have been read. The page docs/concepts.md explains the words marker,
chunk, segment and direct segment.

Rules of a part
- The process that uses an entry's rows verifies the entry's checksum. Entries of Pulsar's clients may have no checksum.
- A chunked message is returned as a whole, in place of its last chunk. Its other chunks may be in any segment.
- Payloads are decrypted before chunks are joined, because each chunk of a message is encrypted separately.
- If the topic was not scanned, a chunk or an entry of a transaction is an error. Reason: only a scan determines whether
  the entry is visible.

Rules of heads
- The bytes of segments are read once, in order and in pieces of bounded size. About 32 bytes for each entry stay in
  memory.
- Objects do not change, so heads stay valid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, NotFound, Refused
from pyspark_ledger.ledger.message.batch_decoder import ChunkAssembler
from pyspark_ledger.ledger.message.entry import BrokerStamp, ParsedEntry, is_arrow, is_marker, parse_entry
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.objects.prefetch import ObjectRange, RangePrefetcher
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.segment.format import FRAME, FRAME_BYTES
from pyspark_ledger.ledger.segment.provisional_stamps import require_provisional, rows_of
from pyspark_ledger.offload.bucket.catalogue import Segment
from pyspark_ledger.offload.bucket.entry_heads import Chunk, EntryHeads, gather_heads
from pyspark_ledger.offload.bucket.frames import ByteRange, StreamedFrame, stream_frames
from pyspark_ledger.offload.bucket.topic_log import Part, segment_ranges

_log = logging.getLogger(__name__)


# Function that decrypts an encrypted entry. Its text argument names the entry in errors.
Opener = Callable[[ParsedEntry, str], ParsedEntry]


def read_part(
    store: ObjectStore, part: Part, *, skip_missing: bool = False, opener: Opener | None = None
) -> Iterator[tuple[Position, ParsedEntry]]:
    """Yield the visible entries of a part in order. If `skip_missing` is set, missing ranges are logged and skipped.

    If `opener` is given, it decrypts encrypted entries. Raises Corrupt, DataLoss, NotFound or Refused.
    """
    object_ranges = [
        ObjectRange(byte_range.data_name, byte_range.offset, byte_range.end_offset) for byte_range in part.ranges
    ]
    with RangePrefetcher(store, object_ranges) as prefetcher:
        for number, byte_range in enumerate(part.ranges):
            try:
                yield from _read_range(store, part, byte_range, prefetcher.pieces(number), opener)
            except (DataLoss, NotFound) as missing:
                if not skip_missing:
                    raise
                _log.warning(
                    "entries %d:%d to %d are left out: %s",
                    byte_range.ledger_id,
                    byte_range.first,
                    byte_range.end - 1,
                    missing,
                )


def _read_range(
    store: ObjectStore, part: Part, byte_range: ByteRange, pieces: Iterable[Buffer], opener: Opener | None
) -> Iterator[tuple[Position, ParsedEntry]]:
    where = f"{store.address}/{byte_range.data_name}"
    stamp = None if byte_range.stamps is None else BrokerStamp(*byte_range.stamps)
    for frame in stream_frames(pieces, byte_range, where):
        if stamp is not None:
            stamp = _next_stamp(stamp, frame, where)
        if frame.entry_id < byte_range.first:
            continue
        position = Position(byte_range.ledger_id, frame.entry_id)
        if position in part.hidden:
            continue
        entry = _parse(frame.entry, f"entry {position} in {where}", opener)
        if stamp is not None:
            entry = entry._replace(stamp=stamp)
        visible = _visible_entry(store, part, position, entry, opener)
        if visible is not None:
            yield position, visible


def _next_stamp(before: BrokerStamp, frame: StreamedFrame, where: str) -> BrokerStamp:
    """Return the real stamp of an entry of a direct segment. Raises Corrupt unless the stored stamp is provisional."""
    place = f"{where} at {frame.offset}: entry {frame.entry_id}"
    require_provisional(frame.entry, place)
    return before._replace(row_end=before.row_end + rows_of(frame.entry, place))


def _parse(data: memoryview, where: str, opener: Opener | None) -> ParsedEntry:
    entry = parse_entry(data, where, require_checksum=False)
    return entry if opener is None or not entry.metadata.encryption_keys else opener(entry, where)


def _visible_entry(
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
            hint="Set offloadScan to auto. A scan of the topic determines whether the entry is visible",
        )
    if not chunked:
        return entry
    chunks = part.messages.get(position)
    return None if chunks is None else _assemble(store, chunks, entry, opener)


def _assemble(store: ObjectStore, chunks: tuple[Chunk, ...], last: ParsedEntry, opener: Opener | None) -> ParsedEntry:
    """Join the chunks of a message, and return the message. If the last chunk is still encrypted, return this chunk."""
    if last.metadata.encryption_keys:
        return last
    assembler = ChunkAssembler()
    for chunk in chunks[:-1]:
        where = f"entry {chunk.position} in {store.address}/{chunk.data_name}"
        assembler.add(_parse(_fetch_chunk(store, chunk, where), where, opener), where)
    where = f"entry {chunks[-1].position} in {store.address}/{chunks[-1].data_name}"
    whole = assembler.add(last, where)
    if whole is None:
        raise Corrupt(f"{where} is the last of {len(chunks)} chunks, which do not form a message")
    return whole


def _fetch_chunk(store: ObjectStore, chunk: Chunk, where: str) -> memoryview:
    data = memoryview(store.get_range(chunk.data_name, chunk.offset, FRAME_BYTES + chunk.length)).cast("B")
    length, entry_id = FRAME.unpack_from(data, 0)
    if (length, entry_id) != (chunk.length, chunk.position.entry_id):
        raise Corrupt(
            f"{where} at {chunk.offset}: frame of entry {entry_id} with {length} bytes, expected {chunk.length} bytes"
        )
    return data[FRAME_BYTES:]


def read_heads(store: ObjectStore, segments: Sequence[Segment]) -> dict[int, EntryHeads]:
    """Return the heads of segments by ledger id. Raises Corrupt, DataLoss, or an error of the object store."""
    byte_ranges = [byte_range for segment in segments for byte_range in segment_ranges(segment)]
    object_ranges = [
        ObjectRange(byte_range.data_name, byte_range.offset, byte_range.end_offset) for byte_range in byte_ranges
    ]
    by_ledger: dict[int, list[tuple[int, ByteRange]]] = {segment.ledger_id: [] for segment in segments}
    for number, byte_range in enumerate(byte_ranges):
        by_ledger[byte_range.ledger_id].append((number, byte_range))
    found: dict[int, EntryHeads] = {}
    with RangePrefetcher(store, object_ranges) as prefetcher:
        for segment in segments:
            ledger_id, where = segment.ledger_id, f"{store.address}/{segment.data_name}"
            frames = _frames(prefetcher, by_ledger[ledger_id], where)
            stamps = segment.index.stamps
            time_ms = None if stamps is None else stamps.time_ms
            found[ledger_id] = gather_heads(frames, ledger_id, segment.data_name, where, time_ms)
    return found


def _frames(
    prefetcher: RangePrefetcher, byte_ranges: Sequence[tuple[int, ByteRange]], where: str
) -> Iterator[StreamedFrame]:
    for number, byte_range in byte_ranges:
        yield from stream_frames(prefetcher.pieces(number), byte_range, where)
