"""Goal: a stream's place survives text, restarts and a repeated first batch. Method: offsets as JSON, by hand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connector.offsets import LedgerOffset, StreamOffset, batch_range
from ledger.errors import Corrupt, Refused, Unsupported
from ledger.position import Position, PositionRange

NAME = "public/default/persistent/orders"


def at(ledger: int, entry: int, *, initial: bool = False, incarnation: str = "i") -> StreamOffset:
    return StreamOffset({NAME: LedgerOffset(Position(ledger, entry), incarnation)}, initial)


def through_text(offset: StreamOffset) -> StreamOffset:
    return StreamOffset.from_json(json.loads(json.dumps(offset.to_json())))


def test_the_text_is_canonical_and_small() -> None:
    assert json.dumps(at(3, 18).to_json()) == (
        '{"ledgers": {"public/default/persistent/orders": {"entry": 18, "id": "i", "ledger": 3}}, "v": 1}'
    )
    moved = at(3, 18, initial=True).moved_to(NAME, Position(4, 2))
    assert list(moved.to_json()) == ["from", "ledgers", "v"]


@given(st.integers(-1, 2**62), st.integers(0, 2**62), st.booleans(), st.text(max_size=40))
def test_an_offset_survives_text(ledger: int, entry: int, initial: bool, incarnation: str) -> None:
    offset = at(ledger, entry, initial=initial, incarnation=incarnation)
    assert through_text(offset) == offset
    assert json.dumps(through_text(offset).to_json()) == json.dumps(offset.to_json())


def test_an_ordinary_batch_is_the_range_between() -> None:
    start = at(3, 18)
    end = start.moved_to(NAME, Position(4, 2))
    assert batch_range(NAME, through_text(start), through_text(end)) == PositionRange(Position(3, 18), Position(4, 2))
    assert end.began == {}


def test_a_repeated_first_batch_begins_where_it_began_then() -> None:
    """A new process computes `latest` anew, beyond the logged end: what lies between must not be lost."""
    end = through_text(at(3, 10, initial=True).moved_to(NAME, Position(3, 20)))
    for recomputed in (at(3, 10, initial=True), at(3, 500, initial=True), at(9, 0, initial=True)):
        assert batch_range(NAME, recomputed, end) == PositionRange(Position(3, 10), Position(3, 20))


def test_a_first_batch_without_rows_holds_nothing_wherever_it_is_repeated() -> None:
    assert not batch_range(NAME, at(3, 500, initial=True), at(3, 10, initial=True))


def test_a_batch_that_starts_where_an_empty_first_batch_ended() -> None:
    first_end = at(3, 10, initial=True)
    second_end = first_end.moved_to(NAME, Position(3, 12))
    assert batch_range(NAME, first_end, second_end) == PositionRange(Position(3, 10), Position(3, 12))
    third_end = second_end.moved_to(NAME, Position(3, 15))
    assert batch_range(NAME, second_end, third_end) == PositionRange(Position(3, 12), Position(3, 15))


def test_a_range_that_runs_backwards_raises() -> None:
    with pytest.raises(Corrupt, match=r"begins at 3:500 and ends before it, at 3:20"):
        batch_range(NAME, at(3, 500), at(3, 20))


def test_what_is_not_ours_is_refused_by_name() -> None:
    with pytest.raises(Unsupported, match=r"version 2.*version 1"):
        StreamOffset.from_json({"v": 2})
    with pytest.raises(Corrupt, match="cannot be read"):
        StreamOffset.from_json({"v": 1, "ledgers": {NAME: {"entry": 1}}})
    with pytest.raises(Refused, match=r"orders.*t/n/persistent/other"):
        at(3, 1).of("t/n/persistent/other")
    with pytest.raises(Corrupt, match="incarnation i and ends in incarnation j"):
        batch_range(NAME, at(3, 1), at(3, 2, incarnation="j"))
