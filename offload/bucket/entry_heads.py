"""Heads of a segment's entries. The head of an entry is its offset, length, time, number of rows and transaction.

The page docs/concepts.md explains the words segment, marker, chunk and direct segment.

Rules
- Arrays have one element for each entry.
- Entries of transactions, transaction markers and message chunks are rare, and are kept in lists.
- The time of an entry is the time at which the broker stored it. If it is missing, the producer's publish time is used.
- The stamps in a direct segment are provisional, without the real time. So its entries have the time that the segment's
  index states.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyspark_ledger.ledger.message.entry import ParsedEntry, entry_rows, parse_entry
from pyspark_ledger.ledger.message.run_marker import RunId, run_id
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.segment.format import FRAME_BYTES
from pyspark_ledger.offload.bucket.frames import StreamedFrame

Integers = npt.NDArray[np.int64]
TXN_COMMIT, TXN_ABORT = 21, 22


class Chunk(NamedTuple):
    """Chunk `number` of a message with `chunks` chunks, and the location of its entry.

    `message` identifies the message by its producer and its uuid.
    """

    position: Position
    message: tuple[str, str]
    number: int
    chunks: int
    data_name: str
    offset: int
    length: int
    transaction: RunId | None


def _empty() -> Integers:
    return np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class EntryHeads:
    """Heads of all entries of one segment. `outcomes` states how each transaction ended: True for a commit."""

    ledger_id: int
    offsets: Integers = field(default_factory=_empty)
    lengths: Integers = field(default_factory=_empty)
    times: Integers = field(default_factory=_empty)
    rows: Integers = field(default_factory=_empty)
    transactional: list[tuple[Position, RunId]] = field(default_factory=list)
    outcomes: list[tuple[RunId, bool]] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def ends(self) -> Integers:
        return self.offsets + self.lengths + FRAME_BYTES


def gather_heads(
    frames: Iterable[StreamedFrame], ledger_id: int, data_name: str, where: str, time_ms: int | None
) -> EntryHeads:
    """Return the heads of a segment's entries. Raises Corrupt if an entry is unreadable.

    `time_ms` is the time of all entries of a direct segment.
    """
    offsets: list[int] = []
    lengths: list[int] = []
    times: list[int] = []
    rows: list[int] = []
    heads = EntryHeads(ledger_id)
    for entry_id, offset, data in frames:
        entry = parse_entry(data, f"entry {ledger_id}:{entry_id} in {where}", require_checksum=False)
        metadata = entry.metadata
        offsets.append(offset)
        lengths.append(len(data))
        times.append(entry_time(entry) if time_ms is None else time_ms)
        rows.append(entry_rows(metadata))
        run = run_id(metadata)
        if run is not None:
            _add_transaction(heads, Position(ledger_id, entry_id), run, entry)
        if metadata.num_chunks_from_msg > 1 and not metadata.HasField("marker_type"):
            message = (metadata.producer_name, metadata.uuid)
            number, chunks = metadata.chunk_id, metadata.num_chunks_from_msg
            position = Position(ledger_id, entry_id)
            heads.chunks.append(Chunk(position, message, number, chunks, data_name, offset, len(data), run))
    heads.offsets, heads.lengths, heads.times, heads.rows = (
        np.array(column, dtype=np.int64) for column in (offsets, lengths, times, rows)
    )
    return heads


def entry_time(entry: ParsedEntry) -> int:
    """Return the time of an entry in milliseconds since 1970."""
    stamped = entry.stamp.timestamp_ms if entry.stamp else 0
    return min(stamped or entry.metadata.publish_time, 2**63 - 1)


def _add_transaction(heads: EntryHeads, position: Position, run: RunId, entry: ParsedEntry) -> None:
    metadata = entry.metadata
    if not metadata.HasField("marker_type"):
        heads.transactional.append((position, run))
    elif metadata.marker_type in (TXN_COMMIT, TXN_ABORT):
        heads.outcomes.append((run, metadata.marker_type == TXN_COMMIT))
