"""Positions that a client acknowledges: the columns of the request, and their conversion to a set of positions.

    ledger_id int64 · entry_id int64 · rows large_binary     one line for each entry. `rows` has little-endian 64-bit
                                                              words: bit n is set if row n is acknowledged. Null: the
                                                              whole entry is acknowledged

`ledger_id` is the id of a segment, which Pulsar calls a ledger.

Rules
- An entry may have several lines. Then their rows are merged. The order of the lines has no meaning.
- All positions are compared with the log before any of them is acknowledged. The request is refused if a segment
  belongs to another log, or if an entry or a row does not exist. The error names the wrong value.
- A trimmed entry, which retention has deleted, counts as acknowledged. The metadata list the trimmed segments of a log.
  A segment id below the log's first id is no proof of a trim, because ids are unique in the whole store. The id may
  belong to a segment of another log.
- An entry without rows counts for nothing: a marker, or a chunk of a message that is not its last chunk.
- If all rows of an entry are acknowledged, the entry is acknowledged as a whole. The segment's index states how many
  rows the entry has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.log.segments.log_segments import LogSegment
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.acknowledge_request import ACKNOWLEDGE_SCHEMA
from pyspark_ledger.ledger.positions.bitset import Flags, Integers, Words
from pyspark_ledger.ledger.positions.partial_entries import BatchRows
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.actions import SegmentDescription

Gone = Callable[[], Sequence[SegmentDescription]]
"""Returns the trimmed segments of a log."""


class _Request(NamedTuple):
    """Columns of a request as arrays. `whole` marks lines for whole entries.

    The words of line `i` are `words[starts[i]:starts[i + 1]]`.
    """

    ledgers: Integers
    entries: Integers
    whole: Flags
    starts: Integers
    words: Words


def requested_positions(batches: Iterable[pa.RecordBatch], snapshot: LogSnapshot, gone: Gone) -> PositionSet:
    """Return the set of positions that the batches acknowledge. Raises Refused if any line is invalid."""
    positions = PositionSet()
    for batch in batches:
        request = _request_of(batch)
        for ledger_id in np.unique(request.ledgers).tolist():
            segment = snapshot.segments.find(ledger_id)
            if segment is None:
                _require_trimmed(ledger_id, snapshot, gone)
                continue
            _add(positions, segment, request, request.ledgers == ledger_id, snapshot)
    return positions


def entry_sizes(segment: LogSegment) -> Integers:
    """Return the number of rows of each entry of a segment."""
    ends = segment.index().row_ends[: segment.entries]
    sizes: Integers = np.diff(ends, prepend=segment.first_row)
    return sizes


def drop_rowless(positions: PositionSet, snapshot: LogSnapshot) -> Position | None:
    """Remove the entries without rows from a set, and return the first of them, or None.

    A message in several chunks has its row in the last chunk. So it is acknowledged as a whole, with its last chunk.
    """
    dropped: Position | None = None
    for ledger_id in positions.ledgers():
        segment = snapshot.segments.find(ledger_id)
        if segment is None or segment.row_entries == segment.entries:
            continue
        rowless = np.flatnonzero(entry_sizes(segment) == 0)
        rowless = rowless[positions.contains_entries(ledger_id, rowless)]
        if len(rowless):
            positions.remove_entries(ledger_id, rowless)
            dropped = dropped or Position(ledger_id, int(rowless[0]))
    return dropped


def _add(positions: PositionSet, segment: LogSegment, request: _Request, lines: Flags, snapshot: LogSnapshot) -> None:
    """Add the lines of a request that belong to a segment. `lines` has a flag for each line of the request.

    Raises Refused if an entry or a row does not exist.
    """
    entries = request.entries[lines]
    wrong = entries[(entries < 0) | (entries >= segment.entries)]
    if len(wrong):
        raise Refused(
            f"position {segment.ledger_id}:{int(wrong[0])} is beyond the last entry of {snapshot.name!r}: "
            f"segment {segment.ledger_id} has {segment.entries} entries, the log ends at {snapshot.end}",
            hint="Acknowledge only positions that were read from this ledger",
        )
    sizes = entry_sizes(segment)
    positions.add_entries(segment.ledger_id, entries[request.whole[lines]])
    partly = np.flatnonzero(lines & ~request.whole)
    if not len(partly):
        return
    counts = np.diff(request.starts)[partly]
    starts = request.starts[partly]
    words = request.words[np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())]
    left, too_short = BatchRows.remaining_of_words(request.entries[partly], sizes, counts, words)
    if too_short >= 0:
        raise Refused(
            f"entry {segment.ledger_id}:{too_short} of {snapshot.name!r} has {int(sizes[too_short])} rows, "
            "the request acknowledges a later row",
            hint="Acknowledge only rows that were read from this ledger",
        )
    positions.add_rows(segment.ledger_id, left)


def _require_trimmed(ledger_id: int, snapshot: LogSnapshot, gone: Gone) -> None:
    if all(ledger_id != trimmed.ledger_id for trimmed in gone()):
        raise Refused(
            f"{snapshot.name!r} has no segment {ledger_id}: it begins at {snapshot.start} and ends at {snapshot.end}",
            hint="Acknowledge only positions that were read from this ledger",
        )


def _request_of(batch: pa.RecordBatch) -> _Request:
    if not batch.schema.equals(ACKNOWLEDGE_SCHEMA):
        raise Refused(f"an acknowledgement has the columns {batch.schema}, expected {ACKNOWLEDGE_SCHEMA}")
    column = batch.column(2)
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    whole = np.asarray(column.is_null())
    data = column.buffers()[2]
    lengths = np.diff(offsets)
    if (lengths & 7).any() or (lengths[whole] > 0).any() or (lengths < 0).any():
        raise Refused("the column rows of an acknowledgement has a length that is not a multiple of 8 bytes")
    octets = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, np.uint8)
    words = np.ascontiguousarray(octets[int(offsets[0]) : int(offsets[-1])]).view(np.uint64)
    ledgers, entries = (np.asarray(batch.column(number)) for number in (0, 1))
    return _Request(ledgers, entries, whole, (offsets - offsets[0]) >> 3, words)
