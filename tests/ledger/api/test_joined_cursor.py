"""Goal: a cursor of several ledgers answers as one, and refuses what belongs to one ledger. Method: a real broker."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pyspark_ledger.ledger.api.joined_cursor import JoinedCursor
from pyspark_ledger.ledger.api.partitioned_ledger import PartitionedLedger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position


@pytest.fixture
def rides(store: LedgerStore) -> PartitionedLedger:
    """Two partitions with three entries of one row each."""
    rides = store.create_partitioned("rides", 2)
    for number in range(6):
        rides.append([{"id": number}])
    return rides


@pytest.fixture
def worker(rides: PartitionedLedger) -> JoinedCursor:
    return rides.cursor("worker")


def backlogs(cursor: JoinedCursor) -> list[int]:
    return [state.backlog_rows for state in cursor.state().ledgers.values()]


def test_cursor_exists_in_every_partition_with_a_state_of_each(store: LedgerStore, worker: JoinedCursor) -> None:
    state = worker.state()
    assert list(state.ledgers) == ["rides-partition-0", "rides-partition-1"]
    assert (state.backlog_rows, state.backlog_entries, backlogs(worker)) == (6, 6, [3, 3])
    assert state.backlog_bytes == sum(each.backlog_bytes for each in state.ledgers.values()) > 0
    assert worker.state(precise=False).backlog_rows == 6
    part = store.ledger("rides-partition-1").cursor("worker")
    part.skip(1)
    assert backlogs(worker) == [3, 2]
    assert [cursor.name for cursor in worker.cursors()] == ["worker", "worker"]


def test_start_is_for_new_cursors_only(rides: PartitionedLedger, store: LedgerStore) -> None:
    store.ledger("rides-partition-0").cursor("late")
    assert backlogs(rides.cursor("late", LATEST)) == [3, 0]
    first = store.ledger("rides-partition-0").end().start
    assert backlogs(rides.cursor("some", {"rides-partition-0": first.next()})) == [2, 3]


def test_acknowledge_and_reset_take_positions_of_batches(worker: JoinedCursor) -> None:
    with worker.batches(max_rows=1, wait=0) as batches:
        positions = {batch.ledger: batch.position for batch in (next(batches), next(batches))}
    worker.acknowledge(positions)
    assert backlogs(worker) == [2, 2]
    worker.reset(LATEST)
    assert backlogs(worker) == [0, 0]
    worker.reset({"rides-partition-1": positions["rides-partition-1"]})
    assert backlogs(worker) == [0, 2]
    worker.reset(EARLIEST)
    assert backlogs(worker) == [3, 3]
    assert set(worker.seek("2020-01-01T00:00:00Z")) == {"rides-partition-0", "rides-partition-1"}
    assert backlogs(worker) == [3, 3]


@pytest.mark.parametrize(
    ("position", "told"),
    [
        (Position(0, 1), "position is .*, but each of the 2 logs of cursor 'worker' has its own positions"),
        (3, "position is 3, but each of the 2 logs"),
        ({"rides-partition-0": LATEST, "rides-partition-2": LATEST}, "names rides-partition-2, expected names out of"),
        (
            {"rides-partition-0": LATEST, "rides-partition-1": 5},
            r"position\['rides-partition-1'\] is 5, expected a pos",
        ),
        ({"rides-partition-0": LATEST, "rides-partition-1": Position(10**6, 0)}, r"the log has \["),
    ],
)
def test_wrong_positions_move_no_cursor(worker: JoinedCursor, position: Any, told: str) -> None:
    with pytest.raises(Refused, match=told):
        worker.reset(position)
    if isinstance(position, dict):
        with pytest.raises(Refused, match=told.replace("position\\[", "positions\\[")):
            worker.acknowledge(position)
    else:
        with pytest.raises(Refused, match=r"positions is .*, but each ledger of cursor 'worker' has its own"):
            worker.acknowledge(position)
    assert backlogs(worker) == [3, 3]


def test_deleted_cursor_is_not_found_and_not_created_again(store: LedgerStore, worker: JoinedCursor) -> None:
    worker.delete()
    for call in (worker.state, worker.cursors, worker.delete, lambda: worker.reset(EARLIEST)):
        with pytest.raises(NotFound):
            call()
    assert store.ledger("rides-partition-0").describe().cursors == []


def test_calls_about_one_ledger_are_refused_with_the_way_that_works(worker: JoinedCursor) -> None:
    calls = {
        "read": worker.read,
        "read_between": lambda: worker.read_between(EARLIEST, LATEST),
        "replay": lambda: worker.replay([]),
        "acknowledge_rows": lambda: worker.acknowledge_rows([]),
        "skip": lambda: worker.skip(-1),
        "set_properties": lambda: worker.set_properties({}),
    }
    for name, call in calls.items():
        with pytest.raises(Refused, match=rf"{name}.* was called for cursor 'worker' of rides") as refused:
            call()
        assert any(way in str(refused.value) for way in ("cursors()", "batches(wait=0)", "reset(LATEST)"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "ledgers is None and ledgers_pattern is None, expected exactly one"),
        ({"ledgers": ["a"], "ledgers_pattern": "a"}, "expected exactly one of them"),
        ({"ledgers": "rides"}, "ledgers is 'rides', expected a list"),
        ({"ledgers": []}, r"ledgers is \[\], expected a list with at least one name"),
        ({"ledgers": 5}, "ledgers is 5, expected a list"),
        ({"ledgers": ["rides", 5]}, "a ledger's name is 5, expected text"),
        ({"ledgers_pattern": "rides("}, "ledgers_pattern is 'rides\\(', expected a regular expression: "),
        ({"ledgers_pattern": ""}, "ledgers_pattern is '', expected a regular expression"),
        ({"ledgers_pattern": 5}, "ledgers_pattern is 5, expected a regular expression"),
        ({"ledgers": ["rides"], "start": Position(3, 4)}, "start is .*, but each of the 2 logs"),
    ],
)
def test_wrong_selections_are_refused_and_create_nothing(
    store: LedgerStore, rides: PartitionedLedger, arguments: Any, told: str
) -> None:
    with pytest.raises(Refused, match=told):
        store.cursor("worker", **arguments)
    assert rides.partitions()[0].describe().cursors == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (None, "a cursor's name for 'rides' is None, expected text"),
        (5, "a cursor's name for 'rides' is 5, expected text"),
        ("x" * 5000, "a cursor's name for 'rides' has 5000 characters, at most 1024 are allowed"),
        ("", "cursor name '' of 'rides' is not a valid name"),
    ],
)
def test_wrong_name_of_a_cursor_is_refused_in_one_line(
    store: LedgerStore, rides: PartitionedLedger, name: Any, told: str
) -> None:
    whole, part = store.ledger("rides"), store.ledger("rides-partition-0")
    for call in (lambda: store.cursor(name, ledgers=["rides"]), lambda: whole.cursor(name), lambda: part.cursor(name)):
        with pytest.raises(Refused) as refused:
            call()
        message = str(refused.value).replace("public/default/persistent/rides-partition-0", "rides")
        assert told in message
        assert "\n" not in message
    assert part.describe().cursors == []


def test_a_handle_instead_of_a_name_is_refused_in_one_line(store: LedgerStore, rides: PartitionedLedger) -> None:
    with pytest.raises(Refused, match=r"a ledger's name is .*, expected text") as refused:
        store.cursor("worker", ledgers=[cast("str", rides)])
    assert "\n" not in str(refused.value)


def test_missing_ledger_is_named_and_no_cursor_is_created(store: LedgerStore, rides: PartitionedLedger) -> None:
    with pytest.raises(NotFound, match="rides"):
        store.cursor("worker", ledgers=["rides", "rydes"])
    with pytest.raises(NotFound, match="no ledger of the store matches 'orders-"):
        store.cursor("worker", ledgers_pattern="orders-.*")
    assert rides.partitions()[0].describe().cursors == []


def test_closed_cursor_ledger_and_store_refuse_calls(store: LedgerStore, rides: PartitionedLedger) -> None:
    with rides.cursor("worker") as worker:
        batches = worker.batches()
    for call in (worker.state, worker.batches, worker.delete, lambda: worker.reset(LATEST)):
        with pytest.raises(Refused, match="the cursor 'worker' of rides is closed"):
            call()
    assert next(batches).num_rows > 0
    batches.close()
    again = rides.cursor("worker")
    rides.close()
    with pytest.raises(Refused, match="the ledger 'rides' is closed"):
        again.state()
    selected = store.cursor("worker", ledgers=["rides"])
    store.close()
    with pytest.raises(Refused, match=r"the store .* is closed"):
        selected.batches()
