"""Goal: a batch keeps its limits, always makes progress, and starves no ledger.

Method: logs of sizes and times, split as the broker does; random limits and long runs of batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.connector.read.limits import Delay, LedgerBacklog, Limits, admit_rows, fair_shares
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import LimitedRange, SplitPart

Entry = tuple[int, int, int]  # rows, bytes, ms


@dataclass
class Logs:
    """Entries by ledger, and the read position of each."""

    entries: dict[str, list[Entry]]
    at: dict[str, int] = field(default_factory=dict)
    calls: int = 0

    def part(self, name: str, first: int, end: int) -> SplitPart:
        held = self.entries[name][first:end]
        range_ = PositionRange(Position(0, first), Position(0, end))
        return SplitPart(range_, len(held), sum(entry[0] for entry in held), sum(entry[1] for entry in held))

    def waiting(self) -> list[LedgerBacklog]:
        return [self.backlog(name) for name in sorted(self.entries)]

    def backlog(self, name: str) -> LedgerBacklog:
        first, entries = self.at.get(name, 0), self.entries[name]
        whole = self.part(name, first, len(entries))
        head = next((i for i in range(first, len(entries)) if entries[i][0]), None)
        if head is None:
            return LedgerBacklog(name, whole.range, whole.entries, 0, whole.size_bytes, 0, 0, 0)
        begin = self.part(name, first, head + 1)
        return LedgerBacklog(
            name,
            whole.range,
            whole.entries,
            whole.rows,
            whole.size_bytes,
            begin.rows,
            begin.size_bytes,
            entries[head][2],
        )

    def ask(self, quotas: Sequence[LimitedRange]) -> list[SplitPart]:
        self.calls += 1
        found = []
        for quota in quotas:
            first, most = quota.range.start.entry_id, quota.range.end.entry_id
            parts = [self.part(quota.name, first, end) for end in range(first, most + 1)]
            found.append(
                max(
                    (p for p in parts if p.rows <= quota.rows and p.size_bytes <= quota.size_bytes),
                    key=lambda p: p.entries,
                )
            )
        return found

    def batch(self, limits: Limits) -> dict[str, SplitPart]:
        taken, _ = admit_rows(self.waiting(), limits, self.ask)
        self.at |= {name: part.range.end.entry_id for name, part in taken.items()}
        return taken


entries = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 100), st.integers(0, 50)), max_size=12)
logs = st.dictionaries(st.sampled_from("abcdefgh"), entries, min_size=1)
limits = st.builds(Limits, st.one_of(st.none(), st.integers(1, 60)), st.one_of(st.none(), st.integers(1, 400)))


@given(logs, limits)
def test_split_by_limit_takes_the_oldest_entry_and_reads_all_in_the_end(
    given_entries: dict[str, list[Entry]], limits: Limits
) -> None:
    held = Logs({name: sorted(found, key=lambda entry: entry[2]) for name, found in given_entries.items()})
    while any(one.rows for one in held.waiting()):
        before = held.waiting()
        oldest = min((one for one in before if one.rows), key=lambda one: (one.head_ms, one.ledger))
        taken = held.batch(limits)
        assert taken[oldest.ledger].rows >= oldest.head_rows, "the oldest entry is always in it"
        rows, size = sum(p.rows for p in taken.values()), sum(p.size_bytes for p in taken.values())
        assert limits.allow(rows, size) or (list(taken) == [oldest.ledger] and rows == oldest.head_rows)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 1000)), min_size=1, max_size=80),
    st.one_of(st.none(), st.integers(1, 200)),
    st.one_of(st.none(), st.integers(1, 3000)),
)
def test_of_one_ledger_it_is_the_longest_prefix(
    sizes: list[tuple[int, int]], rows: int | None, size: int | None
) -> None:
    held, limits = Logs({"a": [(*entry, 1) for entry in sizes]}), Limits(rows, size)
    if not held.backlog("a").rows:
        return
    end = held.batch(limits)["a"].range.end.entry_id
    parts = [held.part("a", 0, n) for n in range(1, len(sizes) + 1)]
    fits = [part.entries for part in parts if limits.allow(part.rows, part.size_bytes)]
    head = next(n for n, entry in enumerate(sizes, 1) if entry[0])
    # The batch may also contain entries without rows after the last row.
    assert held.part("a", 0, end).rows == held.part("a", 0, max(max(fits, default=0), head)).rows


@pytest.mark.thorough
def test_a_small_ledger_is_read_to_its_end_beside_large_ones() -> None:
    held = Logs({"small": [(1, 10, 90)] * 3, **{name: [(1, 10, 1)] * 10_000 for name in "abc"}})
    taken = held.batch(Limits(rows=1000))
    assert {name: part.rows for name, part in taken.items()} == {"small": 3, "a": 333, "b": 332, "c": 332}


def test_an_entry_larger_than_its_share_does_not_wait_for_ever() -> None:
    held = Logs({"large": [(1000, 10, 5)] * 3, **{name: [(1, 10, ms) for ms in range(2000)] for name in "abc"}})
    batches = 0
    while held.at.get("large", 0) < 3:
        held.batch(Limits(rows=1000))
        batches += 1
    assert batches <= 12


def test_shares_below_an_entry_are_turns_by_age() -> None:
    held = Logs({f"log{n:03}": [(1, 10, n + 100 * at) for at in range(3)] for n in range(100)})
    first, second = held.batch(Limits(rows=40)), held.batch(Limits(rows=40))
    assert sorted(first) == [f"log{n:03}" for n in range(40)]
    assert sorted(second) == [f"log{n:03}" for n in range(40, 80)]
    assert held.calls <= 4


def test_all_that_is_there_is_no_question() -> None:
    held = Logs({"a": [(5, 5, 1)], "b": [(5, 5, 2)]})
    assert sum(part.rows for part in held.batch(Limits(rows=10)).values()) == 10
    assert held.calls == 0
    assert admit_rows(held.waiting(), Limits(), held.ask) == ({}, "nothing")


def test_the_reason_is_told() -> None:
    held = Logs({"a": [(5, 5, 1)] * 4})
    assert [admit_rows(held.waiting(), Limits(rows=most), held.ask)[1] for most in (20, 10, 1)] == [
        "everything", "limits", "one entry",
    ]  # fmt: skip


@given(st.lists(st.integers(0, 100), min_size=1), st.integers(0, 1000))
def test_shares_are_within_needs_and_budget_and_equal_but_for_needs(needs: list[int], budget: int) -> None:
    shares = fair_shares(needs, budget)
    assert sum(shares) == min(sum(needs), budget)
    assert all(share <= need for share, need in zip(shares, needs, strict=True))
    most = max(shares)
    assert all(share >= most - 1 for share, need in zip(shares, needs, strict=True) if share < need)


def test_a_batch_waits_for_rows_until_the_oldest_has_waited_long_enough() -> None:
    waiting, delay = Logs({"a": [(1, 1, 1000)] * 5, "b": []}).waiting(), Delay(6, 500)
    assert delay.must_wait(waiting, 1499)
    assert not delay.must_wait(waiting, 1500)
    assert not delay.must_wait(waiting, 900), "a clock that went back holds nobody up"
    assert not Delay(5, 500).must_wait(waiting, 1000)
    assert not Delay().must_wait(waiting, 1000)
    assert not Delay(6, 500).must_wait(Logs({"b": []}).waiting(), 0)
