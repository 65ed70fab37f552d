"""Goal: cursors are counted where they stand. Method: the cases of Pulsar's ActiveManagedCursorContainer by name, and
random moves beside a dictionary. What Java retains of removed nodes, here is a note of the move, bounded.
"""

from __future__ import annotations

import random

import pytest

from pyspark_ledger.ledger.cache.expected_reads import ActiveCursors
from pyspark_ledger.ledger.position import Position


@pytest.fixture
def cursors() -> ActiveCursors:
    return ActiveCursors()


def at(entry: int) -> Position:
    return Position(entry // 100, entry % 100)


def test_adding_in_reverse_order(cursors: ActiveCursors) -> None:
    for entry in (300, 200, 100):
        cursors.place(f"c{entry}", at(entry))
    assert cursors.slowest() == at(100)
    assert cursors.places() == [at(100), at(200), at(300)]
    assert [cursors.at_or_before(at(entry)) for entry in (100, 200, 300)] == [1, 2, 3]


def test_adding_multiple_with_same_position(cursors: ActiveCursors) -> None:
    for name in "abc":
        cursors.place(name, at(5))
    assert cursors.places() == [at(5)]
    assert (cursors.at_or_before(at(4)), cursors.at_or_before(at(5))) == (0, 3)


def test_count_number_of_cursors_at_same_position_or_before(cursors: ActiveCursors) -> None:
    order = list(range(1000))
    random.Random(7).shuffle(order)
    for rank in order:
        cursors.place(f"c{rank}", at(rank))
    assert [cursors.at_or_before(at(rank)) for rank in range(1000)] == list(range(1, 1001))
    cursors.place("c500", at(5000))
    assert [cursors.at_or_before(at(rank)) for rank in (499, 501, 999, 5000)] == [500, 501, 999, 1000]


def test_unknown_and_removed_cursors_count_nowhere(cursors: ActiveCursors) -> None:
    assert (cursors.slowest(), len(cursors)) == (None, 0)
    cursors.remove("a")
    cursors.place("a", at(1))
    cursors.remove("a")
    cursors.place("a", at(3))
    cursors.remove("a")
    assert (cursors.at_or_before(at(9)), cursors.places()) == (0, [])


@pytest.mark.parametrize("forward", [True, False])
def test_random_seeking(cursors: ActiveCursors, forward: bool) -> None:
    dice, model = random.Random(forward), dict[str, int]()
    for step in range(5000):
        name = f"c{dice.randrange(40)}"
        if dice.random() < 0.05:
            model.pop(name, None)
            cursors.remove(name)
        else:
            model[name] = model.get(name, 0) + dice.randrange(9) if forward else dice.randrange(500)
            cursors.place(name, at(model[name]))
        assert len(cursors) == len(model)
        if step % dice.choice([1, 3, 50]):
            continue
        asked = dice.randrange(600)
        before = [place for place in model.values() if place <= asked]
        assert cursors.at_or_before(at(asked)) == len(before)
        assert cursors.slowest() == (at(min(model.values())) if model else None)
        assert cursors.places() == [at(place) for place in sorted(set(model.values()))]


def test_pending_moves_are_bounded_without_questions() -> None:
    cursors = ActiveCursors()
    for number in range(10_000):
        cursors.place(f"c{number}", at(number))
        cursors.remove(f"c{number}")
    assert len(cursors._moved) <= 17
    assert cursors.places() == []


def test_flushed_untracking_remains_untracked_and_retracking_counts_again(cursors: ActiveCursors) -> None:
    for number in range(10):
        cursors.place(f"c{number}", at(number))
    cursors.remove("c4")
    assert cursors.at_or_before(at(9)) == 9
    cursors.place("c5", at(7))
    assert cursors.at_or_before(at(9)) == 9
    cursors.place("c4", at(1))
    assert cursors.at_or_before(at(1)) == 3


def test_the_last_removal_leaves_nothing(cursors: ActiveCursors) -> None:
    for number in range(100):
        cursors.place(f"c{number}", at(number))
    assert cursors.slowest() == at(0)
    for number in range(100):
        cursors.remove(f"c{number}")
    assert (len(cursors), cursors.places(), cursors.slowest()) == (0, [], None)
    assert not cursors._moved
