"""Goal: what a reading has left, and how far a quota reaches, is what counting entries says. Method: logs of random
shape, compared with a list of entries; readings that retention has overtaken.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import DataLoss
from pyspark_ledger.ledger.log.remaining import reading_left
from pyspark_ledger.ledger.log.retention import TrimMark
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import SegmentDescription
from pyspark_ledger.ledger.protocol.reads import ReadProgress
from tests.ledger.log import test_snapshot as snapshots

Shape = list[list[tuple[int, int, int]]]


def left(snapshot: LogSnapshot, **reading: object) -> object:
    return reading_left(snapshot, ReadProgress(**reading), list)


@given(snapshots.shapes, st.integers(0, 40), st.integers(0, 8), st.integers(0, 900))
def test_a_quota_reaches_as_far_as_it_allows(shape: Shape, start: int, rows: int, size: int) -> None:
    snapshot, positions = snapshots.log_of(shape)
    places = [*positions, snapshot.end]
    range_ = PositionRange(places[min(start, len(positions))], snapshot.end)
    wanted = [place for place in positions if place >= range_.start]
    found = snapshot.prefix(range_, rows, size)

    def allowed(count: int) -> bool:
        end = [*wanted, snapshot.end][count]
        _, held_rows, held_bytes = snapshot.measure(PositionRange(range_.start, end))
        return held_rows <= rows and held_bytes <= size

    assert found.entries == max(count for count in range(len(wanted) + 1) if count == 0 or allowed(count))
    assert (found.entries, found.rows, found.size_bytes) == snapshot.measure(found.range)
    assert found.range.start == range_.start


@given(snapshots.shapes, st.integers(0, 40), st.integers(0, 40), st.integers(990, 1060))
def test_a_reading_is_counted_and_begins_with_its_first_rows(shape: Shape, start: int, end: int, ms: int) -> None:
    snapshot, positions = snapshots.log_of(shape)
    places = [*positions, snapshot.end]
    begin, until = places[min(start, len(positions))], places[min(end, len(positions))]
    found = left(snapshot, position=begin, until=until)
    assert (found.entries, found.rows, found.size_bytes) == snapshot.measure(PositionRange(begin, until))
    assert (found.begin, found.stop) == (begin, until)
    after = [place for place in positions if begin <= place < until]
    for count in range(1, len(after) + 1):
        stop = [*after, until][count]
        _, rows, size = snapshot.measure(PositionRange(begin, stop))
        if rows:
            assert (found.head_rows, found.head_bytes) == (rows, size)
            break
    else:
        assert (found.head_rows, found.head_bytes, found.head_ms) == (0, 0, 0)
    assert left(snapshot, from_ms=ms).begin == snapshot.seek_time(ms)
    assert left(snapshot, until_ms=ms).stop == snapshot.seek_time(ms)
    assert left(snapshot, position=LATEST).begin == snapshot.end


def test_a_reading_of_another_incarnation_is_answered_as_none() -> None:
    snapshot, _ = snapshots.log_of([[(10, 1, 0)] * 3])
    found = left(snapshot, position=Position(99, 0), incarnation="another")
    assert (found.incarnation, found.begin, found.rows) == ("i", snapshot.start, 3)


def test_a_position_that_the_log_never_had_is_an_error() -> None:
    snapshot, _ = snapshots.log_of([[(10, 1, 0)] * 3])
    with pytest.raises(DataLoss, match=r"'log' ends at 3:3, the reader has read up to 3:9"):
        left(snapshot, position=Position(3, 9))


def test_what_was_trimmed_is_counted() -> None:
    snapshot, _ = snapshots.log_of([[], [(10, 2, 0)] * 4])
    trimmed = replace(snapshot, trimmed=TrimMark(Position(4, 10), 40))
    gone = [
        SegmentDescription(2, 5, 500, 10, 1),
        SegmentDescription(3, 10, 1000, 30, 1),
        SegmentDescription(4, 10, 100, 10, 1),
    ]
    found = reading_left(trimmed, ReadProgress(Position(3, 4), "i"), lambda: gone)
    lost = found.trimmed
    assert lost.range == PositionRange(Position(3, 4), Position(4, 10))
    assert (lost.entries, lost.rows, lost.size_bytes, lost.known) == (16, 28, 700, True)
    assert (found.begin, found.rows) == (snapshot.start, 8)
    assert not reading_left(trimmed, ReadProgress(Position(3, 4), "i"), list).trimmed.known
    assert reading_left(trimmed, ReadProgress(Position(4, 10), "i"), list).trimmed is None
    assert reading_left(trimmed, ReadProgress(), list).trimmed is None


def test_what_was_trimmed_is_counted_up_to_the_end_of_the_reading() -> None:
    snapshot, _ = snapshots.log_of([[], [(10, 2, 0)] * 4])
    trimmed = replace(snapshot, trimmed=TrimMark(Position(4, 10), 40))
    gone = [SegmentDescription(3, 10, 1000, 30, 1), SegmentDescription(4, 10, 100, 10, 1)]

    def lost(position: Position, until: Position) -> tuple[int, int]:
        found = reading_left(trimmed, ReadProgress(position, "i", until=until), lambda: gone).trimmed
        return (0, 0) if found is None else (found.entries, found.rows)

    assert lost(Position(3, 4), Position(4, 2)) == (8, 20)
    assert lost(Position(4, 2), Position(4, 5)) == (3, 3)
    assert lost(Position(4, 5), Position(4, 5)) == (0, 0)
    # The log was empty when it was last read, so that read position is no beginning of the rest.
    assert lost(Position(-1, 0), LATEST) == (20, 40)
    assert lost(EARLIEST, LATEST) == (0, 0)
