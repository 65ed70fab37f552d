"""Goal: plans cover a range exactly, are few when small; limits hold. Method: a log of sizes, cut as a broker does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connector.read_plan import Limits, admitted_end, part_bytes, plan_partitions
from ledger.position import Position, PositionRange
from ledger.protocol import SplitPart

MIB = 1024 * 1024
Entries = list[tuple[int, int]]


class SizesLog:
    """Entries of one ledger, by rows and bytes; cuts as coarsely as the broker may."""

    def __init__(self, entries: list[tuple[int, int]]) -> None:
        self.entries = entries
        self.calls = 0

    @property
    def whole(self) -> PositionRange:
        return PositionRange(Position(0, 0), Position(0, len(self.entries)))

    def part(self, first: int, end: int) -> SplitPart:
        held = self.entries[first:end]
        return SplitPart(
            PositionRange(Position(0, first), Position(0, end)),
            len(held),
            sum(rows for rows, _ in held),
            sum(size for _, size in held),
        )

    def split(self, range_: PositionRange, target_bytes: int, max_parts: int) -> list[SplitPart]:
        self.calls += 1
        first, end = range_.start.entry_id, range_.end.entry_id
        target = max(target_bytes, -(-self.part(first, end).size_bytes // max_parts), 1)
        parts, begin, filled = [], first, 0
        for entry in range(first, end):
            if filled >= target:
                parts.append(self.part(begin, entry))
                begin, filled = entry, 0
            filled += self.entries[entry][1]
        return [*parts, self.part(begin, end)] if begin < end else parts


logs = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 1000)), min_size=1, max_size=80)


@given(logs, st.one_of(st.none(), st.integers(1, 200)), st.one_of(st.none(), st.integers(1, 3000)))
def test_a_limit_admits_the_longest_prefix_and_at_least_one_entry(
    entries: Entries, rows: int | None, size: int | None
) -> None:
    log, limits = SizesLog(entries), Limits(rows, size)
    end = admitted_end(log.split, log.whole, limits).entry_id
    fits = [n for n in range(1, len(entries) + 1) if limits.allow(log.part(0, n).rows, log.part(0, n).size_bytes)]
    assert end == max(fits, default=1)


def test_a_limit_is_found_in_few_questions() -> None:
    log = SizesLog([(10, 1000)] * 100_000)
    assert admitted_end(log.split, log.whole, Limits(rows=77_777)).entry_id == 7777
    assert log.calls < 10


def test_a_huge_entry_after_many_small_ones_is_left_for_the_next_batch() -> None:
    log = SizesLog([(1, 1)] * 50 + [(1, 10**9)])
    assert admitted_end(log.split, log.whole, Limits(size_bytes=100)).entry_id == 50


@given(logs, st.integers(1, 5000), st.integers(1, 5000))
def test_partitions_are_exactly_the_range(entries: Entries, least: int, more: int) -> None:
    log = SizesLog(entries)
    parts = plan_partitions(log.split, log.whole, least, least + more)
    assert [part.range.start for part in parts] == [log.whole.start, *(part.range.end for part in parts[:-1])]
    assert parts[-1].range.end == log.whole.end
    assert plan_partitions(log.split, log.whole, least, least + more) == parts


def test_little_is_one_partition_and_much_is_cut_by_size() -> None:
    assert part_bytes(8 * MIB, 8 * MIB, 64 * MIB) == 8 * MIB
    assert part_bytes(64 * MIB, 8 * MIB, 64 * MIB) == 16 * MIB
    assert part_bytes(10_000 * MIB, 8 * MIB, 64 * MIB) == 64 * MIB
    assert len(plan_partitions(SizesLog([(1, MIB)] * 8).split, SizesLog([(1, MIB)] * 8).whole, 8 * MIB, 64 * MIB)) == 1
    many = SizesLog([(1, MIB)] * 640)
    assert len(plan_partitions(many.split, many.whole, 8 * MIB, 64 * MIB)) == 10


def test_an_empty_range_has_no_partition() -> None:
    log = SizesLog([(1, 1)])
    assert plan_partitions(log.split, PositionRange(Position(0, 1), Position(0, 1)), 1, 1) == []
