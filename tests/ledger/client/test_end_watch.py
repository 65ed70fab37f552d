"""Goal: any number of loops of a process wait with two threads and one call, and none misses its rows. Method: a real
broker in this process, whose calls are counted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.client.end_watch import EndWatch, WaitingReader
from pyspark_ledger.ledger.position import LATEST
from pyspark_ledger.ledger.protocol.ends import KnownEnd

SECONDS = 60


@pytest.fixture
def served(store: LedgerStore) -> Iterator[LedgerStore]:
    yield store
    store.client.watch.end()


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "end watch"]


def known(api: LedgerStore, name: str) -> KnownEnd:
    end = api.ledger(name).end()
    return KnownEnd(end.name, end.incarnation, end.end)


@pytest.mark.thorough
def test_a_thousand_loops_wait_with_two_threads(served: LedgerStore) -> None:
    ledgers = [served.ledger(f"l{number}") for number in range(100)]
    for ledger in ledgers:
        ledger.append([{"n": 0}])
    with ThreadPoolExecutor(1000) as executor:
        loops = [ledger.follow(LATEST) for ledger in ledgers for _ in range(10)]
        coming = [executor.submit(next, loop) for loop in loops]
        assert len(threads()) <= 2
        for ledger in ledgers:
            ledger.append([{"n": 1}])
        assert [next(batch.result(SECONDS).rows()) for batch in coming] == [{"n": 1}] * 1000
        assert len(threads()) <= 2
        again = [executor.submit(next, loop, None) for loop in loops]
        for loop in loops:
            loop.close()
        assert [waiting.result(SECONDS) for waiting in again] == [None] * 1000


def test_reader_that_knows_less_than_the_watch_does_not_wait(served: LedgerStore) -> None:
    orders, watch = served.ledger("orders"), served.client.watch
    orders.append([{"n": 0}])
    before = known(served, "orders")
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(watch.wait, WaitingReader(), [before], 60_000)
        orders.append([{"n": 1}])
        (moved,) = waiting.result(SECONDS)
    assert moved.end == orders.end().end
    assert watch.wait(WaitingReader(), [before], 60_000) == [moved]
    assert watch.wait(WaitingReader(), [known(served, "orders")], 50) == []


def test_wake_ends_the_next_wait(served: LedgerStore) -> None:
    served.ledger("orders").append([{"n": 0}])
    reader = WaitingReader()
    reader.wake()
    assert served.client.watch.wait(reader, [known(served, "orders")], 60_000) == []


def test_error_of_one_ledger_leaves_the_others_waiting(served: LedgerStore) -> None:
    for name in ("orders", "bills"):
        served.ledger(name).append([{"n": 0}])
    watch = served.client.watch
    with ThreadPoolExecutor(2) as executor:
        gone = executor.submit(watch.wait, WaitingReader(), [known(served, "bills")], 60_000)
        kept = executor.submit(watch.wait, WaitingReader(), [known(served, "orders")], 60_000)
        served.delete("bills")
        (lost,) = gone.result(SECONDS)
        assert lost.error is not None
        assert lost.error.code == "LEDGER_NOT_FOUND"
        assert not kept.done()
        served.ledger("orders").append([{"n": 1}])
        assert kept.result(SECONDS)


def test_threads_end_with_the_watch(served: LedgerStore) -> None:
    served.ledger("orders").append([{"n": 0}])
    watch = EndWatch(served.client.ask)
    before = set(threads())
    assert watch.wait(WaitingReader(), [known(served, "orders")], 1) == []
    assert len(set(threads()) - before) == 1
    watch.end()
    assert set(threads()) <= before
