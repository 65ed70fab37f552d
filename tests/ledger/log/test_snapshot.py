"""Goal: every cut of a log is exactly the log, whatever the cut. Method: logs of random shape, compared entry by entry
with a list; splits, blocks, measures and times over random ranges."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import DataLoss
from pyspark_ledger.ledger.log.snapshot import LogSegment, LogSnapshot
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.segment.index import EntryIndex, EntryPlace

# One ledger: for each entry (bytes, rows, milliseconds after the one before).
shapes = st.lists(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3), st.integers(0, 5)), max_size=8), max_size=4
)


def log_of(shape: list[list[tuple[int, int, int]]], first_id: int = 3) -> tuple[LogSnapshot, list[Position]]:
    """A snapshot without files, with gaps between ledger ids, and the positions of its entries."""
    segments, positions, rows, now = [], [], 0, 1000
    for number, entries in enumerate(shape):
        ledger_id, offset, first_row, places = first_id + 2 * number, 128, rows, []
        for entry_id, (size, delivered, later) in enumerate(entries):
            rows, now = rows + delivered, now + later
            places.append(EntryPlace(offset, size, now, rows))
            positions.append(Position(ledger_id, entry_id))
            offset += 12 + size
        index = EntryIndex(ledger_id, first_row)
        index.append(places)
        segments.append(
            LogSegment(
                ledger_id, len(entries), first_row, rows - first_row, offset, 1, Path(f"{ledger_id}"), lambda i=index: i
            )
        )
    return LogSnapshot("log", tuple(segments)), positions


def covered(snapshot: LogSnapshot, range_: PositionRange) -> list[Position]:
    return [Position(p.segment.ledger_id, i) for p in snapshot.slices(range_) for i in range(p.first, p.end)]


@given(shapes, st.integers(0, 40), st.integers(0, 40), st.integers(1, 2000), st.integers(1, 50))
def test_parts_and_blocks_are_exactly_the_range(
    shape: list[list[tuple[int, int, int]]], start: int, end: int, target: int, most: int
) -> None:
    snapshot, positions = log_of(shape)
    places = [*positions, snapshot.end]
    range_ = PositionRange(places[min(start, len(positions))], places[min(end, len(positions))])
    wanted = [position for position in positions if range_.start <= position < range_.end]
    assert covered(snapshot, range_) == wanted
    parts = snapshot.split(range_, target, most)
    assert [position for part in parts for position in covered(snapshot, part.range)] == wanted
    assert [part.range.start for part in parts[1:]] == [part.range.end for part in parts[:-1]]
    entries, rows, size = snapshot.measure(range_)
    assert (entries, rows) == (len(wanted), sum(part.rows for part in parts))
    assert sum(part.entries for part in parts) == entries
    blocks = snapshot.blocks(range_, target)
    found = [Position(block.ledger_id, block.first_entry + i) for block in blocks for i in range(block.entries)]
    assert found == wanted
    assert all(block.entries == 1 or block.length <= target for block in blocks)
    assert sum(block.length for block in blocks) == size


@given(shapes)
def test_rows_before_the_ends_are_none_and_all(shape: list[list[tuple[int, int, int]]]) -> None:
    snapshot, positions = log_of(shape)
    assert snapshot.rows_before(EARLIEST) == 0
    assert snapshot.rows_before(snapshot.end) == snapshot.rows
    assert snapshot.measure(PositionRange(EARLIEST, LATEST))[:2] == (len(positions), snapshot.rows)


@given(shapes, st.integers(990, 1100))
def test_a_time_is_the_first_entry_at_or_after_it(shape: list[list[tuple[int, int, int]]], timestamp: int) -> None:
    snapshot, positions = log_of(shape)
    stamps = [int(t) for segment in snapshot.segments for t in segment.index().timestamps]
    later = [position for position, stamp in zip(positions, stamps, strict=True) if stamp >= timestamp]
    assert snapshot.seek_time(timestamp) == (later[0] if later else snapshot.end)


def test_an_empty_log_has_an_end_and_nothing_in_it() -> None:
    for snapshot in (LogSnapshot("log", ()), log_of([[]])[0]):
        assert snapshot.start == snapshot.end == Position(-1, 0)
        assert snapshot.blocks(PositionRange(EARLIEST, LATEST), 1) == []
        assert snapshot.split(PositionRange(EARLIEST, Position(-1, 0)), 1, 1) != [None]
        assert snapshot.last_timestamp_ms() == 0


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (Position(2, 0), LATEST, "begins at 3:0, entries from 2:0"),
        (Position(3, 0), Position(5, 2), "ends at 5:1, entries up to 5:2"),
        (Position(5, 2), LATEST, "ends at 5:1, entries from 5:2"),
        (Position(7, 1), LATEST, "ends at 5:1, entries from 7:1"),
        (Position(9, 0), LATEST, "ends at 5:1, entries from 9:0"),
    ],
)
def test_what_is_not_there_is_data_loss_with_both_positions(start: Position, end: Position, said: str) -> None:
    snapshot, _ = log_of([[(1, 1, 1)] * 3, [(1, 1, 1)], []])
    with pytest.raises(DataLoss, match=said):
        snapshot.blocks(PositionRange(start, end), 100)


@pytest.mark.parametrize("place", [Position(3, 3), Position(3, 99), Position(4, 0), Position(5, 0)])
def test_places_between_two_ledgers_are_one(place: Position) -> None:
    snapshot, _ = log_of([[(1, 1, 1)] * 3, [(1, 1, 1)], []])
    assert covered(snapshot, PositionRange(place, LATEST)) == [Position(5, 0)]
    assert snapshot.rows_before(place) == 3
    assert covered(snapshot, PositionRange(Position(7, 0), LATEST)) == [], "before the first entry of an open ledger"
