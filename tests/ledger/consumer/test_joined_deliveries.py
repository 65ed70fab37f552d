"""Goal: a loop over a cursor in several ledgers hands out every row, takes turns, and lets later ledgers join.

Method: a real broker; partitions, lists and patterns; loops that wait, break, are interrupted, forked and refused.
"""

from __future__ import annotations

import gc
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from pyspark_ledger.ledger.api.joined_cursor import JoinedCursor
from pyspark_ledger.ledger.api.partitioned_ledger import PartitionedLedger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.consumer import deliveries, joined_deliveries
from pyspark_ledger.ledger.consumer.deliveries import DeliveredBatch
from pyspark_ledger.ledger.errors import LeaseLost, LedgerError, NotFound, Refused
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.ends import WaitEnds

SECONDS = 60


@pytest.fixture
def rides(store: LedgerStore) -> PartitionedLedger:
    """Three partitions with four entries of one row each: 0, 3, 6, 9 are in one, 1, 4, 7, 10 in another."""
    rides = store.create_partitioned("rides", 3)
    for number in range(12):
        rides.append([{"id": number}])
    return rides


@pytest.fixture
def worker(rides: PartitionedLedger) -> JoinedCursor:
    return rides.cursor("worker")


def ids(*batches: DeliveredBatch) -> list[int]:
    return [number for batch in batches for number in batch.table.column("id").to_pylist()]


def left(cursor: JoinedCursor) -> list[int]:
    """The unacknowledged rows of all ledgers, sorted."""
    return sorted(number for one in cursor.cursors() for number in one.read()[0].column("id").to_pylist())


def test_partitions_take_turns_and_every_row_comes_once(worker: JoinedCursor) -> None:
    with worker.batches(max_rows=1, wait=0, ack="after") as batches:
        found = list(batches)
    assert sorted(ids(*found)) == list(range(12))
    for at in range(0, 12, 3):
        assert len({batch.ledger for batch in found[at : at + 3]}) == 3
    assert left(worker) == []
    assert worker.state().backlog_rows == 0


def test_a_busy_partition_does_not_starve_the_others(store: LedgerStore, worker: JoinedCursor) -> None:
    busy = store.ledger("rides-partition-1")
    with worker.batches(max_rows=1, wait=SECONDS, ack="after") as batches:
        seen = list[str]()
        while len([name for name in seen if name != "rides-partition-1"]) < 8:
            busy.append([{"id": 100}])
            seen.append(next(batches).ledger)
    assert len(seen) <= 12


