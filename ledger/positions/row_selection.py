"""Selection of the rows that a Spark task delivers. It skips whole entries, and some rows of other entries.

Rules
- The checksum of a skipped entry is not verified, because none of its rows is delivered.
- A row is selected by its number in the entry. Pulsar calls the number of a message its batch index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions import bitset
from pyspark_ledger.ledger.positions.position_info import decode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet


class RowSelection:
    """Selection of all rows that are not skipped. `skip` has the skipped positions as a PositionInfo, or is empty."""

    def __init__(self, skip: bytes) -> None:
        self._skip = decode_info(skip, "the positions that a task skips").acknowledged if skip else PositionSet()
        self.by_row = self._skip.batch_count() > 0
        self._entries = {ledger_id: bitset.flags(self._skip.words(ledger_id)) for ledger_id in self._skip.ledgers()}

    def __bool__(self) -> bool:
        return bool(self._entries)

    def skips(self, position: Position) -> bool:
        flags = self._entries.get(position.ledger_id)
        return flags is not None and position.entry_id < len(flags) and bool(flags[position.entry_id])

    def select(self, position: Position, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the delivered rows of an entry. `batches` are all rows of the entry."""
        words = self._skip.rows(position.ledger_id).of(position.entry_id)
        row = 0
        for batch in batches:
            count = batch.num_rows
            kept = None if words is None else bitset.test(words, np.arange(row, row + count))
            yield batch if kept is None else batch.filter(pa.array(kept))
            row += count

    def select_placed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the delivered rows of a batch whose last column is `__position`."""
        column = batch.column(batch.num_columns - 1)
        ledgers, entries, rows = (np.asarray(column.field(name)) for name in ("ledgerId", "entryId", "batchIndex"))
        kept = np.ones(len(ledgers), dtype=np.bool_)
        edges = np.flatnonzero((ledgers[1:] != ledgers[:-1]) | (entries[1:] != entries[:-1])) + 1
        for group in np.split(np.arange(len(ledgers)), edges):
            if not len(group):
                continue
            words = self._skip.rows(int(ledgers[group[0]])).of(int(entries[group[0]]))
            if words is not None:
                kept[group] = bitset.test(words, rows[group].astype(np.int64))
        return batch if kept.all() else batch.filter(pa.array(kept))
