"""Goal: what a range has left beside a set is what counting row by row says, and limits reach as far as they allow.
Method: logs and sets of random shape, compared with a list of rows.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.log.acknowledged_positions import entry_sizes, requested_positions
from pyspark_ledger.ledger.log.remaining import head_left, measure_left, prefix_left
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.positions.position_set import PositionSet
from tests.ledger.log import test_snapshot as snapshots

Shape = list[list[tuple[int, int, int]]]
UNLIMITED = 2**62


def skipped_of(snapshot: LogSnapshot, seed: int) -> tuple[PositionSet, dict[Position, int]]:
    """Some rows at random; and how many each entry has left."""
    dice, lines, left = np.random.default_rng(seed), [], {}
    for segment in snapshot.segments:
        for number, size in enumerate(entry_sizes(segment).tolist()):
            gone = np.flatnonzero(dice.random(size) < dice.choice([0.0, 0.5, 1.0]))
            lines += [(segment.ledger_id, number, row) for row in gone.tolist()]
            left[Position(segment.ledger_id, number)] = size - len(gone)
    arrays = np.array(lines, dtype=np.int64).reshape(-1, 3).T
    return requested_positions([acknowledge_batch(*arrays)], snapshot, list), left


@given(snapshots.shapes, st.integers(0, 2**32), st.integers(0, 40), st.integers(0, 12))
def test_rows_are_those_that_are_left(shape: Shape, seed: int, start: int, rows: int) -> None:
    snapshot, positions = snapshots.log_of(shape)
    skipped, left = skipped_of(snapshot, seed)
    range_ = PositionRange([*positions, snapshot.end][min(start, len(positions))], snapshot.end)
    inside = [left[place] for place in positions if place >= range_.start]
    entries, counted, size = measure_left(snapshot, range_, skipped)
    assert (entries, counted) == (sum(1 for count in inside if count), sum(inside))
    head = head_left(snapshot, range_, skipped)
    assert (None if head is None else head.rows) == next((count for count in inside if count), None)
    found = prefix_left(snapshot, range_, skipped, rows, UNLIMITED)
    ends = np.cumsum(inside) if inside else np.zeros(0, np.int64)
    assert found.rows == max([int(end) for end in ends if end <= rows], default=0)
    assert measure_left(snapshot, found.range, skipped) == (found.entries, found.rows, found.size_bytes)
    assert prefix_left(snapshot, range_, skipped, UNLIMITED, size).rows == counted
    if size:
        assert prefix_left(snapshot, range_, skipped, UNLIMITED, size - 1).rows < counted


@given(snapshots.shapes)
def test_without_a_hole_it_is_what_the_log_measures(shape: Shape) -> None:
    snapshot, _ = snapshots.log_of(shape)
    range_ = PositionRange(snapshot.start, snapshot.end)
    _, rows, size = snapshot.measure(range_)
    _, left_rows, left_size = measure_left(snapshot, range_, PositionSet())
    assert left_rows == rows
    assert left_size <= size