def test_waiting_loop_gets_a_row_of_any_partition_with_one_wait(
    store: LedgerStore, worker: JoinedCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.reset(EARLIEST)
    waits = list[int]()
    with worker.batches(ack="after") as batches, ThreadPoolExecutor(1) as executor:
        assert sorted(ids(*(next(batches) for _ in range(3)))) == list(range(12))
        client = worker._owner.client
        real = client.watch._ask

        def ask(request: WaitEnds, **how: Any) -> Any:
            waits.append(len(request.known))
            return real(request, **how)

        monkeypatch.setattr(client.watch, "_ask", ask)
        for partition in range(3):
            coming = executor.submit(next, batches)
            store.ledger(f"rides-partition-{partition}").append([{"id": 50 + partition}])
            assert ids(coming.result(SECONDS)) == [50 + partition]
        coming = executor.submit(next, batches)
        batches.close()
        with pytest.raises(StopIteration):
            coming.result(SECONDS)
    assert max(waits) == 4, "one call names the three partitions and their number"
    assert len(waits) <= 12


def test_partition_that_is_added_joins_with_its_first_row(
    store: LedgerStore, rides: PartitionedLedger, worker: JoinedCursor
) -> None:
    with worker.batches(ack="after") as batches, ThreadPoolExecutor(1) as executor:
        for _ in range(3):
            next(batches)
        coming = executor.submit(next, batches)
        rides.increase_partitions(4)
        store.ledger("rides-partition-3").append([{"id": 12}])
        batch = coming.result(SECONDS)
        assert (batch.ledger, ids(batch)) == ("rides-partition-3", [12])
        batch.acknowledge()
    assert worker.state().ledgers["rides-partition-3"].backlog_rows == 0


def test_partition_added_while_no_loop_runs_is_read_from_its_start(
    store: LedgerStore, rides: PartitionedLedger, worker: JoinedCursor
) -> None:
    rides.increase_partitions(4)
    store.ledger("rides-partition-3").append([{"id": 12}])
    assert worker.state().backlog_rows == 13
    with worker.batches(wait=0) as batches:
        assert 12 in ids(*batches)


def test_loop_over_a_list_has_ledgers_and_partitions(store: LedgerStore, rides: PartitionedLedger) -> None:
    store.ledger("orders").append([{"id": 20}])
    cursor = store.cursor("billing", ledgers=["orders", "rides", "orders"])
    with cursor.batches(wait=0, ack="after") as batches:
        found = list(batches)
    assert sorted(ids(*found)) == [*range(12), 20]
    assert {batch.ledger for batch in found} == {"orders", *(f"rides-partition-{n}" for n in range(3))}
    assert set(cursor.state().ledgers) == {batch.ledger for batch in found}
    assert repr(cursor) == "<JoinedCursor 'billing' of orders, rides>"


def test_ledgers_that_match_later_join_and_own_dead_letters_do_not(store: LedgerStore) -> None:
    for name in ("orders-eu", "orders-eu-billing-DLQ", "orders-eu-audit-DLQ", "other"):
        store.ledger(name).append([{"id": len(name)}])
    cursor = store.cursor("billing", ledgers_pattern="orders-.*")
    with cursor.batches(ack="after") as batches, ThreadPoolExecutor(1) as executor:
        assert {next(batches).ledger for _ in range(2)} == {"orders-eu", "orders-eu-audit-DLQ"}
        coming = executor.submit(next, batches)
        store.create_partitioned("orders-us", 2).append([{"id": 1}])
        store.ledger("orders-eu-billing-DLQ").append([{"id": 0}])
        assert coming.result(SECONDS).ledger.startswith("orders-us-partition-")


def test_wait_of_zero_finds_a_new_ledger_of_the_pattern(store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_deliveries, "_LOOK_MS", 10**9)
    store.ledger("orders-eu").append([{"id": 1}])
    with store.cursor("billing", ledgers_pattern="orders-.*").batches(wait=0) as batches:
        assert ids(next(batches)) == [1]
        store.ledger("orders-us").append([{"id": 2}])
        assert ids(*batches) == [2]


@pytest.mark.parametrize("leave", ["break", "exception", "close"])
def test_loop_that_is_left_early_keeps_its_last_batch(worker: JoinedCursor, leave: str) -> None:
    batches = worker.batches(max_rows=1, ack="after")
    found = list[int]()
    with suppress(KeyError):
        for batch in batches:
            found += ids(batch)
            if len(found) == 5:
                if leave == "exception":
                    raise KeyError
                if leave == "break":
                    break
                batches.close()
    del batch
    if leave != "close":
        del batches
    gc.collect()
    assert left(worker) == sorted(set(range(12)) - set(found[:4]))
    with worker.batches(max_rows=1, wait=0, ack="after") as others:
        assert sorted(ids(*others)) == sorted(set(range(12)) - set(found[:4]))


def test_batch_is_acknowledged_before_the_next_one_is_handed_out(worker: JoinedCursor) -> None:
    with worker.batches(max_rows=1, wait=0, ack="after") as batches:
        found = list[int]()
        for batch in batches:
            assert left(worker) == sorted(set(range(12)) - set(found))
            found += ids(batch)
    assert left(worker) == []


def test_nack_and_time_out_redeliver_in_their_partition(worker: JoinedCursor) -> None:
    places: dict[int, str] = {}
    again = set[int]()
    with worker.batches(max_rows=1, wait=SECONDS, ack_timeout=1) as batches:
        while again < {0, 1}:
            batch = next(batches)
            (number,) = ids(batch)
            assert places.setdefault(number, batch.ledger) == batch.ledger
            if number == 1 and not batch.redeliveries:
                batch.nack(delay=0.1)
            elif number or batch.redeliveries:
                batch.acknowledge()
                again |= {number} if batch.redeliveries else set()
    assert left(worker) == sorted(set(range(12)) - set(places))


def test_second_worker_is_told_and_gets_no_lease(store: LedgerStore, worker: JoinedCursor) -> None:
    with store.ledger("rides-partition-1").cursor("worker").batches():
        with pytest.raises(Refused, match="cursor 'worker' of rides-partition-1 is in use by process"):
            worker.batches()
        holders = {name: bool(state.lease_holder) for name, state in worker.state().ledgers.items()}
        assert holders == {"rides-partition-0": False, "rides-partition-1": True, "rides-partition-2": False}
    with worker.batches(), pytest.raises(Refused, match="cursor 'worker' of rides-partition-0 is in use"):
        store.cursor("worker", ledgers_pattern="rides").batches()
    assert not any(state.lease_holder for state in worker.state().ledgers.values())


def test_lost_lease_of_one_partition_is_named_and_others_go_on(store: LedgerStore, worker: JoinedCursor) -> None:
    with worker.batches(max_rows=1, wait=0) as batches:
        held = [next(batches) for _ in range(3)]
        lost = store.ledger("rides-partition-1").cursor("worker")
        lost.delete()
        lost = store.ledger("rides-partition-1").cursor("worker")
        with lost.batches():
            found, errors = list[str](), list[str]()
            for _ in range(9):
                try:
                    found.append(next(batches).ledger)
                except LeaseLost as error:
                    errors.append(str(error))
            assert sorted(found) == ["rides-partition-0"] * 3 + ["rides-partition-2"] * 3
            assert len(errors) == 3
            assert all("cursor 'worker' of" in text and "rides-partition-1" in text for text in errors)
            for batch in held:
                if batch.ledger == "rides-partition-1":
                    with pytest.raises(LeaseLost, match="rides-partition-1"):
                        batch.acknowledge()
                else:
                    batch.acknowledge()


def test_deleted_ledger_is_an_error_and_the_others_go_on(store: LedgerStore) -> None:
    for number, name in enumerate(("a", "b")):
        store.ledger(name).append([{"id": number}])
    with store.cursor("c", ledgers=["a", "b"]).batches() as batches, ThreadPoolExecutor(1) as executor:
        assert sorted(ids(next(batches), next(batches))) == [0, 1]
        coming = executor.submit(next, batches)
        store.delete("a")
        with pytest.raises(NotFound, match="there is no ledger"):
            coming.result(SECONDS)
        store.ledger("b").append([{"id": 2}])
        with suppress(NotFound):
            assert ids(next(batches)) == [2]


def test_reset_of_one_partition_moves_a_waiting_loop(
    worker: JoinedCursor, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "_POLL_MS", 50)
    with worker.batches(wait=SECONDS, ack="after") as batches:
        first = [next(batches) for _ in range(3)]
        worker.reset({first[0].ledger: EARLIEST})
        again = next(batches)
        assert (again.ledger, ids(again), again.redeliveries) == (first[0].ledger, ids(first[0]), 0)


def test_terminated_partitions_end_the_loop(rides: PartitionedLedger, worker: JoinedCursor) -> None:
    for partition in rides.partitions():
        partition.terminate()
    with worker.batches(max_rows=1, ack="after") as batches:
        assert sorted(ids(*batches)) == list(range(12))
    assert left(worker) == []


@pytest.mark.parametrize("at", range(16))
def test_interrupt_after_any_reply_loses_no_row(worker: JoinedCursor, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """The reply of the broker arrives, and is lost with the interrupt."""
    client = worker._owner.client
    calls, found, real = 0, list[int](), client.ask

    def ask(request: Any, **how: Any) -> Any:
        nonlocal calls
        reply = real(request, **how)
        calls += 1
        if calls == at + 1 and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return reply

    batches = worker.batches(max_rows=2, wait=0, ack="after")
    monkeypatch.setattr(client, "ask", ask)
    for _ in range(2):
        with suppress(KeyboardInterrupt):
            while (batch := next(batches, None)) is not None:
                found += ids(batch)
    monkeypatch.undo()
    batches.close()
    assert sorted(set(found)) == list(range(12))
    assert left(worker) == []


@pytest.mark.parametrize("at", range(14))
def test_interrupt_while_the_loop_begins_leaves_no_lease(
    worker: JoinedCursor, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    client = worker._owner.client
    calls, real = 0, client.ask

    def ask(request: Any, **how: Any) -> Any:
        nonlocal calls
        reply = real(request, **how)
        calls += 1
        if calls == at + 1 and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return reply

    monkeypatch.setattr(client, "ask", ask)
    with suppress(KeyboardInterrupt):
        worker.batches().close()
    monkeypatch.undo()
    with worker.batches(wait=0, ack="after") as batches:
        assert sorted(ids(*batches)) == list(range(12))


def in_child(batches: Any, batch: DeliveredBatch, results: Any) -> None:
    for call in (lambda: next(batches), batch.acknowledge, batch.nack):
        try:
            call()
        except LedgerError as error:
            results.put(type(error).__name__)
    batches.close()


def test_forked_child_uses_nothing_of_its_parents_loop(worker: JoinedCursor) -> None:
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with worker.batches(max_rows=1, wait=0) as batches:
        batch = next(batches)
        child = context.Process(target=in_child, args=(batches, batch, results))
        child.start()
        assert [results.get() for _ in range(3)] == ["Refused"] * 3
        child.join(SECONDS)
        assert child.exitcode == 0
        batch.acknowledge()
        assert sorted(ids(batch, *batches)) == list(range(12))


def test_many_ledgers_have_few_threads_and_one_batch_ahead(store: LedgerStore) -> None:
    parts = store.create_partitioned("wide", 64)
    for partition in parts.partitions():
        for number in range(3):
            partition.append([{"id": number}])
    before = threading.active_count()
    with parts.cursor("worker").batches(max_rows=1, wait=0) as batches:
        for batch in batches:
            source = batch.deliveries
            assert source._loop is not None
            ahead = [log for log in batches._source._logs if log._ahead is not None]  # type: ignore[attr-defined]
            assert len(ahead) <= 1
            assert threading.active_count() <= before + 4
            batch.acknowledge()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"ack": "never"}, "ack is 'never', expected 'explicit' or 'after'"),
        ({"ack_timeout": 0}, "ack_timeout is 0 seconds, expected more"),
        ({"max_bytes": "1"}, "max_bytes is '1', expected a whole number"),
        ({"wait": -1}, "wait is -1, expected None or a number of seconds"),
    ],
)
def test_wrong_arguments_are_refused_before_a_lease(worker: JoinedCursor, arguments: Any, told: str) -> None:
    with pytest.raises(Refused, match=told):
        worker.batches(**arguments)
    assert not any(state.lease_holder for state in worker.state().ledgers.values())


def test_rows_that_come_too_often_become_dead_letters_of_their_ledger(store: LedgerStore, worker: JoinedCursor) -> None:
    with worker.batches(max_rows=1, wait=0, max_redeliveries=1) as batches:
        for batch in batches:
            if ids(batch) == [5]:
                batch.nack()
            else:
                batch.acknowledge()
    assert left(worker) == []
    assert [row["id"] for row in store.ledger("rides-worker-DLQ").read().to_pylist()] == [5]


class Ride(msgspec.Struct):
    """Row of the fixture."""

    id: int


def test_batches_of_a_typed_ledger_have_objects(store: LedgerStore, worker: JoinedCursor) -> None:
    typed = store.ledger("rides", Ride)
    with typed.cursor("worker").batches(wait=0) as batches:
        found = [ride for batch in batches for ride in batch.rows()]
    assert sorted(ride.id for ride in found) == list(range(12))
    assert all(isinstance(ride, Ride) for ride in found)
