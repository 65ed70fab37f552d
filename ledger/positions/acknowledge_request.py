"""Positions that a client acknowledges, as they cross the wire.

    ledger_id int64 · entry_id int64 · rows large_binary     one line for an entry; `rows` are words of bits, row `n` is
                                                              bit `n`, little-endian; null: the whole entry

A request may list an entry more than once. The receiver unites all lines of the entry. The order has no meaning.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.positions import bitset
from pyspark_ledger.ledger.positions.bitset import Integers

ACKNOWLEDGE_SCHEMA = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("rows", pa.large_binary()),
    ]
)
ROWS_MOST = 2**26
_WORDS_MOST = 2**22
_NOTHING = pa.RecordBatch.from_pylist([], schema=ACKNOWLEDGE_SCHEMA)


def acknowledge_batch(ledgers: Integers, entries: Integers, rows: Integers) -> pa.RecordBatch:
    """Return one batch of a request from parallel arrays with an element for each row, in any order.

    Row -1 stands for the whole entry. Raises Refused for a row number that no entry can have.
    """
    parts = list(acknowledge_batches(ledgers, entries, rows))
    return pa.Table.from_batches(parts, ACKNOWLEDGE_SCHEMA).combine_chunks().to_batches()[0] if parts else _NOTHING


def acknowledge_batches(ledgers: Integers, entries: Integers, rows: Integers) -> Iterator[pa.RecordBatch]:
    """Yield the batches of `acknowledge_batch` in bounded size.

    Reason: high row numbers in many entries need many words. Raises Refused for a row number that no entry can have.
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
    """Yield batches with one line for each entry of a segment."""
    distinct, owner = _numbered(entries)
    whole = np.zeros(len(distinct), dtype=np.bool_)
    whole[owner[rows < 0]] = True
    highest = np.zeros(len(distinct), dtype=np.int64)
    np.maximum.at(highest, owner, rows)
    counts = np.where(whole, 0, (highest >> 6) + 1)
    starts = np.append(0, np.cumsum(counts))
    if len(distinct) > 1 and int(starts[-1]) > _WORDS_MOST:
        first = owner < len(distinct) // 2
        for half in (first, ~first):
            yield from _lines_of(ledger_id, entries[half], rows[half])
        return
    words = np.zeros(int(starts[-1]), dtype=np.uint64)
    if whole.any():
        partly = ~whole[owner]
        owner, rows = owner[partly], rows[partly]
    bitset.put(words, (starts[owner] << 6) + rows)
    buffers = [np.packbits(~whole, bitorder="little"), starts * 8, words]
    column = pa.Array.from_buffers(pa.large_binary(), len(distinct), [pa.py_buffer(buffer) for buffer in buffers])
    ledgers = pa.array(np.full(len(distinct), ledger_id))
    yield pa.RecordBatch.from_arrays([ledgers, pa.array(distinct), column], schema=ACKNOWLEDGE_SCHEMA)


def _numbered(entries: Integers) -> tuple[Integers, Integers]:
    """Return the distinct entries, ascending, and the index of the distinct entry of each element."""
    low, high = int(entries.min()), int(entries.max())
    if high - low > 4 * len(entries):
        distinct, owner = np.unique(entries, return_inverse=True)
        return distinct, owner
    there = np.zeros(high - low + 1, dtype=np.bool_)
    there[entries - low] = True
    number = np.cumsum(there) - 1
    return np.flatnonzero(there) + low, number[entries - low]
