"""Goal: ranges of entries behave as sets of entries do. Method: random steps beside a plain set."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.entry_ranges import EntryRanges
from tests.rigs.cache_invariants import check_ranges

STEP = st.tuples(
    st.sampled_from(["add", "discard", "before"]), st.integers(0, 2), st.integers(0, 12), st.integers(0, 6)
)


@settings(max_examples=50)
@given(st.lists(STEP, max_size=30))
def test_ranges_are_sets_of_entries(steps: list[tuple[str, int, int, int]]) -> None:
    ranges, model = EntryRanges(), set[tuple[int, int]]()
    for kind, ledger_id, first, length in steps:
        entries = {(ledger_id, entry) for entry in range(first, first + length)}
        if kind == "add" and length:
            ranges.add(ledger_id, first, first + length)
            model |= entries
        elif kind == "discard" and length:
            ranges.discard(ledger_id, first, first + length)
            model -= entries
        elif kind == "before":
            ranges.discard_before(Position(ledger_id, first))
            model = {entry for entry in model if entry >= (ledger_id, first)}
        check_ranges(ranges)
        assert {(r.start.ledger_id, e) for r in ranges for e in range(r.start.entry_id, r.end.entry_id)} == model
        assert bool(ranges) == bool(model)
        assert ranges.covers(ledger_id, first, first + length) == (entries <= model)
        assert ranges.touches(ledger_id, first, first + length) == bool(entries & model)


def test_neighbours_become_one_range() -> None:
    ranges = EntryRanges()
    ranges.add(1, 0, 5)
    ranges.add(1, 5, 9)
    assert list(ranges) == [PositionRange(Position(1, 0), Position(1, 9))]
