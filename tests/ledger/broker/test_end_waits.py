"""Goal: a waiting call returns as soon as a ledger has moved or a later call replaces it. Method: a real broker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.clock import pause
from pyspark_ledger.ledger.errors import Unauthenticated, Unavailable
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.actions import StopBroker
from pyspark_ledger.ledger.protocol.ends import KnownEnd, MovedEnds, WaitEnds
from pyspark_ledger.ledger.transport.tokens import TaskClaims
from tests.rigs.broker_thread import served_store as store

__all__ = ["store"]
SECONDS = 60


def known(store: LedgerStore, name: str = "orders") -> KnownEnd:
    end = store.ledger(name).end()
    return KnownEnd(name, end.incarnation, end.end)


def wait(store: LedgerStore, turn: int, *ledgers: KnownEnd, wait_ms: int = 600_000) -> MovedEnds:
    return store.client.ask(WaitEnds("watch", turn, wait_ms, list(ledgers)), deadline_ms=0)


def test_call_returns_when_one_of_its_ledgers_moves(store: LedgerStore) -> None:
    for name in ("orders", "bills"):
        store.ledger(name).append([{"n": 0}])
    both = known(store), known(store, "bills")
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(wait, store, 0, *both)
        store.ledger("bills").append([{"n": 1}])
        (moved,) = waiting.result(SECONDS).moved
        assert (moved.name, moved.end) == ("bills", store.ledger("bills").end().end)
        waiting = executor.submit(wait, store, 0, known(store), known(store, "bills"))
        store.ledger("orders").terminate()
        (ended,) = waiting.result(SECONDS).moved
        assert (ended.name, ended.terminated) == ("orders", True)


def test_later_turn_ends_the_earlier_call_and_not_the_reverse(store: LedgerStore) -> None:
    store.ledger("orders").append([{"n": 0}])
    at = known(store)
    with ThreadPoolExecutor(2) as executor:
        first = executor.submit(wait, store, 5, at)
        pause(50)
        second = executor.submit(wait, store, 6, at)
        assert first.result(SECONDS).moved == []
        assert wait(store, 4, at).moved == [], "a delayed call returns at once"
        assert not second.done()
        store.ledger("orders").append([{"n": 1}])
        assert len(second.result(SECONDS).moved) == 1


def test_added_partitions_and_deleted_ledgers_are_news(store: LedgerStore) -> None:
    clicks = store.create_partitioned("clicks", 2)
    store.ledger("orders").append([{"n": 0}])
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(wait, store, 0, KnownEnd("clicks", "", EARLIEST, 2), known(store))
        clicks.increase_partitions(3)
        assert [(moved.name, moved.partitions) for moved in waiting.result(SECONDS).moved] == [("clicks", 3)]
        waiting = executor.submit(wait, store, 0, known(store))
        store.delete("orders")
        (gone,) = waiting.result(SECONDS).moved
        assert gone.error is not None
        assert gone.error.code == "LEDGER_NOT_FOUND"


def test_broker_that_stops_ends_its_waiting_calls(store: LedgerStore) -> None:
    store.ledger("orders").append([{"n": 0}])
    store.client.revive = None
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(wait, store, 0, known(store))
        store.client.ask(StopBroker())
        with pytest.raises(Unavailable):
            waiting.result(SECONDS)


def test_task_waits_only_for_the_ledgers_of_its_token() -> None:
    claims = TaskClaims("read", ["a"], 1)
    ask = [KnownEnd(name, "", EARLIEST) for name in ("a", "b")]
    claims.require_allows(WaitEnds("w", 0, 0, ask[:1]))
    with pytest.raises(Unauthenticated, match=r"end\.wait of a, b"):
        claims.require_allows(WaitEnds("w", 0, 0, ask))  # the whole call, before the broker looks for any ledger
    with pytest.raises(Unauthenticated):
        TaskClaims("write", ["a"], 1).require_allows(WaitEnds("w", 0, 0, ask[:1]))
