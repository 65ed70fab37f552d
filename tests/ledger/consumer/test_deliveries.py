"""Goal: a loop over a cursor hands out every row, and acknowledges only what the user acknowledges. Method: a real
broker; loops that break, raise, nack, wait, are closed, interrupted, forked, reset and deleted; compare sets of rows.
"""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.ledger.api.cursor import Cursor
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.consumer import deliveries
from pyspark_ledger.ledger.consumer.deliveries import DeliveredBatch
from pyspark_ledger.ledger.database.database import MetadataFile
from pyspark_ledger.ledger.errors import LeaseLost, LedgerError, NotFound, Refused
from pyspark_ledger.ledger.position import EARLIEST, LATEST
from pyspark_ledger.ledger.protocol.reads import OpenRead
from pyspark_ledger.offload.home_view import open_read_only
from tests.rigs.broker_process import kill_broker

SECONDS = 30


@pytest.fixture
def orders(store: LedgerStore) -> Ledger:
    """Twenty rows in four entries."""
    orders = store.ledger("orders")
    for number in range(4):
        append(orders, *range(number * 5, number * 5 + 5))
    return orders


@pytest.fixture
def billing(orders: Ledger) -> Cursor:
    return orders.cursor("billing")


def append(orders: Ledger, *numbers: int) -> None:
    orders.append([{"id": number} for number in numbers])


def ids(batch: DeliveredBatch) -> list[int]:
    return batch.table.column("id").to_pylist()


def left(cursor: Cursor) -> list[int]:
    return cursor.read()[0].column("id").to_pylist()


def test_loop_hands_out_all_rows_within_limits_and_acknowledges_them(billing: Cursor) -> None:
    with billing.batches(max_rows=10, wait=0, ack="after") as batches:
        found = [(ids(batch), batch.redeliveries, next(batch.rows())["id"]) for batch in batches]
    assert found == [(list(range(10)), 0, 0), (list(range(10, 20)), 0, 10)]
    assert left(billing) == []
    assert billing.state().lease_holder == ""


def test_an_entry_above_the_limits_is_a_batch_of_its_own(billing: Cursor) -> None:
    for limits in ({"max_rows": 1}, {"max_bytes": 1}):
        billing.reset(EARLIEST)
        with billing.batches(wait=0, ack="after", **limits) as batches:
            assert [ids(batch) for batch in batches] == [list(range(at, at + 5)) for at in (0, 5, 10, 15)]


def test_batch_states_its_place_and_is_acknowledged_by_its_position(orders: Ledger, billing: Cursor) -> None:
    with billing.batches(max_rows=5, wait=0) as batches:
        first, second = next(batches), next(batches)
    assert repr(first) == f"<DeliveredBatch of orders: 5 rows of [{first.start}, {first.position})>"
    assert (second.start, second.ledger) == (first.position, "orders")
    assert orders.read(second.start, second.position).equals(second.table)
    billing.acknowledge(second.position)
    assert left(billing) == list(range(10, 20))


def leave_by_break(batches: Iterator[DeliveredBatch]) -> None:
    for batch in batches:
        if ids(batch)[0] == 5:
            break


def leave_by_exception(batches: Any) -> None:
    with suppress(KeyError), batches:
        for batch in batches:
            if ids(batch)[0] == 5:
                raise KeyError


def leave_by_close(batches: Any) -> None:
    for batch in batches:
        if ids(batch)[0] == 5:
            batches.close()


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_exception, leave_by_close])
def test_loop_that_is_left_early_keeps_its_last_batch(billing: Cursor, leave: Callable[[Any], None]) -> None:
    leave(billing.batches(max_rows=5, ack="after"))
    gc.collect()
    assert left(billing) == list(range(5, 20))
    with billing.batches(max_rows=5, wait=0, ack="after") as batches:
        assert [(ids(batch)[0], batch.redeliveries) for batch in batches] == [(5, 1), (10, 0), (15, 0)]


