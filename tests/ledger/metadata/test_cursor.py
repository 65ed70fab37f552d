"""Goal: a cursor moves forward only, never past the end, and its lease is one process's. Method: tables, random moves
against a model of three numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord, Lease, cursor_info, next_position_of
from pyspark_ledger.ledger.position import Position

START, END = Position(3, 0), Position(9, 9)
positions = st.builds(Position, st.integers(-1, 10), st.integers(0, 10))


def cursor(at: Position = START, floor: Position | None = None, lease: Lease | None = None) -> CursorRecord:
    return CursorRecord("log", "c", at, floor, lease or Lease())


@given(st.lists(st.tuples(st.booleans(), positions, st.none() | positions), max_size=20))
def test_moves_agree_with_a_model(moves: list[tuple[bool, Position, Position | None]]) -> None:
    subject, at, floor = cursor(Position(-1, 0)), Position(-1, 0), None
    for resets, to, said in moves:
        if to > END or (not resets and said is not None and said > END):
            with pytest.raises(Refused, match=rf"the log ends at {END}"):
                subject.reset(to, END) if resets else subject.advance(to, END, said)
            continue
        if resets:
            subject = subject.reset(to, END)
            at, floor = to, None if floor is None else min(floor, to)
        else:
            subject = subject.advance(to, END, said)
            at = max(at, to)
            floor = said if floor is None else floor if said is None else max(floor, said)
        assert (subject.next_position, subject.replay_floor) == (at, floor)


@given(positions)
def test_what_pulsar_reads_is_the_last_acknowledged_entry(position: Position) -> None:
    info = cursor_info(cursor(position))
    assert (info.markDeleteLedgerId, info.markDeleteEntryId) == (position.ledger_id, position.entry_id - 1)
    assert info.cursorsLedgerId == -1
    assert next_position_of(info) == position


@pytest.mark.parametrize(
    ("held", "gone", "granted"),
    [
        (Lease(), False, True),
        (Lease("me", 2000), False, True),
        (Lease("other", 1001), False, False),
        (Lease("other", 1000), False, True),
        (Lease("other", 1001), True, True),
    ],
    ids=["free", "own", "held", "run out", "holder gone"],
)
def test_a_lease_is_granted_when_nobody_alive_has_it(held: Lease, gone: bool, granted: bool) -> None:
    before = cursor(lease=held)
    after, given_out = before.with_lease("me", 500, 1000, lambda _: gone)
    assert given_out == granted
    assert after.lease == (Lease("me", 1500) if granted else held)
    assert after.next_position == before.next_position


def test_only_the_holder_gives_a_lease_back() -> None:
    held = cursor(lease=Lease("me", 1000))
    assert held.without_lease("other") == held
    assert held.without_lease("me").lease == Lease("me")
