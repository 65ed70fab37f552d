"""Chunked messages made whole, in the task that reads their last chunk: there a message stands, and there only.

    … | 0 of A · 0 of B · 1 of A  |  1 of B · 2 of A · …          A and B belong to the part on the right, which reads
            earlier parts         |  this part                    back to the first chunk of each

Rules
- As for a Pulsar consumer that reads from the beginning: a first chunk begins its message anew, a chunk that was there
  already is passed over, and a message of which a chunk is missing is never delivered.
- What a task has seen of a message is kept while there is room; what is not there any more is read back like what lies
  before the part. So however a log is cut, every message is delivered once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pyspark_ledger.ledger.message.batch_decoder import ChunkAssembler
from pyspark_ledger.ledger.message.entry import ParsedEntry, is_marker
from pyspark_ledger.ledger.position import Position

Entry = tuple[Position, ParsedEntry]
_HELD_BYTES_MAX = 64 * 1024 * 1024


class WholeMessages:
    """Replaces chunks by whole messages. `earlier(position)` gives the entries before it, the last one first."""

    def __init__(
        self, topic: str, earlier: Callable[[Position], Iterator[Entry]], *, held_bytes_max: int = _HELD_BYTES_MAX
    ) -> None:
        self._topic = topic
        self._earlier = earlier
        self._held_bytes_max = held_bytes_max
        self._begun: dict[tuple[str, str], list[Entry]] = {}
        self._held = 0

    def of(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The entries, without chunks, with each message that becomes whole where its last chunk stands."""
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
            self._keep(key, position, entry)
            return None
        seen = self._drop(key)
        if [one.metadata.chunk_id for _, one in seen] != list(range(metadata.chunk_id)):
            seen = self._read_back(key, position)
        return self._assembled([*seen, (position, entry)])

    def _keep(self, key: tuple[str, str], position: Position, entry: ParsedEntry) -> None:
        number, known = entry.metadata.chunk_id, len(self._begun.get(key, ()))
        if number == 0 or number > known:
            self._drop(key)
        if number not in {0, known}:
            return
        self._begun.setdefault(key, []).append((position, entry))
        self._held += len(entry.payload)
        while self._held > self._held_bytes_max:
            self._drop(next(iter(self._begun)))

    def _drop(self, key: tuple[str, str]) -> list[Entry]:
        dropped = self._begun.pop(key, [])
        self._held -= sum(len(entry.payload) for _, entry in dropped)
        return dropped

    def _read_back(self, key: tuple[str, str], position: Position) -> list[Entry]:
        """The chunks of a message before its last one, from its newest first chunk on; none when there is none."""
        found: list[Entry] = []
        for at, entry in self._earlier(position):
            metadata = entry.metadata
            if metadata.num_chunks_from_msg > 1 and (metadata.producer_name, metadata.uuid) == key:
                found.append((at, entry))
                if metadata.chunk_id == 0:
                    return found[::-1]
        return []

    def _assembled(self, chunks: list[Entry]) -> ParsedEntry | None:
        """The message, if the last of these entries makes it whole, and none before it did."""
        assembler = ChunkAssembler()
        *before, (position, last) = chunks
        for at, entry in before:
            if assembler.add(entry, f"entry {at} of {self._topic}") is not None:
                return None
        return assembler.add(last, f"entry {position} of {self._topic}")
