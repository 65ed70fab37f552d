"""Assembly of messages from *chunks*, the entries of a large message. The task that reads the last chunk delivers it.

    … | 0 of A · 0 of B · 1 of A  |  1 of B · 2 of A · …          message A has the chunks 0 to 2, B has 0 and 1: this
            earlier tasks         |  this task                    task delivers both, and reads back to their chunks 0

Rules
- The delivered messages are the same as for a Pulsar consumer that reads the ledger from its beginning. A first chunk
  restarts its message, a repeated chunk is ignored, and a message with a missing chunk is not delivered.
- A task buffers chunks up to `buffer_bytes_max`. The task reads a chunk again if the buffer had no room for it, or if
  the chunk is before the task's range. So each message is delivered once, however the ledger is split into tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from pyspark_ledger.ledger.message.batch_decoder import ChunkAssembler
from pyspark_ledger.ledger.message.entry import ParsedEntry, is_marker
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import SegmentDescription
from pyspark_ledger.ledger.rows.message_groups import Entry

_BACK_ENTRIES_MIN, _BACK_ENTRIES_MAX = 4, 256
_BUFFER_BYTES_MAX = 64 * 1024 * 1024


def earlier_ranges(segments: Sequence[SegmentDescription], position: Position) -> Iterator[PositionRange]:
    """Yield ranges of the entries before a position, backwards from the position.

    The first range has up to 4 entries. Each further range has up to twice as many, at most 256.
    """
    count = _BACK_ENTRIES_MIN
    for segment in reversed(segments):
        if segment.ledger_id > position.ledger_id:
            continue
        end = segment.entries if segment.ledger_id < position.ledger_id else position.entry_id
        while end > 0:
            first = max(end - count, 0)
            yield PositionRange(Position(segment.ledger_id, first), Position(segment.ledger_id, end))
            end, count = first, min(2 * count, _BACK_ENTRIES_MAX)


class WholeMessages:
    """Assembler of chunked messages. `entries_before(position)` yields earlier entries in reverse order."""

    def __init__(
        self,
        topic: str,
        entries_before: Callable[[Position], Iterator[Entry]],
        *,
        buffer_bytes_max: int = _BUFFER_BYTES_MAX,
    ) -> None:
        self._topic = topic
        self._entries_before = entries_before
        self._buffer_bytes_max = buffer_bytes_max
        self._chunks: dict[tuple[str, str], list[Entry]] = {}
        self._buffer_bytes = 0

    def of(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the entries. A whole message replaces its last chunk, and its other chunks are left out."""
        for position, entry in entries:
            if entry.metadata.num_chunks_from_msg <= 1 or is_marker(entry.metadata):
                yield position, entry
                continue
            whole = self._add(position, entry)
            if whole is not None:
                yield position, whole

    def _add(self, position: Position, entry: ParsedEntry) -> ParsedEntry | None:
        metadata = entry.metadata
        key = (metadata.producer_name, metadata.uuid)
        if metadata.chunk_id != metadata.num_chunks_from_msg - 1:
            self._buffer(key, position, entry)
            return None
        chunks = self._evict(key)
        if [chunk.metadata.chunk_id for _, chunk in chunks] != list(range(metadata.chunk_id)):
            chunks = self._read_back(key, position)
        return self._assemble([*chunks, (position, entry)])

    def _buffer(self, key: tuple[str, str], position: Position, entry: ParsedEntry) -> None:
        number, buffered = entry.metadata.chunk_id, len(self._chunks.get(key, ()))
        if number == 0 or number > buffered:
            self._evict(key)
        if number not in {0, buffered}:
            return
        self._chunks.setdefault(key, []).append((position, entry))
        self._buffer_bytes += len(entry.payload)
        while self._buffer_bytes > self._buffer_bytes_max:
            self._evict(next(iter(self._chunks)))

    def _evict(self, key: tuple[str, str]) -> list[Entry]:
        chunks = self._chunks.pop(key, [])
        self._buffer_bytes -= sum(len(entry.payload) for _, entry in chunks)
        return chunks

    def _read_back(self, key: tuple[str, str], position: Position) -> list[Entry]:
        """Return the message's chunks before `position`, or an empty list without a first chunk.

        If the producer sent the message again, there are several first chunks. The newest of them is used.
        """
        chunks: list[Entry] = []
        for at, entry in self._entries_before(position):
            metadata = entry.metadata
            if metadata.num_chunks_from_msg > 1 and (metadata.producer_name, metadata.uuid) == key:
                chunks.append((at, entry))
                if metadata.chunk_id == 0:
                    return chunks[::-1]
        return []

    def _assemble(self, chunks: list[Entry]) -> ParsedEntry | None:
        """Return the whole message. Returns None if the last of these chunks does not complete it."""
        assembler = ChunkAssembler()
        *before, (position, last) = chunks
        for at, entry in before:
            if assembler.add(entry, f"entry {at} of {self._topic}") is not None:
                return None
        return assembler.add(last, f"entry {position} of {self._topic}")
