"""Goal: a position set is a set, for any order of changes. Method: seeded random steps beside a plain Python set of
rows, with the invariants checked after each. Then Pulsar's own cases for its range sets, one by one.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions import bitset
from pyspark_ledger.ledger.positions.partial_entries import NO_ROWS, BatchRows
from pyspark_ledger.ledger.positions.position_set import ENTRY_ID_MAX, PositionSet, split_range
from tests.rigs.positions import check_positions, contains_row, left_after

LEDGERS, ENTRIES, ROWS = 4, 150, 70


def array(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def of_ranges(*ranges: tuple[int, int, int]) -> PositionSet:
    """From open-closed ranges of one ledger, as Pulsar writes them."""
    made = PositionSet()
    for ledger_id, lower, upper in ranges:
        made.add_run(ledger_id, lower + 1, upper + 1)
    return made


def shown(found: PositionSet) -> list[tuple[int, int, int]]:
    return [(runs.ledger_id, int(a) - 1, int(b) - 1) for runs in found.runs() for a, b in zip(*runs[1:], strict=True)]


class Model:
    """Rows as a plain set of (ledger, entry, row)."""

    def __init__(self) -> None:
        self.rows: set[tuple[int, int, int]] = set()

    def sizes(self, entries: np.ndarray) -> np.ndarray:
        return 1 + entries * 7 % ROWS

    def add_entry(self, ledger_id: int, entry: int) -> None:
        self.rows |= {(ledger_id, entry, row) for row in range(int(self.sizes(array(entry))[0]))}

    def whole(self, ledger_id: int, entry: int) -> bool:
        return all((ledger_id, entry, row) in self.rows for row in range(int(self.sizes(array(entry))[0])))

    def take_step(self, dice: random.Random, ours: PositionSet) -> None:
        """Take a random step on both sets."""
        ledger_id = dice.randrange(LEDGERS)
        numbers = [dice.randrange(ENTRIES) for _ in range(dice.randrange(12))]
        entries = np.array(numbers, dtype=np.int64)
        kind = dice.choice(["entries", "run", "rows", "rows", "words", "update", *["trim"] * (dice.random() < 0.2)])
        if kind == "rows":
            self.add_rows(dice, ours, ledger_id, np.unique(entries))
            return
        if kind == "trim":
            floor = Position(ledger_id, dice.randrange(ENTRIES))
            ours.trim_below(floor)
            self.rows = {one for one in self.rows if one[:2] >= (floor.ledger_id, floor.entry_id)}
            return
        if kind == "run":
            start = dice.randrange(ENTRIES)
            numbers = list(range(start, min(start + dice.randrange(20), ENTRIES)))
            ours.add_run(ledger_id, start, start + len(numbers))
        elif kind == "words":
            ours.add_words(ledger_id, bitset.of_ranges(entries, entries + 1))
        elif kind == "entries":
            ours.add_entries(ledger_id, entries)
        else:
            other = PositionSet()
            other.add_entries(ledger_id, entries)
            ours.update(other)
        for entry in numbers:
            self.add_entry(ledger_id, entry)

    def add_rows(self, dice: random.Random, ours: PositionSet, ledger_id: int, entries: np.ndarray) -> None:
        sizes = self.sizes(entries)
        pairs = [(at, row) for at, size in enumerate(sizes) for row in range(size) if dice.random() < 0.7]
        owner, rows = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        ours.add_rows(ledger_id, left_after(entries, sizes, owner, rows))
        self.rows |= {(ledger_id, int(entries[at]), row) for at, row in pairs}


@pytest.mark.parametrize("seed", range(6))
def test_random_steps_beside_a_plain_set(seed: int) -> None:
    dice, model, ours = random.Random(seed), Model(), PositionSet()
    for _ in range(120):
        model.take_step(dice, ours)
        check_positions(ours)
    for ledger_id in range(LEDGERS):
        whole = [model.whole(ledger_id, entry) for entry in range(ENTRIES)]
        found = ours.contains_entries(ledger_id, np.arange(-3, ENTRIES + 3))
        assert found.tolist() == [False] * 3 + whole + [False] * 3
        for entry in range(ENTRIES):
            assert ours.contains(Position(ledger_id, entry)) == whole[entry]
            for row in range(int(model.sizes(array(entry))[0])):
                assert contains_row(ours, Position(ledger_id, entry), row) == ((ledger_id, entry, row) in model.rows)
            wanted = next(e for e in range(entry, ENTRIES + 1) if e == ENTRIES or not whole[e])
            assert ours.next_missing(Position(ledger_id, entry)).entry_id == wanted
    assert ours.entry_count() == sum(model.whole(a, b) for a in range(LEDGERS) for b in range(ENTRIES))
    assert ours.range_count() == len(shown(ours))


def test_adding_is_idempotent_and_in_any_order_the_same() -> None:
    steps = [(1, 3, 9), (2, 0, 4), (1, 8, 12), (1, 20, 21), (2, -1, 2)]
    forth, back, twice = of_ranges(*steps), of_ranges(*reversed(steps)), of_ranges(*steps, *steps)
    assert forth == back == twice
    assert forth != of_ranges(*steps[:-1])
    assert (forth == "a set") is False


def test_add_for_same_key() -> None:
    assert shown(of_ranges((0, 0, 9), (0, 12, 20), (0, 9, 12))) == [(0, 0, 20)]
    assert shown(of_ranges((0, 0, 98), (0, 98, 99), (0, 104, 105))) == [(0, 0, 99), (0, 104, 105)]


def test_add_for_different_key() -> None:
    made = of_ranges((0, 97, 98), (0, 99, 105), (1, 4, 5), (2, -1, 0))
    assert shown(made) == [(0, 97, 98), (0, 99, 105), (1, 4, 5), (2, -1, 0)]


def test_delete_with_at_most() -> None:
    made = of_ranges((0, 98, 99), (0, 100, 105), (1, 1, 5), (2, 14, 20))
    made.trim_below(Position(1, 4))
    assert shown(made) == [(1, 3, 5), (2, 14, 20)]
    made.trim_below(Position(9, 0))
    assert not made


def test_to_string_of_many_ledgers_is_in_order() -> None:
    assert [run[0] for run in shown(of_ranges((5, 0, 1), (1, 0, 1), (3, 0, 1)))] == [1, 3, 5]


def test_a_copy_is_another_set() -> None:
    one = of_ranges((0, 0, 5))
    other = one.copy()
    other.add_run(0, 10, 12)
    assert shown(one) == [(0, 0, 5)]


def test_individual_deletes_that_cross_ledgers_are_split() -> None:
    ledgers = [(1, 100), (3, 50), (5, 0), (10, 7)]

    def split(*ends: int) -> list[str]:
        return [str(one) for one in split_range(Position(ends[0], ends[1]), Position(ends[2], ends[3]), ledgers)]

    assert split(1, 10, 1, 20) == ["[1:11, 1:21)"]
    assert split(1, 10, 3, 0) == ["[1:11, 1:100)", "[3:0, 3:1)"]
    assert split(1, 20, 10, 2) == ["[1:21, 1:100)", "[3:0, 3:50)", "[10:0, 10:3)"]
    assert split(1, 99, 3, 5) == ["[3:0, 3:6)"]
    # A ledger that was trimmed meanwhile has nothing to add.
    assert split(0, 5, 1, 4) == ["[1:0, 1:5)"]


def test_an_id_that_is_none_is_refused_and_changes_nothing() -> None:
    made = of_ranges((0, 0, 5))
    for wrong in (-1, ENTRY_ID_MAX + 1):
        with pytest.raises(Refused, match=f"ledger 0 has no entry {wrong}"):
            made.add_entries(0, array(3, wrong))
    assert made == of_ranges((0, 0, 5))


def test_what_is_left_of_an_entry_meets() -> None:
    entries = array(4, 9)
    first = left_after(entries, array(3, 130), array(0, 1, 1), array(1, 0, 129))
    second = left_after(array(9), array(130), array(0), array(64))
    met = first.intersection(second)
    assert met.left_counts().tolist() == [2, 127]
    done, left = met.intersection(left_after(array(4), array(3), array(0, 0), array(0, 2))).divided()
    assert done.tolist() == [4]
    assert left.entries.tolist() == [9]
    assert len(NO_ROWS.intersection(first)) == len(first.intersection(NO_ROWS)) == 2


def test_an_entry_stated_twice_is_left_as_both_say() -> None:
    words = [np.array([0b0111], np.uint64), np.array([0b1110], np.uint64), np.array([1], np.uint64)]
    made = BatchRows.of_pieces(array(5, 5, 2), words)
    assert made.entries.tolist() == [2, 5]
    assert made.left_counts().tolist() == [1, 2]


@pytest.mark.parametrize("size", [1, 63, 64, 65, 127, 128, 129, 4096])
def test_runs_and_ranges_are_inverse_at_every_edge(size: int) -> None:
    dice = np.random.default_rng(size)
    for density in (0.0, 0.03, 0.5, 0.97, 1.0):
        flags = dice.random(size) < density
        words = bitset.of_flags(flags)
        starts, ends = bitset.runs(words)
        assert np.array_equal(bitset.flags(words)[:size], flags)
        assert np.array_equal(bitset.of_ranges(starts, ends), bitset.trimmed(words))
        assert bitset.count(words) == int(flags.sum()) == int(bitset.counts(words).sum())
        assert bitset.run_count(words) == len(starts)
        single = np.zeros_like(words)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            bitset.put_run(single, start, end)
        assert np.array_equal(single, words)


def test_ranges_may_overlap_and_stand_in_any_order() -> None:
    words = bitset.of_ranges(array(500, 10, 12, 10, 3), array(900, 300, 20, 10, 4))
    assert bitset.members(words).tolist() == [3, *range(10, 300), *range(500, 900)]
