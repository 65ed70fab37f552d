"""Acknowledged positions of a request: the wire format, and its conversion to a validated set.

    ledger_id int64 · entry_id int64 · rows large_binary     one line for an entry; `rows` are words of bits, row `n` is
                                                              bit `n`, little-endian; null: the whole entry

Rules
- An entry may occur more than once; its rows are merged. The order of lines has no meaning.
- The request is checked against the log before any position is used. An entry after the last entry is refused, and so
  is a row that its entry does not have, or a segment of another log. The error names the value.
- Trimmed entries count as acknowledged. The metadata list the trimmed segments. Reason: segment ids are unique per
  store, so a lower id may belong to another log.
- The log gives the number of rows of an entry. An entry with all rows acknowledged is acknowledged as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.log.log_segments import LogSegment
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.positions.acknowledge_request import ACKNOWLEDGE_SCHEMA
from pyspark_ledger.ledger.positions.bitset import Flags, Integers, Words
from pyspark_ledger.ledger.positions.partial_entries import BatchRows
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.actions import SegmentDescription

Gone = Callable[[], Sequence[SegmentDescription]]
"""Returns the trimmed segments of a log."""


class _Given(NamedTuple):
    """Record batch as arrays. The words of line `i` are `words[starts[i]:starts[i + 1]]`."""

    ledgers: Integers
    entries: Integers
    whole: Flags
    starts: Integers
    words: Words


def positions_given(batches: Iterable[pa.RecordBatch], snapshot: LogSnapshot, gone: Gone) -> PositionSet:
    """Return the set of positions that the batches acknowledge. Raises Refused if any line is invalid."""
    given = PositionSet()
    for batch in batches:
        read = _read(batch)
        for ledger_id in np.unique(read.ledgers).tolist():
            segment = snapshot.segments.find(ledger_id)
            if segment is None:
                _require_trimmed(ledger_id, snapshot, gone)
                continue
            _add(given, segment, read, read.ledgers == ledger_id, snapshot)
    return given


def entry_sizes(segment: LogSegment) -> Integers:
    """Return the number of rows of each entry of a segment."""
    ends = segment.index().row_ends[: segment.entries]
    sizes: Integers = np.diff(ends, prepend=segment.first_row)
    return sizes


def _add(given: PositionSet, segment: LogSegment, read: _Given, chosen: Flags, snapshot: LogSnapshot) -> None:
    entries = read.entries[chosen]
    wrong = entries[(entries < 0) | (entries >= segment.entries)]
    if len(wrong):
        raise Refused(
            f"position {segment.ledger_id}:{int(wrong[0])} is beyond the last entry of {snapshot.name!r}: "
            f"ledger {segment.ledger_id} has {segment.entries} entries, the log ends at {snapshot.end}",
            hint="Acknowledge only positions that were read from this ledger",
        )
    sizes = entry_sizes(segment)
    given.add_entries(segment.ledger_id, entries[read.whole[chosen]])
    partly = np.flatnonzero(chosen & ~read.whole)
    if not len(partly):
        return
    counts = np.diff(read.starts)[partly]
    words = read.words[np.repeat(read.starts[partly] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())]
    left, lacking = BatchRows.remaining_of_words(read.entries[partly], sizes, counts, words)
    if lacking >= 0:
        raise Refused(
            f"entry {segment.ledger_id}:{lacking} of {snapshot.name!r} has {int(sizes[lacking])} rows, "
            "a row beyond them was acknowledged",
            hint="Acknowledge only rows that were read from this ledger",
        )
    given.add_rows(segment.ledger_id, left)


def _require_trimmed(ledger_id: int, snapshot: LogSnapshot, gone: Gone) -> None:
    if all(ledger_id != trimmed.ledger_id for trimmed in gone()):
        raise Refused(
            f"{snapshot.name!r} has no ledger {ledger_id}: it begins at {snapshot.start} and ends at {snapshot.end}",
            hint="Acknowledge only positions that were read from this ledger",
        )


def _read(batch: pa.RecordBatch) -> _Given:
    if not batch.schema.equals(ACKNOWLEDGE_SCHEMA):
        raise Refused(f"an acknowledgement has the columns {batch.schema}, expected {ACKNOWLEDGE_SCHEMA}")
    column = batch.column(2)
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    whole = np.asarray(column.is_null())
    data = column.buffers()[2]
    lengths = np.diff(offsets)
    if (lengths & 7).any() or (lengths[whole] > 0).any() or (lengths < 0).any():
        raise Refused("an acknowledgement has rows that are no words of 64 bits")
    words = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, np.uint8)
    held = np.ascontiguousarray(words[int(offsets[0]) : int(offsets[-1])]).view(np.uint64)
    ledgers, entries = (np.asarray(batch.column(number)) for number in (0, 1))
    return _Given(ledgers, entries, whole, (offsets - offsets[0]) >> 3, held)
