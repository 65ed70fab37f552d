"""Goal: what is written together, synced together and written again follows from the order of events alone.

Method: a table of events without threads. A positive size is an append, a negative one is a run.
"""

from __future__ import annotations

from typing import cast

import pytest

from pyspark_ledger.ledger.log.groups import Groups
from pyspark_ledger.ledger.log.pending import CheckedEntry, Group, Item, PendingAppend, PendingRun, Room, Written
from pyspark_ledger.ledger.protocol.commits import CommitRun
from pyspark_ledger.ledger.segment.writer import SegmentWriter


def item(size: int) -> Item:
    if size < 0:
        return PendingRun(CommitRun("l", "q", 0, 1, 1, []), (), -size)
    return PendingAppend([CheckedEntry(b"", size, 1)], size)


def sizes(group: Group) -> list[int]:
    return [one.size for one in group] if isinstance(group, list) else [-cast("PendingRun", group).size]


def written(group: Group) -> Written:
    assert isinstance(group, list)
    return Written(cast("SegmentWriter", None), group, [], 0, 0)


@pytest.mark.parametrize(
    ("entries", "size", "put", "groups"),
    [
        (10, 100, [2, 3, 4], [[2, 3, 4]]),
        (2, 100, [2, 3, 4], [[2, 3], [4]]),
        (10, 5, [2, 3, 4], [[2, 3], [4]]),
        (0, 0, [2, 3], [[2], [3]]),  # the first append is taken in any case
        (10, 100, [2, -7, 3, -8, -9], [[2], [-7], [3], [-8], [-9]]),
        (10, 100, [], []),
    ],
)
def test_a_group_is_what_fits_or_a_run(entries: int, size: int, put: list[int], groups: list[list[int]]) -> None:
    plan, taken = Groups(), []
    for one in put:
        plan.put(item(one))
    while plan.waits:
        taken.append(sizes(plan.take(lambda: Room(entries, size))))
        plan.completed()
    assert taken == groups
    assert plan.take(lambda: Room(entries, size)) == []


@pytest.mark.parametrize(
    ("sync_bytes", "groups", "syncs"),
    [(0, [2, 3, 4], [[2, 3, 4]]), (5, [2, 3, 4], [[2, 3], [4]]), (1, [2, 3], [[2], [3]]), (4, [], [])],
)
def test_a_sync_covers_groups_until_they_are_large(sync_bytes: int, groups: list[int], syncs: list[list[int]]) -> None:
    plan, covered = Groups(), []
    for size in groups:
        plan.put(item(size))
        plan.wrote(written(plan.take(lambda: Room(10, 100))))
    plan.begin_sync(sync_bytes)
    while plan.syncing:
        covered.append([one.size for part in plan.syncing for one in part.group])
        plan.end_sync([])
        plan.begin_sync(sync_bytes)
    assert covered == syncs


def _in_flight() -> Groups:
    """Return groups where 1 is syncing, 2 is written behind it, and 3 is taken. A run and 5 wait."""
    plan = Groups()
    for size in (1, 2, 3, -4, 5):
        plan.put(item(size))
    plan.wrote(written(plan.take(lambda: Room(1, 100))))
    plan.begin_sync(0)
    plan.wrote(written(plan.take(lambda: Room(1, 100))))
    assert sizes(plan.take(lambda: Room(1, 100))) == [3]
    return plan


def test_groups_behind_a_failed_sync_are_taken_again_before_all_others() -> None:
    plan = _in_flight()
    plan.end_sync([one for part in plan.syncing for one in part.group])
    assert sizes(plan.take_retries()) == [1, 2]
    assert [one.size for one in plan.fail(syncing=False)] == [1, 2, 3, 4, 5], "no item is lost"


def test_unsynced_groups_are_taken_back_and_a_run_waits_again() -> None:
    plan = _in_flight()
    assert sizes(plan.take_back()) == [2]
    plan.completed()
    run = plan.take(lambda: Room(1, 100))
    assert isinstance(run, PendingRun)
    plan.end_sync([one for part in plan.syncing for one in part.group])
    assert sizes(plan.take_retries()) == [1]
    plan.put_back(run)
    plan.completed()
    assert [sizes(plan.take(lambda: Room(9, 100))) for _ in range(2)] == [[-4], [5]]


@pytest.mark.parametrize(("syncing", "failed", "left"), [(True, [1, 2, 4, 5], [3]), (False, [3, 2, 4, 5], [1])])
def test_a_stage_that_fails_returns_its_items_and_all_behind(syncing: bool, failed: list[int], left: list[int]) -> None:
    plan = _in_flight()
    assert [one.size for one in plan.fail(syncing=syncing)] == failed
    assert [one.size for one in plan.fail(syncing=not syncing)] == left
    assert not plan.waits
