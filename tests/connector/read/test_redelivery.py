"""Goal: new and redelivered rows share a batch's limits, and neither side starves. Method: random values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.connector.read.limits import LedgerBacklog, Limits
from pyspark_ledger.connector.read.redelivery import SplitLimits, split_limits
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.cursors import Due

RANGE = PositionRange(Position(0, 0), Position(1, 0))
sides = st.tuples(st.integers(0, 50), st.integers(1, 9)).map(lambda side: (side[0], min(side)))


def new(rows: int, head: int) -> LedgerBacklog:
    return LedgerBacklog("log", RANGE, rows, rows, rows * 10, head, head * 10, 1)


def back(rows: int, head: int) -> Due:
    return Due(rows, rows * 10, head, head * 10)


@given(sides, sides, st.integers(1, 60), st.booleans())
def test_a_batch_keeps_its_limit_and_both_sides_come(
    fresh: tuple[int, int], due: tuple[int, int], most: int, new_first: bool
) -> None:
    limits = Limits(most, 10 * most)
    found = split_limits(limits, [new(*fresh)], {"log": back(*due)}, new_first=new_first)
    if not fresh[0] or not due[0]:
        assert found == SplitLimits(limits, limits)
    elif found.alternates:
        assert (found.new, found.redelivered) == ((limits, None) if new_first else (None, limits))
    else:
        assert found.new is not None
        assert found.redelivered is not None
        assert found.new.rows_max + found.redelivered.rows_max <= most
        assert found.new.rows_max >= fresh[1]
        assert found.redelivered.rows_max >= due[1]


def test_what_one_side_leaves_the_other_takes() -> None:
    assert split_limits(Limits(rows=10), [new(100, 1)], {"log": back(2, 1)}, new_first=True)[:2] == (
        Limits(8, 1000),
        Limits(2, 20),
    )


def test_without_a_limit_there_is_none() -> None:
    assert split_limits(Limits(), [new(9, 9)], {"log": back(9, 9)}, new_first=True) == SplitLimits(Limits(), Limits())
