"""Unfinished chunked messages of a log. No cursor and no trim may pass the first chunk of an unfinished message.

A message that is too large for one entry is written as several entries, its chunks.

    first chunk ──── chunk ──── …  ──── last chunk      `floor` moves a position between two chunks back to the first

Rules
- A scan of the log's segments finds the chunks. Only the last chunk of a message has a row. So the scan parses entries
  without rows to find the other chunks. To find the last chunk, it searches the segment's bytes for the id of the
  message.
- A message is *given up* when its producer starts another message, or after ten minutes without a chunk. Then cursors
  and trims may pass it. Reason: a producer that died must not stop trims and cursors for ever.
- The scan for a position starts one hour before the segment of this position. So the scan does not find a message whose
  chunks took longer than an hour.
- Segments without a local file are not scanned. A segment is offloaded only after its chunked messages are complete or
  given up.
"""

from __future__ import annotations

import mmap
import threading
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pyspark_ledger.ledger.errors import Corrupt, NotFound
from pyspark_ledger.ledger.log.segments.log_segments import Slice
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.message.entry import is_marker, parse_entry
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from pyspark_ledger.ledger.segment.format import FRAME_BYTES

GIVEN_UP_MS = 10 * 60 * 1000
_LONGEST_MS = 60 * 60 * 1000


@dataclass(slots=True)
class _Unfinished:
    """Message whose last chunk was not found. `seen_ms` is the time when the broker stored its newest chunk."""

    producer: str
    chunks: list[Position]
    seen_ms: int

    @property
    def first(self) -> Position:
        return self.chunks[0]


