"""Request of a client that acknowledges positions, as Arrow record batches.

    ledger_id int64 · entry_id int64 · rows large_binary     one line for each entry. In `rows`, bit `n` is set if row
                                                             `n` is acknowledged, in little-endian words of
                                                             64 bits. Null means the whole entry

`ledger_id` is the id of a segment, which Pulsar calls a ledger. A request may list an entry more than once: the
receiver then acknowledges the rows of all its lines. The order of the lines has no meaning.
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
    """Return a request of one batch. The arrays have an element for each acknowledged row, in any order.

    Row -1 means the whole entry. Raises Refused for a row number that no entry can have.
    """
    parts = list(acknowledge_batches(ledgers, entries, rows))
    return pa.Table.from_batches(parts, ACKNOWLEDGE_SCHEMA).combine_chunks().to_batches()[0] if parts else _NOTHING


def acknowledge_batches(ledgers: Integers, entries: Integers, rows: Integers) -> Iterator[pa.RecordBatch]:
    """Yield the request of `acknowledge_batch` as several batches of bounded size.

    Reason: an entry with one high row number needs many words.
    """
    if not len(ledgers):
        return
    wrong = np.flatnonzero((rows < -1) | (rows >= ROWS_MOST))
    if len(wrong):
        at = int(wrong[0])
        raise Refused(
            f"entry {int(ledgers[at])}:{int(entries[at])} has no row {int(rows[at])}: rows go from 0 to "
            f"{ROWS_MOST - 1}, and -1 means the whole entry",
            hint="Acknowledge only rows that were read from the ledger",
        )
    is_single = int(ledgers.min()) == int(ledgers.max())
    for ledger_id in [int(ledgers[0])] if is_single else np.unique(ledgers).tolist():
        chosen = slice(None) if is_single else ledgers == ledger_id
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
    """Return the distinct entries, ascending, and for each element its index among them."""
    low, high = int(entries.min()), int(entries.max())
    if high - low > 4 * len(entries):
        distinct, owner = np.unique(entries, return_inverse=True)
        return distinct, owner
    present = np.zeros(high - low + 1, dtype=np.bool_)
    present[entries - low] = True
    number = np.cumsum(present) - 1
    return np.flatnonzero(present) + low, number[entries - low]
