"""Positions that somebody acknowledges, as they cross the wire, and as the set that a log makes of them.

    ledger_id int64 · entry_id int64 · rows large_binary     one line for an entry; `rows` are words of bits, row `n` is
                                                              bit `n`, little-endian; null: the whole entry

Rules
- An entry may come more than once; what is said of it is joined. Order means nothing.
- Everything is compared with the log before anything is taken: an entry beyond the last one, a row that its entry does
  not have, a ledger that is not the log's are refused by name. What was trimmed off the log is acknowledged already;
  which ledgers that were, the metadata say: ids are store-wide, and a lower one may be any other log's.
- How many rows an entry has is what the log says, so that an entry whose rows are all given is given as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ledger import bit_words
from ledger.batch_rows import BatchRows
from ledger.bit_words import Flags, Integers, Words
from ledger.errors import Refused
from ledger.log_snapshot import LogSegment, LogSnapshot
from ledger.position_set import PositionSet
from ledger.protocol import LedgerSegment

ACKNOWLEDGE_SCHEMA = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("rows", pa.large_binary()),
    ]
)
Gone = Callable[[], Sequence[LedgerSegment]]
"""The ledgers that were trimmed off a log."""
ROWS_MOST = 2**26
_WORDS_MOST = 2**22
_NOTHING = pa.RecordBatch.from_pylist([], schema=ACKNOWLEDGE_SCHEMA)


class _Given(NamedTuple):
    """One record batch as arrays; the words of line `i` are `words[starts[i]:starts[i + 1]]`."""

    ledgers: Integers
    entries: Integers
    whole: Flags
    starts: Integers
    words: Words


def acknowledge_batch(ledgers: Integers, entries: Integers, rows: Integers) -> pa.RecordBatch:
    """A batch of the wire from one line for each row, in any order; row -1 is the whole entry. Nothing is sorted."""
    parts = list(acknowledge_batches(ledgers, entries, rows))
    return pa.Table.from_batches(parts, ACKNOWLEDGE_SCHEMA).combine_chunks().to_batches()[0] if parts else _NOTHING


def acknowledge_batches(ledgers: Integers, entries: Integers, rows: Integers) -> Iterator[pa.RecordBatch]:
    """The same in batches of bounded size: few rows far into many entries are many words.

    Raises Refused for a row that no entry has.
    """
    if not len(ledgers):
        return
    wrong = np.flatnonzero((rows < -1) | (rows >= ROWS_MOST))
    if len(wrong):
        at = int(wrong[0])
        raise Refused(
            f"row {int(rows[at])} of entry {int(ledgers[at])}:{int(entries[at])} is none: rows go from 0 to "
            f"{ROWS_MOST - 1}, -1 is the whole entry",
            hint="Acknowledge only rows that were read from the ledger",
        )
    lone = int(ledgers.min()) == int(ledgers.max())
    for ledger_id in [int(ledgers[0])] if lone else np.unique(ledgers).tolist():
        chosen = slice(None) if lone else ledgers == ledger_id
        yield from _lines_of(ledger_id, entries[chosen], rows[chosen])


def _lines_of(ledger_id: int, entries: Integers, rows: Integers) -> Iterator[pa.RecordBatch]:
    """One line for each entry of a ledger."""
    held, owner = _numbered(entries)
    whole = np.zeros(len(held), dtype=np.bool_)
    whole[owner[rows < 0]] = True
    highest = np.zeros(len(held), dtype=np.int64)
    np.maximum.at(highest, owner, rows)
    counts = np.where(whole, 0, (highest >> 6) + 1)
    starts = np.append(0, np.cumsum(counts))
    if len(held) > 1 and int(starts[-1]) > _WORDS_MOST:
        first = owner < len(held) // 2
        for half in (first, ~first):
            yield from _lines_of(ledger_id, entries[half], rows[half])
        return
    words = np.zeros(int(starts[-1]), dtype=np.uint64)
    if whole.any():
        partly = ~whole[owner]
        owner, rows = owner[partly], rows[partly]
    bit_words.put(words, (starts[owner] << 6) + rows)
    buffers = [np.packbits(~whole, bitorder="little"), starts * 8, words]
    column = pa.Array.from_buffers(pa.large_binary(), len(held), [pa.py_buffer(buffer) for buffer in buffers])
    ledgers = pa.array(np.full(len(held), ledger_id))
    yield pa.RecordBatch.from_arrays([ledgers, pa.array(held), column], schema=ACKNOWLEDGE_SCHEMA)


def _numbered(entries: Integers) -> tuple[Integers, Integers]:
    """The entries, each once, and for each line which of them it is."""
    low, high = int(entries.min()), int(entries.max())
    if high - low > 4 * len(entries):
        held, owner = np.unique(entries, return_inverse=True)
        return held, owner
    there = np.zeros(high - low + 1, dtype=np.bool_)
    there[entries - low] = True
    number = np.cumsum(there) - 1
    return np.flatnonzero(there) + low, number[entries - low]


def positions_given(batches: Iterable[pa.RecordBatch], snapshot: LogSnapshot, gone: Gone) -> PositionSet:
    """The set that these batches acknowledge of a log; raises Refused and takes nothing when any line is wrong."""
    given = PositionSet()
    by_id = {segment.ledger_id: segment for segment in snapshot.segments}
    for batch in batches:
        read = _read(batch)
        for ledger_id in np.unique(read.ledgers).tolist():
            segment = by_id.get(ledger_id)
            if segment is None:
                _require_trimmed(ledger_id, snapshot, gone)
                continue
            _add(given, segment, read, read.ledgers == ledger_id, snapshot)
    return given


def entry_sizes(segment: LogSegment) -> Integers:
    """Rows of each entry of a ledger."""
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
    left, lacking = BatchRows.left_of_words(read.entries[partly], sizes, counts, words)
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