class ChunkRanges:
    """Chunked messages of one log. Each scan continues at the end of the previous scan. Any thread may call `floor`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin(Position(-1, 0))

    def floor(self, snapshot: LogSnapshot, position: Position, now_ms: int) -> Position:
        """Return the first chunk of the earliest message that starts before `position` and is incomplete there.

        Returns `position` if there is no such message.
        """
        newest = snapshot.segments[-1].close_ms if snapshot.segments else now_ms
        if position >= snapshot.end and newest and now_ms - newest > GIVEN_UP_MS:
            return position  # the log got no entry for so long that every unfinished message is given up
        with self._lock:
            self._scan(snapshot, _scan_start(snapshot, position))
            for uuid, message in list(self._unfinished.items()):
                if now_ms - message.seen_ms > GIVEN_UP_MS:
                    del self._unfinished[uuid]
            ending = self._firsts[bisect_left(self._lasts, position) :]
            begun = [*ending, *(message.first for message in self._unfinished.values())]
            return min([position, *(first for first in begun if first < position)])

    def add_chunks(self, snapshot: LogSnapshot, positions: PositionSet) -> None:
        """Add all chunks of each message whose last chunk is in `positions`. Chunks only in a bucket are not found."""
        with self._lock:
            self._scan(snapshot, _scan_start(snapshot, Position(positions.ledgers()[0], 0)))
            for last, earlier in zip(self._lasts, self._earlier, strict=True):
                for chunk in earlier if positions.contains(last) else ():
                    positions.add_run(chunk.ledger_id, chunk.entry_id, chunk.entry_id + 1)

    def _begin(self, start: Position) -> None:
        """Forget all messages, and start the scan at `start`."""
        self._from = self._scanned_to = start
        self._unfinished: dict[str, _Unfinished] = {}
        self._lasts: list[Position] = []
        self._firsts: list[Position] = []
        self._earlier: list[list[Position]] = []
        """The chunks of each complete message, without its last chunk."""

    def _scan(self, snapshot: LogSnapshot, first: Position) -> None:
        if first < self._from or self._from.ledger_id < 0:
            self._begin(first)
        start = max(self._scanned_to, snapshot.start)
        for part in snapshot.slices(PositionRange(start, snapshot.end)) if start < snapshot.end else ():
            self._scan_slice(part)
        self._scanned_to = max(start, snapshot.end)

    def _scan_slice(self, part: Slice) -> None:
        segment = part.segment
        if not segment.path.exists():
            return
        try:
            index = segment.index()
            before = segment.first_row if part.first == 0 else int(index.row_ends[part.first - 1])
            rowless = part.first + np.flatnonzero(np.diff(index.row_ends[part.first : part.end], prepend=before) == 0)
            if not len(rowless) and not self._unfinished:
                return
            with segment.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                for number in self._candidates(data, part, rowless):
                    start = int(index.offsets[number]) + FRAME_BYTES
                    self._parse_chunk(
                        data[start : start + int(index.lengths[number])],
                        Position(segment.ledger_id, number),
                        int(index.timestamps[number]),
                    )
        except (FileNotFoundError, NotFound):
            return

    def _candidates(
        self, data: mmap.mmap, part: Slice, rowless: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> Iterator[int]:
        """Yield the entries to parse: entries without rows, and entries with the id of an unfinished message."""
        offsets = part.segment.index().offsets[: part.segment.entries]
        lengths = part.segment.index().lengths[: part.segment.entries]
        stop = int(offsets[part.end - 1] + lengths[part.end - 1]) + FRAME_BYTES
        named: dict[str, int] = {}
        at = part.first
        while at < part.end:
            for uuid in self._unfinished.keys() - {uuid for uuid, number in named.items() if number >= at}:
                found = data.find(uuid.encode(), int(offsets[at]), stop)
                number = part.end if found < 0 else int(np.searchsorted(offsets, found, side="right")) - 1
                named[uuid] = number
            following = int(np.searchsorted(rowless, at))
            candidates = [named[uuid] for uuid in self._unfinished]
            candidates += [int(rowless[following])] if following < len(rowless) else []
            at = min(candidates, default=part.end)
            if at < part.end:
                yield at
            at += 1

    def _parse_chunk(self, entry: bytes, position: Position, stored_ms: int) -> None:
        try:
            metadata = parse_entry(entry, f"entry {position}").metadata
        except Corrupt:
            return  # readers of the entry will report the damage
        if metadata.num_chunks_from_msg <= 1 or is_marker(metadata):
            return
        self._record_chunk(metadata, position, stored_ms)

    def _record_chunk(self, metadata: MessageMetadata, position: Position, stored_ms: int) -> None:
        uuid, producer = metadata.uuid, metadata.producer_name
        for other, message in list(self._unfinished.items()):
            if message.producer == producer and other != uuid:
                del self._unfinished[other]
        unfinished = self._unfinished.get(uuid)
        if metadata.chunk_id == 0:
            self._unfinished[uuid] = _Unfinished(producer, [position], stored_ms)
        elif unfinished is not None and metadata.chunk_id == metadata.num_chunks_from_msg - 1:
            del self._unfinished[uuid]
            self._lasts.append(position)
            self._firsts.append(unfinished.first)
            self._earlier.append(unfinished.chunks)
        elif unfinished is not None:
            unfinished.chunks.append(position)
            unfinished.seen_ms = stored_ms


def _scan_start(snapshot: LogSnapshot, position: Position) -> Position:
    """Return the start of the first segment to scan. The scan includes the hour before the segment of `position`."""
    segments = snapshot.segments
    if not segments:
        return snapshot.start
    at = min(segments.at(position.ledger_id), len(segments) - 1)
    at = segments.closed_before(segments[at - 1].close_ms - _LONGEST_MS, at) if at else 0
    return Position(segments[at].ledger_id, 0)


class ChunkTable:
    """Chunked messages of all logs of a store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logs: dict[str, ChunkRanges] = {}

    def floor(self, snapshot: LogSnapshot, position: Position, now_ms: int) -> Position:
        """Return the last position, at most `position`, to which a cursor or a trim of the log may move."""
        return self._of(snapshot.name).floor(snapshot, position, now_ms)

    def add_chunks(self, snapshot: LogSnapshot, positions: PositionSet) -> None:
        """Add all chunks of each message whose last chunk is in `positions`, as Pulsar acknowledges a message."""
        if positions:
            self._of(snapshot.name).add_chunks(snapshot, positions)

    def _of(self, name: str) -> ChunkRanges:
        with self._lock:
            return self._logs.setdefault(name, ChunkRanges())
