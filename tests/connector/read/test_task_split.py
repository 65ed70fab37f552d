"""Goal: tasks cover ranges exactly, and small reads have few tasks. Method: logs of sizes, split as the broker does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.connector.read.offsets import LedgerRange
from pyspark_ledger.connector.read.task_split import SizedRange, part_bytes, plan_tasks
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import SplitPart, SplitRequest

MIB = 1024 * 1024


class SizesLogs:
    """Logs by the bytes of their entries, split as coarsely as the broker may."""

    def __init__(self, *logs: list[int]) -> None:
        self.logs = {f"log{number:04}": sizes for number, sizes in enumerate(logs)}
        self.calls = 0

    @property
    def ranges(self) -> list[SizedRange]:
        return [
            SizedRange(
                LedgerRange(name, "i", PositionRange(Position(0, 0), Position(0, len(sizes)))), len(sizes), sum(sizes)
            )
            for name, sizes in self.logs.items()
        ]

    def split(self, requests: Sequence[SplitRequest]) -> list[list[SplitPart]]:
        self.calls += 1
        return [self._cut(request) for request in requests]

    def _cut(self, request: SplitRequest) -> list[SplitPart]:
        sizes = self.logs[request.name]
        edges, filled = [0], 0
        for entry, size in enumerate(sizes):
            if filled >= request.target_bytes:
                edges.append(entry)
                filled = 0
            filled += size
        edges.append(len(sizes))
        return [
            SplitPart(PositionRange(Position(0, a), Position(0, b)), b - a, b - a, sum(sizes[a:b]))
            for a, b in pairwise(edges)
        ]

    def plan(self, least: int, target: int) -> list[list[LedgerRange]]:
        return plan_tasks(self.ranges, least, target, self.split)


@given(st.lists(st.lists(st.integers(1, 1000), max_size=30), max_size=12), st.integers(1, 5000), st.integers(0, 5000))
def test_tasks_are_exactly_the_ranges(sizes: list[list[int]], least: int, more: int) -> None:
    logs = SizesLogs(*sizes)
    tasks = logs.plan(least, least + more)
    assert all(tasks)
    for name, entries in logs.logs.items():
        parts = [one.range for task in tasks for one in task if one.ledger == name]
        edges = [0, *(part.end.entry_id for part in parts)]
        assert [part.start.entry_id for part in parts] == edges[:-1]
        assert edges[-1] == len(entries)
    assert logs.plan(least, least + more) == tasks


def test_little_is_one_task_and_much_is_cut_by_size() -> None:
    assert part_bytes(8 * MIB, 8 * MIB, 64 * MIB) == 8 * MIB
    assert part_bytes(64 * MIB, 8 * MIB, 64 * MIB) == 16 * MIB
    assert part_bytes(10_000 * MIB, 8 * MIB, 64 * MIB) == 64 * MIB
    assert len(SizesLogs([MIB] * 8).plan(8 * MIB, 64 * MIB)) == 1
    assert len(SizesLogs([MIB] * 640).plan(8 * MIB, 64 * MIB)) == 10


def test_a_thousand_small_ledgers_share_few_tasks_and_cost_no_question() -> None:
    logs = SizesLogs(*[[64 * 1024]] * 1000)
    tasks = logs.plan(8 * MIB, 64 * MIB)
    assert (len(tasks), logs.calls) == (4, 0)
    assert max(map(len, tasks)) - min(map(len, tasks)) < 20
    assert len(SizesLogs(*[[1024]] * 1000).plan(8 * MIB, 64 * MIB)) == 1


def test_a_large_ledger_is_cut_and_small_ones_share_in_one_question() -> None:
    logs = SizesLogs([MIB] * 60, *[[1024]] * 10)
    tasks = logs.plan(8 * MIB, 64 * MIB)
    assert (len(tasks), logs.calls) == (4, 1)
    assert [len(task) for task in tasks] == [1, 1, 1, 11]


def test_an_empty_range_has_no_task() -> None:
    assert SizesLogs([], []).plan(1, 1) == []