def test_acknowledgements_in_any_order_twice_and_from_threads_are_one(billing: Cursor) -> None:
    with billing.batches(max_rows=5, wait=0) as batches:
        found = list(batches)
    threads = [threading.Thread(target=found[at].acknowledge) for at in (3, 1, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert left(billing) == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    found[0].acknowledge()
    found[2].acknowledge()
    assert left(billing) == []


def test_batch_is_acknowledged_after_the_loop_until_another_reader_comes(billing: Cursor) -> None:
    with billing.batches(max_rows=5, wait=0) as batches:
        first, second, *_ = batches
    first.acknowledge()
    with billing.batches(max_rows=5, wait=0) as others:
        assert (ids(next(others)), left(billing)) == (list(range(5, 10)), list(range(5, 20)))
        for settle in (second.acknowledge, second.nack):
            with pytest.raises(
                LeaseLost, match=r"cursor 'billing' of .*orders': .* has the lease until .*this reader is"
            ):
                settle()
    assert left(billing) == list(range(5, 20))


def test_given_back_batch_comes_at_once_with_a_count(billing: Cursor) -> None:
    with billing.batches(max_rows=5, wait=0) as batches:
        first = next(batches)
        first.nack()
        found = [(ids(batch)[0], batch.redeliveries) for batch in batches]
    assert sorted(found) == [(0, 1), (5, 0), (10, 0), (15, 0)]


def test_delay_holds_a_given_back_batch_and_an_acknowledgement_cancels_it(billing: Cursor) -> None:
    with billing.batches(max_rows=5, wait=1.5) as batches:
        first, second, third, fourth = (next(batches) for _ in range(4))
        first.nack(delay=0.5)
        second.nack(delay=0.1)
        third.nack(delay=0.1)
        third.acknowledge()
        third.nack()
        fourth.nack(delay=3600)
        assert [(ids(batch)[0], batch.redeliveries) for batch in batches] == [(5, 1), (0, 1)]


def test_given_back_batch_is_not_acknowledged_after(billing: Cursor) -> None:
    with billing.batches(max_rows=5, wait=0, ack="after") as batches:
        for batch in batches:
            if ids(batch)[0] == 5 and not batch.redeliveries:
                batch.nack(delay=3600)
    assert left(billing) == list(range(5, 10))


def test_rows_that_are_not_acknowledged_come_again_after_the_time_out(billing: Cursor) -> None:
    with billing.batches(max_rows=10, wait=SECONDS, ack_timeout=0.3) as batches:
        first, second = next(batches), next(batches)
        second.acknowledge()
        again = next(batches)
        assert (ids(again), again.redeliveries) == (ids(first), 1)
        again.acknowledge()
    assert left(billing) == []


def test_second_worker_is_told_who_reads(billing: Cursor) -> None:
    with billing.batches():
        before = billing.state()
        with pytest.raises(
            Refused, match=r"cursor 'billing' of orders is in use by process \d+ of this host until \d{4}-"
        ):
            billing.batches()
        assert billing.state().lease_holder == before.lease_holder
    billing.batches(wait=0).close()


def test_next_waits_for_rows_and_another_thread_closes_it(orders: Ledger, billing: Cursor) -> None:
    billing.skip(-1)
    found: list[list[int]] = []
    ended = threading.Event()
    batches = billing.batches(ack="after")

    def work() -> None:
        for batch in batches:
            found.append(ids(batch))
            arrived.set()
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    for number in (1, 2):
        arrived = threading.Event()
        append(orders, number)
        assert arrived.wait(SECONDS)
    batches.close()
    assert ended.wait(SECONDS)
    assert (found, list(batches)) == ([[1], [2]], [])


def test_two_threads_share_a_loop_and_each_acknowledges_its_own(orders: Ledger, billing: Cursor) -> None:
    for number in range(20, 60):
        append(orders, number)
    found: list[int] = []

    def work() -> None:
        for batch in batches:
            found.extend(ids(batch))

    with billing.batches(max_rows=5, wait=0, ack="after") as batches:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    assert sorted(found) == list(range(60))
    with billing.batches(wait=0, ack="after") as rest:
        again = [number for batch in rest for number in ids(batch)]
    assert set(again) <= set(found)
    assert left(billing) == []


@pytest.mark.parametrize("at", range(8))
def test_interrupt_after_any_reply_loses_no_row(billing: Cursor, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """The reply of the broker arrives, and is lost with the interrupt."""
    client = billing.ledger.client
    calls, found, real = 0, list[int](), client.ask

    def ask(request: Any, **how: Any) -> Any:
        nonlocal calls
        reply = real(request, **how)
        calls += 1
        if calls == at + 1 and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return reply

    batches = billing.batches(max_rows=5, wait=0, ack="after")
    monkeypatch.setattr(client, "ask", ask)
    for _ in range(2):
        with suppress(KeyboardInterrupt):
            while (batch := next(batches, None)) is not None:
                assert set(range(20)) - set(left_quietly(billing, real)) <= set(found)
                found += ids(batch)
    monkeypatch.undo()
    batches.close()
    assert sorted(set(found)) == list(range(20))
    assert left(billing) == []


def left_quietly(cursor: Cursor, ask: Any) -> list[int]:
    """The unacknowledged rows, asked without the interrupts of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursor.ledger.client, "ask", ask)
        return left(cursor)


def test_reset_moves_a_waiting_loop_and_older_batches_acknowledge_nothing(
    billing: Cursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "_POLL_MS", 50)
    with billing.batches(wait=SECONDS) as batches:
        older = next(batches)
        billing.reset(EARLIEST)
        afresh = next(batches)
        assert (ids(afresh), afresh.redeliveries) == (list(range(20)), 0)
        older.acknowledge()
        assert left(billing) == list(range(20))
        billing.reset(LATEST)
        afresh.acknowledge()
        billing.reset(EARLIEST)
        assert ids(next(batches)) == list(range(20))


@pytest.mark.parametrize("most", [None, 0])
def test_nack_of_a_batch_from_before_a_reset_has_no_effect(billing: Cursor, most: int | None) -> None:
    with billing.batches(max_rows=5, wait=0, max_redeliveries=most) as batches:
        older = next(batches)
        billing.reset(EARLIEST)
        afresh = next(batches)
        older.nack()
        assert [(ids(batch)[0], batch.redeliveries) for batch in batches] == [(5, 0), (10, 0), (15, 0)]
        assert left(billing) == list(range(20))
        afresh.acknowledge()
    assert left(billing) == list(range(5, 20))


def test_older_batch_acknowledges_nothing_after_a_redelivery(billing: Cursor) -> None:
    with billing.batches(max_rows=5, wait=0) as batches:
        older = next(batches)
        billing.reset(EARLIEST)
        next(batches).nack()
        afresh = next(batch for batch in batches if batch.redeliveries)
        older.acknowledge()
        assert left(billing) == list(range(20))
        older.nack()
        afresh.acknowledge()
    assert left(billing) == list(range(5, 20))


@pytest.mark.parametrize("again", [False, True])
def test_deleted_cursor_ends_its_loop_with_an_error(orders: Ledger, billing: Cursor, again: bool) -> None:
    with billing.batches(max_rows=5, wait=0) as batches:
        batch = next(batches)
        billing.delete()
        if again:
            orders.cursor("billing")
        for call in (lambda: next(batches), batch.acknowledge, batch.nack):
            with pytest.raises(LeaseLost if again else NotFound):
                call()


def test_terminated_ledger_ends_the_loop(orders: Ledger, billing: Cursor) -> None:
    orders.terminate()
    with billing.batches(max_rows=5, ack="after") as batches:
        for batch in batches:
            if ids(batch)[0] == 5 and not batch.redeliveries:
                batch.nack(delay=0.2)
    assert left(billing) == []


def test_rows_acknowledged_one_by_one_are_left_out(orders: Ledger, billing: Cursor) -> None:
    (segment,) = {part.ledger_id for part in orders.describe().segments}
    billing.acknowledge_rows([(segment, 0, 1), (segment, 2), (segment, 3, 4)])
    with billing.batches(wait=0, ack="after") as batches:
        assert [ids(batch) for batch in batches] == [[0, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 18]]
    assert left(billing) == []


def test_rows_acknowledged_after_they_were_read_ahead_are_left_out(orders: Ledger, billing: Cursor) -> None:
    (segment,) = {part.ledger_id for part in orders.describe().segments}
    with billing.batches(max_rows=5, wait=0) as batches:
        first = next(batches)
        billing.acknowledge_rows([(segment, 1, 2)])
        first.nack()
        found = [(ids(batch), batch.redeliveries) for batch in batches]
    assert sorted(found) == [
        ([0, 1, 2, 3, 4], 1),
        ([5, 6, 8, 9], 0),
        (list(range(10, 15)), 0),
        (list(range(15, 20)), 0),
    ]


def test_batch_costs_one_call_and_one_commit(orders: Ledger, billing: Cursor, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, commits = list[str](), list[int]()
    ask_once, commit = orders.client._ask_once, MetadataFile._commit

    def counted(request: Any, *rest: Any) -> Any:
        asked.append(request.call.name)
        return ask_once(request, *rest)

    def committed(file: MetadataFile, group: Any) -> None:
        commits.append(len(group))
        commit(file, group)

    with billing.batches(max_rows=5, wait=0, ack="after") as batches:
        next(batches)
        monkeypatch.setattr(orders.client, "_ask_once", counted)
        monkeypatch.setattr(MetadataFile, "_commit", committed)
        for number in range(1, 4):
            assert ids(next(batches)) == list(range(number * 5, number * 5 + 5))
            assert left(billing) == list(range(number * 5, 20)), "the acknowledgement is durable with the next record"
    assert [name for name in asked if name != "lease.acquire"][:2] == ["delivery.next", "read.open"]
    assert asked.count("delivery.next") == 3
    assert asked.count("read.open") == 3, "those of the reads in this test"
    assert sum(commits[:3]) == 3


def test_rows_appended_after_the_read_ahead_join_its_batch(
    orders: Ledger, billing: Cursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[OpenRead]()
    open_read = orders.client.open_read
    with billing.batches(max_rows=15, wait=0) as batches:
        assert ids(next(batches)) == list(range(15))
        monkeypatch.setattr(orders.client, "open_read", lambda asked: (opened.append(asked), open_read(asked))[1])
        append(orders, *range(20, 23))
        assert ids(next(batches)) == list(range(15, 23))
    assert [asked.start.entry_id for asked in opened] == [4], "the entry before was read ahead"


def test_column_that_changes_after_the_read_ahead_is_in_the_batch(store: LedgerStore) -> None:
    notes = store.ledger("notes")
    for _ in range(3):
        notes.append([{"note": None}])
    with notes.cursor("billing").batches(max_rows=2, wait=0) as batches:
        assert next(batches).table.schema.field("note").type == pa.null()
        notes.append([{"note": "new"}])
        assert next(batches).table.column("note").to_pylist() == [None, "new"]


def test_messages_are_rows_too(store: LedgerStore) -> None:
    events = store.ledger("events")
    for number in range(3):
        events.append(b"%d" % number)
    with events.cursor("c").batches(wait=0, ack="after") as batches:
        assert [row["value"] for batch in batches for row in batch.rows()] == [b"0", b"1", b"2"]
    assert events.cursor("c").state().backlog_rows == 0


def in_child(batches: Any, batch: DeliveredBatch, results: Any) -> None:
    for call in (lambda: next(batches), batch.acknowledge, batch.nack):
        try:
            call()
        except LedgerError as error:
            results.put(type(error).__name__)
    batches.close()


def test_forked_child_uses_nothing_of_its_parents_loop(billing: Cursor) -> None:
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    with billing.batches(max_rows=5, wait=0) as batches:
        batch = next(batches)
        child = context.Process(target=in_child, args=(batches, batch, results))
        child.start()
        assert [results.get() for _ in range(3)] == ["Refused"] * 3
        child.join(SECONDS)
        assert child.exitcode == 0
        batch.acknowledge()
        assert left(billing) == list(range(5, 20))
        assert ids(next(batches)) == list(range(5, 10))


@pytest.mark.broker_process
def test_broker_killed_before_the_acknowledgement_changes_nothing(
    orders: Ledger, billing: Cursor, store_path: Path
) -> None:
    with billing.batches(max_rows=5, wait=0) as batches:
        first, second = next(batches), next(batches)
        kill_broker(store_path)
        second.acknowledge()
        assert left(billing) == [*range(5), *range(10, 20)]
        assert [ids(batch)[0] for batch in batches] == [10, 15]
        kill_broker(store_path)
        first.nack()
    with billing.batches(wait=0) as others:
        assert [(ids(batch)[0], batch.redeliveries) for batch in others] == [(0, 1), (10, 1), (15, 1)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"ack": "never"}, "ack is 'never', expected 'explicit' or 'after'"),
        ({"ack_timeout": 0}, "ack_timeout is 0 seconds, expected more"),
        ({"ack_timeout": "5 minutes"}, "ack_timeout is '5 minutes', expected a number of seconds"),
        ({"ack_timeout": float("nan")}, "ack_timeout is nan, expected a number of seconds"),
        ({"max_rows": 0}, "max_rows is 0, expected None"),
        ({"wait": -1}, "wait is -1, expected None or a number of seconds"),
    ],
)
def test_wrong_arguments_are_refused_before_the_lease(billing: Cursor, arguments: Any, told: str) -> None:
    with pytest.raises(Refused, match=told):
        billing.batches(**arguments)
    assert billing.state().lease_holder == ""


@pytest.mark.parametrize("delay", [-1, True, "1", None, float("inf")])
def test_wrong_delay_is_refused(billing: Cursor, delay: Any) -> None:
    with billing.batches(wait=0) as batches:
        batch = next(batches)
        with pytest.raises(Refused, match=r"delay is .*, expected a number of seconds"):
            batch.nack(delay)
        assert list(batches) == []


def test_loop_of_a_store_that_is_only_read_is_refused(orders: Ledger, billing: Cursor, store_path: Path) -> None:
    with pytest.raises(Refused, match="opened for reading only"):
        open_read_only(store_path).ledger("orders").cursor("billing").batches()
