"""Goal: an asyncio loop returns each row once, ends as told, and holds no thread while it waits. Method: a real broker,
real event loops of asyncio and of uvloop, cancelled tasks.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest
import uvloop

from pyspark_ledger import aio
from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import LATEST

SECONDS = 60


@dataclass
class Order:
    """Row of a ledger."""

    n: int


Work = Callable[[aio.LedgerStore], Awaitable[None]]
Run = Callable[[Work], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, store: LedgerStore) -> Run:
    """Return a function that runs work with an asyncio store of the same broker, in an event loop of its own."""

    async def connected(work: Work) -> None:
        async with aio.connect(store.location) as opened, asyncio.timeout(SECONDS):
            await work(opened)

    def made(work: Work) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(connected(work))

    return made


def numbers(batch: aio.Batch | aio.DeliveredBatch) -> list[int]:
    found: list[int] = batch.table.column("n").to_pylist()
    return found


def test_follow_returns_rows_that_exist_and_those_that_come(run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        orders = await opened.ledger("orders")
        await orders.append([{"n": 0}])
        found = []
        async for batch in orders.follow():
            found += numbers(batch)
            if len(found) == 4:
                break
            await orders.append([{"n": len(found)}])
        assert found == [0, 1, 2, 3]
        assert [row async for row in orders.rows()] == [{"n": n} for n in range(4)]
        assert (await orders.read()).num_rows == 4
        assert [numbers(batch) async for batch in orders.follow(wait=0, max_rows=3)] == [[0, 1, 2], [3]]
        assert [numbers(batch) async for batch in orders.follow(wait=0.1)] == [[0, 1, 2, 3]]

    run(work)


def test_cancelled_anext_loses_no_batch(run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        orders = await opened.ledger("orders")
        await orders.append([{"n": 0}])
        found: list[int] = []
        async with orders.follow(max_rows=1) as batches:
            for n in range(1, 40):
                task = asyncio.ensure_future(anext(batches))
                await orders.append([{"n": n}])
                await asyncio.sleep(n % 5 / 2000)
                task.cancel()
                (result,) = await asyncio.gather(task, return_exceptions=True)
                found += [] if isinstance(result, BaseException) else numbers(result)
            while len(found) < 40:
                found += numbers(await anext(batches))
        assert found == list(range(40))

    run(work)


def test_close_from_another_task_wakes_a_loop_and_frees_its_cursor(run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        orders = await opened.ledger("orders")
        await orders.append([{"n": 0}])
        billing = await orders.cursor("billing")
        batches = billing.batches()
        begun = asyncio.Event()

        async def worker() -> None:
            async for batch in batches:
                await batch.acknowledge()
                begun.set()

        task = asyncio.ensure_future(worker())
        await begun.wait()
        with pytest.raises(Refused, match="is in use by process"):
            await anext(billing.batches(wait=0))
        await batches.close()
        await task
        await orders.append([{"n": 1}])
        async with billing.batches(wait=0) as second:
            again = [batch async for batch in second]
            assert [numbers(batch) for batch in again] == [[1]]

    run(work)


def test_nacked_batch_returns_after_its_delay(run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        orders = await opened.ledger("orders")
        await orders.append([{"n": 7}])
        async with (await orders.cursor("billing")).batches() as batches:
            batch = await anext(batches)
            await batch.nack(delay=0.2)
            again = await anext(batches)
            assert (numbers(again), again.redeliveries) == ([7], 1)
            await again.acknowledge()

    run(work)


def test_cancelled_anext_leaves_the_times_of_its_loop(run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        orders = await opened.ledger("orders")
        await orders.append([{"n": 7}])

        async def cancelled(batches: aio.Batches[aio.Batch] | aio.Batches[aio.DeliveredBatch]) -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(batches), 0.05)

        async with orders.follow(wait=0.4) as batches:
            assert numbers(await anext(batches)) == [7]
            await cancelled(batches)
            assert [numbers(batch) async for batch in batches] == []
        async with (await orders.cursor("billing")).batches() as delivered:
            await (await anext(delivered)).nack(delay=0.4)
            await cancelled(delivered)
            assert numbers(await anext(delivered)) == [7]

    run(work)


def test_batch_is_acknowledged_when_the_next_is_asked_for(run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        orders = await opened.ledger("orders")
        for n in range(3):
            await orders.append([{"n": n}])
        billing = await orders.cursor("billing")
        async with billing.batches(max_rows=1, ack="after") as batches:
            assert numbers(await anext(batches)) == [0]
            assert numbers(await anext(batches)) == [1]
        table, _ = await billing.read()
        assert table.column("n").to_pylist() == [1, 2]

    run(work)


def test_waiting_loops_share_the_threads_of_the_store(run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        orders = await opened.ledger("orders")
        await orders.append([{"n": 0}])
        before = threading.active_count()
        loops = [orders.follow() for _ in range(200)]

        begun = asyncio.Barrier(len(loops) + 1)

        async def two(batches: aio.Batches[aio.Batch]) -> list[int]:
            found = numbers(await anext(batches))
            await begun.wait()
            return found + numbers(await anext(batches))

        first = [asyncio.ensure_future(two(batches)) for batches in loops]
        await begun.wait()
        await asyncio.sleep(0.2)  # in which most begin to wait
        assert threading.active_count() - before <= 16
        await orders.append([{"n": 1}])
        assert await asyncio.gather(*first) == [[0, 1]] * 200
        for batches in loops:
            await batches.close()

    run(work)


def test_abandoned_loop_leaves_the_watch_of_its_store(run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        orders = await opened.ledger("orders")
        await orders.append([{"n": 0}])

        async def follow() -> None:
            async for _ in orders.follow():
                pass

        watch = opened.twin.client.watch
        task = asyncio.ensure_future(follow())
        while not any(ledger.readers for ledger in watch._ledgers.values()):  # noqa: ASYNC110 — the watch has no event
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        del task
        while any(ledger.readers for ledger in watch._ledgers.values()):
            gc.collect()
            await asyncio.sleep(0.01)

    run(work)


def test_other_event_loop_is_refused_and_several_follow_each_other(run: Run) -> None:
    kept: list[aio.LedgerStore] = []

    async def work(opened: aio.LedgerStore) -> None:
        kept.append(opened)
        assert await opened.names() == []

    run(work)
    run(work)

    async def foreign() -> None:
        await kept[0].names()

    with pytest.raises(Refused, match="was opened in the event loop"):
        asyncio.run(foreign())


def test_producer_sends_what_many_tasks_send_in_their_order(run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        events = await opened.create("events")
        async with events.producer() as producer:
            ids = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(3000)))
            cancelled = asyncio.ensure_future(producer.send(b"cancelled"))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(Refused, match="value"):
                await producer.send(7)  # type: ignore[arg-type]  # what a user may do
        assert len(set(ids)) == 3000
        values = (await events.read()).column("value").to_pylist()
        assert values[:3000] == [b"%d" % n for n in range(3000)]
        assert values[3000:] in ([], [b"cancelled"])

    run(work)


def test_partitioned_ledger_has_its_loop_and_producer(run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        rides = await opened.create_partitioned("rides", 3)
        for n in range(6):
            await rides.append([{"n": n}])
        found = [n async for batch in rides.follow(wait=0) for n in numbers(batch)]
        assert sorted(found) == list(range(6))
        assert len(await rides.partitions()) == 3

    run(work)


def test_cursor_of_all_partitions_waits_and_acknowledges(run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        rides = await opened.create_partitioned("rides", 3)
        worker = await rides.cursor("worker")
        found: list[int] = []
        async with worker.batches() as batches:
            for n in range(9):
                await rides.append([{"n": n}])
                batch = await anext(batches)
                found += numbers(batch)
                await batch.acknowledge()
        assert found == list(range(9))
        assert (await worker.state()).backlog_rows == 0
        assert [cursor.name for cursor in await worker.cursors()] == ["worker"] * 3
        joined = await opened.cursor("audit", ledgers_pattern="rid.*")
        seen = [n async for batch in joined.batches(wait=0, ack="after") for n in numbers(batch)]
        assert sorted(seen) == list(range(9))

    run(work)


def test_loops_yield_objects_of_the_ledgers_class(run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        orders = await opened.ledger("orders", Order)
        await orders.append([Order(1), Order(2)])
        assert [row async for batch in orders.follow(wait=0) for row in batch.rows()] == [Order(1), Order(2)]
        worker = await orders.cursor("worker")
        assert [row async for batch in worker.batches(wait=0) for row in batch.rows()] == [Order(1), Order(2)]

    run(work)


def test_closed_store_is_refused_and_closes_again(run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        orders = await opened.ledger("orders")
        await orders.append([{"n": 0}])
        batches = orders.follow()
        assert numbers(await anext(batches)) == [0]
        waiting = asyncio.ensure_future(anext(orders.follow(LATEST)))
        while not opened.calls.waiting:  # noqa: ASYNC110 — the loop has no event
            await asyncio.sleep(0.01)
        await opened.close()
        with pytest.raises(Refused, match="closed"):
            await waiting
        with pytest.raises(Refused, match="the store is closed"):
            await orders.append([{"n": 1}])
        with pytest.raises(Refused, match="the store is closed"):
            await anext(batches)
        await batches.close()
        await opened.close()

    run(work)


def test_forked_child_gets_one_error(run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        await opened.names()
        child = os.fork()
        if not child:
            status = 1
            with suppress(BaseException):
                try:
                    opened.calls.start(list)
                except Refused as refusal:
                    status = 0 if "was opened in process" in str(refusal) else 2
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0  # noqa: ASYNC222 — the child ends at once

    run(work)


def test_cancelled_append_appends_all_rows_or_none(store: LedgerStore, run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        orders = await opened.ledger("orders")
        for n in range(20):
            task = asyncio.ensure_future(orders.append([{"n": n}] * 50))
            await asyncio.sleep(n % 5 / 1000)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await orders.append([{"n": 20}] * 50)

    run(work)
    found = Counter(store.ledger("orders").read().column("n").to_pylist())
    assert found[20] == 50
    assert set(found.values()) == {50}


def test_close_returns_after_the_lease_of_a_running_step(run: Run) -> None:
    async def work(opened: aio.LedgerStore) -> None:
        orders = await opened.ledger("orders")
        await orders.append([{"n": n} for n in range(100)])
        worker = await orders.cursor("worker")
        for _ in range(20):
            batches = worker.batches(max_rows=1)
            await anext(batches)
            step = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)
            step.cancel()
            await batches.close()
            assert not (await worker.state(precise=False)).lease_holder

    run(work)
