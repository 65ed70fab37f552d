"""Goal: an offset survives JSON, restarts and a repeated first batch. Method: offsets written by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.connector.read.offsets import (
    HistoryPin,
    LedgerOffset,
    OffsetStore,
    StreamOffset,
    batch_ranges,
    require_addressed,
    require_no_table,
)
from pyspark_ledger.ledger.errors import Corrupt, Refused, Unsupported
from pyspark_ledger.ledger.position import Position, PositionRange

NAME = "public/default/persistent/orders"


def at(ledger: int, entry: int, *, initial: bool = False, incarnation: str = "i") -> StreamOffset:
    return StreamOffset({NAME: LedgerOffset(Position(ledger, entry), incarnation)}, initial)


def moved_to(start: StreamOffset, position: Position) -> StreamOffset:
    return start.advanced({NAME: LedgerOffset(position, start.ledgers[NAME].incarnation)})


def batch_range(start: StreamOffset, end: StreamOffset) -> PositionRange | None:
    (found,) = batch_ranges(start, end) or (None,)
    return found and found.range


def through_text(offset: StreamOffset) -> StreamOffset:
    return StreamOffset.from_json(json.loads(json.dumps(offset.to_json())))


def test_the_text_is_canonical_and_small() -> None:
    assert json.dumps(at(3, 18).to_json()) == (
        '{"ledgers": {"public/default/persistent/orders": {"entry": 18, "id": "i", "ledger": 3}}, "v": 1}'
    )
    stored = replace(at(3, 18), store=OffsetStore("0f", "/data/store"))
    assert json.dumps(stored.to_json()) == (
        '{"ledgers": {"public/default/persistent/orders": {"entry": 18, "id": "i", "ledger": 3}}, '
        '"store": {"at": "/data/store", "id": "0f"}, "v": 1}'
    )
    assert through_text(moved_to(stored, Position(4, 2))).store == stored.store
    moved = moved_to(at(3, 18, initial=True), Position(4, 2))
    assert list(moved.to_json()) == ["from", "ledgers", "v"]


@given(st.integers(-1, 2**62), st.integers(0, 2**62), st.booleans(), st.text(max_size=40))
def test_an_offset_survives_text(ledger: int, entry: int, initial: bool, incarnation: str) -> None:
    offset = at(ledger, entry, initial=initial, incarnation=incarnation)
    assert through_text(offset) == offset
    assert json.dumps(through_text(offset).to_json()) == json.dumps(offset.to_json())


def test_an_ordinary_batch_is_the_range_between() -> None:
    start = at(3, 18)
    end = moved_to(start, Position(4, 2))
    assert batch_range(through_text(start), through_text(end)) == PositionRange(Position(3, 18), Position(4, 2))
    assert end.start_positions == {}


def test_a_repeated_first_batch_begins_where_it_began_then() -> None:
    """A new process computes a later `latest` than the logged end. The entries in between must not be lost."""
    end = through_text(moved_to(at(3, 10, initial=True), Position(3, 20)))
    for recomputed in (at(3, 10, initial=True), at(3, 500, initial=True), at(9, 0, initial=True)):
        assert batch_range(recomputed, end) == PositionRange(Position(3, 10), Position(3, 20))


def test_a_first_batch_without_rows_holds_nothing_wherever_it_is_repeated() -> None:
    assert not batch_range(at(3, 500, initial=True), at(3, 10, initial=True))


def test_a_batch_that_starts_where_an_empty_first_batch_ended() -> None:
    first_end = at(3, 10, initial=True)
    second_end = moved_to(first_end, Position(3, 12))
    assert batch_range(first_end, second_end) == PositionRange(Position(3, 10), Position(3, 12))
    third_end = moved_to(second_end, Position(3, 15))
    assert batch_range(second_end, third_end) == PositionRange(Position(3, 12), Position(3, 15))


def test_a_range_that_runs_backwards_raises() -> None:
    with pytest.raises(Corrupt, match=r"begins at 3:500 and ends before it, at 3:20"):
        batch_range(at(3, 500), at(3, 20))


def test_what_is_not_ours_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match=r"version 2.*versions 1 and 2"):
        StreamOffset.from_json({"v": 2})
    with pytest.raises(Corrupt, match="cannot be read"):
        StreamOffset.from_json({"v": 1, "ledgers": {NAME: {"entry": 1}}})
    with pytest.raises(Corrupt, match="cannot be read"):
        StreamOffset.from_json({**at(3, 1).to_json(), "store": {"id": "0f"}})
    with pytest.raises(Refused, match=r"orders.*t/n/persistent/other"):
        require_addressed(at(3, 1), [], "t/n/persistent/other")
    with pytest.raises(Corrupt, match="incarnation i and ends in incarnation j"):
        batch_range(at(3, 1), at(3, 2, incarnation="j"))


OTHER = "public/default/persistent/other"


def test_batch_ranges_are_per_ledger_and_omit_unchanged_ledgers() -> None:
    start = StreamOffset({NAME: LedgerOffset(Position(3, 1), "i"), OTHER: LedgerOffset(Position(4, 0), "j")})
    end = through_text(start.advanced({OTHER: LedgerOffset(Position(4, 9), "j")}))
    (found,) = batch_ranges(through_text(start), end)
    assert (found.ledger, found.incarnation, found.range) == (OTHER, "j", PositionRange(Position(4, 0), Position(4, 9)))


def test_a_ledger_found_while_running_begins_where_its_first_batch_says() -> None:
    found = {OTHER: LedgerOffset(Position(5, 2), "j")}
    end = through_text(at(3, 1).advanced(found, {OTHER: Position(5, 0)}))
    assert list(end.to_json()) == ["from", "ledgers", "v"]
    assert [one.range for one in batch_ranges(at(3, 1), end)] == [PositionRange(Position(5, 0), Position(5, 2))]
    later = through_text(end.advanced({OTHER: LedgerOffset(Position(5, 7), "j")}))
    assert [one.range for one in batch_ranges(end, later)] == [PositionRange(Position(5, 2), Position(5, 7))]
    # Without a start in the checkpoint, the ledger is read from its beginning.
    bare = StreamOffset({**at(3, 1).ledgers, **found})
    assert [one.range.start for one in batch_ranges(at(3, 1), bare)] == [Position(-1, -1)]


def test_batch_ranges_after_loss_or_recreation_start_where_the_batch_says() -> None:
    again = {NAME: LedgerOffset(Position(9, 4), "k")}
    end = through_text(at(3, 500).advanced(again, {NAME: Position(9, 0)}))
    (found,) = batch_ranges(at(3, 500), end)
    assert (found.incarnation, found.range) == ("k", PositionRange(Position(9, 0), Position(9, 4)))


def test_one_that_is_gone_is_in_no_batch() -> None:
    start = StreamOffset({NAME: LedgerOffset(Position(3, 1), "i"), OTHER: LedgerOffset(Position(4, 0), "j")})
    end = start.advanced({OTHER: LedgerOffset(Position(4, 1), "j")}, deleted={NAME})
    assert [one.ledger for one in batch_ranges(start, end)] == [OTHER]
    assert list(end.ledgers) == [OTHER]


@given(st.text(max_size=40), st.integers(-1, 2**62), st.dictionaries(st.text(max_size=9), st.integers(0, 2**62)))
def test_a_table_in_an_offset_survives_text(table_id: str, version: int, up_to: dict[str, int]) -> None:
    pin = HistoryPin(table_id, version, up_to if version >= 0 else {})
    offset = replace(moved_to(at(3, 18, initial=True), Position(4, 2)), history=pin)
    assert through_text(offset) == offset
    assert list(offset.to_json()) == ["from", "history", "ledgers", "v"]


def test_a_batch_of_a_table_is_refused_where_no_table_is_read() -> None:
    end = replace(at(4, 2), history=HistoryPin("a table", 7, {NAME: 3}))
    with pytest.raises(Refused, match="reads version 7 of table a table, and the query names no table"):
        require_no_table(end)
    require_no_table(replace(end, history=HistoryPin("a table")))
    told = end.to_json()
    for wrong in ({**told, "v": 1}, {name: part for name, part in told.items() if name != "history"}):
        with pytest.raises(Unsupported, match="this release reads versions 1 and 2"):
            StreamOffset.from_json(wrong)
