"""Functions that make partly acknowledged entries from rows, and find one row in a set of positions."""

from __future__ import annotations

import numpy as np

from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions import bitset
from pyspark_ledger.ledger.positions.bitset import Integers
from pyspark_ledger.ledger.positions.partial_entries import BatchRows
from pyspark_ledger.ledger.positions.position_set import PositionSet


def left_after(entries: Integers, sizes: Integers, owner: Integers, rows: Integers) -> BatchRows:
    """Return the remaining rows of `entries` (ascending, of `sizes` rows) without row `rows[i]` of
    `entries[owner[i]]`."""
    pieces = [bitset.of_ranges(np.array([0]), np.array([size])) for size in sizes.tolist()]
    for at, row in zip(owner.tolist(), rows.tolist(), strict=True):
        pieces[at][row >> 6] &= ~(np.uint64(1) << np.uint64(row & 63))
    return BatchRows.of_pieces(entries, pieces)


def contains_row(positions: PositionSet, position: Position, row: int) -> bool:
    """Return whether one row of an entry is in a set."""
    if positions.contains(position):
        return True
    left = positions.rows(position.ledger_id).of(position.entry_id)
    return left is not None and not bitset.is_set(left, row)


def check_positions(positions: PositionSet) -> None:
    for ledger_id, rows in positions._rows.items():
        assert len(rows), ledger_id
        assert (np.diff(rows.entries) > 0).all(), rows.entries
        assert (rows.left_counts() > 0).all(), rows
        assert not positions.contains_entries(ledger_id, rows.entries).any(), rows.entries
