"""Goal: every range of a log is exactly that part of the log. Method: logs of random shape, compared entry by entry
with a list; splits, blocks, measures and times over random ranges.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import DataLoss
from pyspark_ledger.ledger.log.segments.log_segments import LogSegment, LogSegments, Slice, bytes_between, delivering
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
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
    return replace(LogSnapshot.of("log", segments), incarnation="i"), positions


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
    for snapshot in (LogSnapshot.of("log", ()), log_of([[]])[0]):
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


def counted(segments: int, **known: int) -> tuple[LogSnapshot, list[int]]:
    """A log of segments of two entries with a row each, and the ids of the segments whose index was asked for."""
    shape, asked = [[(10, 1, 1), (10, 1, 1)]] * segments, list[int]()

    def asking(segment: LogSegment) -> LogSegment:
        def index() -> EntryIndex:
            asked.append(segment.ledger_id)
            return segment.index()

        return replace(segment, index=index, **known)

    snapshot, _ = log_of(shape)
    return LogSnapshot.of("log", map(asking, snapshot.segments)), asked


@pytest.mark.parametrize("segments", [4, 400])
def test_a_backlog_looks_into_the_segments_that_it_cuts(segments: int, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, asked = counted(segments, stored_bytes=44, row_entries=2)
    monkeypatch.setattr(LogSegments, "__iter__", None)  # an iteration over the segments fails
    last = snapshot.end.ledger_id
    range_ = PositionRange(Position(3, 1), Position(last, 1))
    assert snapshot.measure(range_) == (2 * segments - 2, 2 * segments - 2, 44 * (segments - 2) + 2 * 22)
    assert snapshot.backlog(range_) == (2 * segments - 2, 2 * segments - 2, 44 * (segments - 2) + 2 * 22)
    assert snapshot.estimated_backlog(range_)[:2] == (2 * segments - 2, 2 * segments - 2)
    assert snapshot.end_since(Position(3, 1)).entries_since == 2 * segments - 1
    assert snapshot.entries_before(Position(last, 1)) == 2 * segments - 1
    assert set(asked) == {3, last}


def test_sums_that_nobody_kept_are_read_once_from_each_index() -> None:
    snapshot, asked = counted(4)
    for _ in range(2):
        assert snapshot.backlog(PositionRange(EARLIEST, LATEST)) == (8, 8, 4 * 44)
    assert sorted(asked) == sorted([3, 5, 7, 9] * 2), "for its bytes and for its rows"


@given(shapes, st.lists(st.sampled_from(["seal", "trim", "replace"]), max_size=12))
def test_views_of_a_growing_list_stay_as_they_were(shape: list[list[tuple[int, int, int]]], steps: list[str]) -> None:
    all_of_it = list(log_of(shape)[0].segments)
    views, model = [LogSegments.of([])], [list[LogSegment]()]
    for step in steps:
        view, held = views[-1], model[-1]
        if step == "seal" and all_of_it:
            segment = all_of_it.pop(0)
            views.append(view.sealed(segment))
            model.append([*held, segment])
        elif step == "trim" and held:
            views.append(view.without_first(1))
            model.append(held[1:])
        elif step == "replace" and held:
            other = replace(held[0], close_ms=7)
            views.append(view.replaced(other))
            model.append([other, *held[1:]])
    for view, held in zip(views, model, strict=True):
        assert list(view) == held == view[:]
        assert len(view) == len(held)
        assert [view.find(segment.ledger_id) for segment in held] == held
        assert view.find(2) is None
        for first in range(len(held) + 1):
            part = held[first:]
            assert view.entries(first, len(view)) == sum(one.entries for one in part)
            assert view.size_bytes(first, len(view)) == sum(one.size_bytes for one in part)
            assert view.rows(first, len(view)) == sum(one.rows for one in part)
            assert view.stored_bytes(first, len(view)) == sum(
                bytes_between(one, 0, one.entries) for one in part if one.entries
            )
            assert view.row_entries(first, len(view)) == sum(delivering(Slice(one, 0, one.entries)) for one in part)


def test_branches_of_one_list_do_not_meet() -> None:
    first, second, third = log_of([[(1, 1, 1)]] * 3)[0].segments
    view = LogSegments.of([first])
    assert list(view.sealed(second)) == [first, second]
    assert list(view.sealed(third)) == [first, third]
    assert list(view.with_open(third)) == [first, third] == view.with_open(third)[:]
    assert view.with_open(third).entries(0, 2) == 2
    assert (view.with_open(third).at(4), view.with_open(third).at(8)) == (1, 2)
