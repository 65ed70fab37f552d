"""Goal: a lease lasts exactly as long as its loop, and all leases cost one thread. Method: a real broker, short leases,
loops that nobody closes, leases that another reader takes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.consumer import deliveries, joined_deliveries, lease
from pyspark_ledger.ledger.consumer.batches import Batches
from pyspark_ledger.ledger.consumer.lease import CursorLease, renewals_of
from pyspark_ledger.ledger.errors import LeaseLost, Refused
from pyspark_ledger.ledger.protocol.cursors import AcquireLease

SECONDS = 30


def wait_until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < until
        time.sleep(0.01)


def renewing() -> int:
    return sum(thread.name == "ledger-leases" for thread in threading.enumerate())


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE_MS", 2_000)
    monkeypatch.setattr(lease, "_RENEW_MS", 20)


@pytest.mark.usefixtures("short")
def test_leases_of_many_loops_are_renewed_by_one_thread_that_ends(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    orders.append([{"id": 1}])
    cursors = [orders.cursor(f"c{number}") for number in range(5)]
    loops = [cursor.batches() for cursor in cursors]
    first = [cursor.state().lease_until_ms for cursor in cursors]
    wait_until(lambda: all(cursor.state().lease_until_ms > at for cursor, at in zip(cursors, first, strict=True)))
    assert renewing() == 1
    for batches in loops[1:]:
        batches.close()
    before = cursors[0].state().lease_until_ms
    wait_until(lambda: cursors[0].state().lease_until_ms > before)
    assert [bool(cursor.state().lease_holder) for cursor in cursors] == [True, False, False, False, False]
    loops[0].close()
    wait_until(lambda: renewing() == 0)
    cursors[0].batches().close()


def test_loop_that_nobody_closes_does_not_keep_its_lease(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    orders.append([{"id": 1}])
    billing = orders.cursor("billing")
    for round_ in range(20):
        for batch in billing.batches():
            assert batch.redeliveries == round_
            break


@pytest.mark.usefixtures("short")
def test_lease_that_another_reader_acquired_is_not_taken_back(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    orders.append([{"id": 1}])
    billing = orders.cursor("billing")
    batches = billing.batches()
    batch = next(batches)
    billing.delete()
    other = orders.cursor("billing").ledger.client.ask(AcquireLease("orders", "billing", "elsewhere/1/1/x", 60_000))
    assert other.granted
    wait_until(lambda: renewing() == 0)
    assert billing.state().lease_holder == "elsewhere/1/1/x"
    for call in (batch.acknowledge, batch.nack, lambda: next(batches)):
        with pytest.raises(LeaseLost, match="elsewhere/1/1/x has the lease until"):
            call()
    batches.close()
    assert billing.state().lease_holder == "elsewhere/1/1/x"


def test_refusal_names_a_reader_of_another_host(store: LedgerStore) -> None:
    orders = store.ledger("orders")
    orders.append([{"id": 1}])
    orders.cursor("billing")
    renewals = renewals_of(orders.client)
    renewals.acquire([CursorLease("orders", "billing", "machine-7/41/99/abc")])
    with pytest.raises(Exception, match=r"process 41 of host machine-7 until .* \(reader machine-7/41/99/abc\)"):
        orders.cursor("billing").batches()
    renewals.drop(CursorLease("orders", "billing", "machine-7/41/99/abc"))
    renewals.release_dropped()
    orders.cursor("billing").batches().close()


def test_loop_over_many_ledgers_makes_the_requests_of_one(store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ask_once = list[str](), store.client._ask_once

    def counted(request: Any, *rest: Any) -> Any:
        asked.append(request.call.name)
        return ask_once(request, *rest)

    def requests_of(use: Callable[[], object]) -> list[str]:
        asked.clear()
        use()
        return asked.copy()

    for number in range(20):
        store.ledger(f"box-{number}").append([{"id": number}])
    store.create_partitioned("box-wide", 3)
    monkeypatch.setattr(store.client, "_ask_once", counted)
    monkeypatch.setattr(lease, "_RENEW_MS", 600_000)
    assert requests_of(lambda: store.cursor("worker", ledgers_pattern="box-.*")) == [
        "list",
        "survey",
        "cursor.open.many",
    ]
    worker = store.cursor("worker", ledgers_pattern="box-.*")
    begun = ["list", "survey", "cursor.open.many", "lease.acquire.many", "delivery.get.many"]
    loops = list[Batches[Any]]()
    assert requests_of(lambda: loops.append(worker.batches(wait=0))) == begun
    assert requests_of(renewals_of(store.client)._renew) == ["lease.acquire.many"]
    assert sum(batch.num_rows for batch in loops[0]) == 20
    assert asked.count("delivery.next") < 2 * 20 + 3, "an empty partition is not asked"
    loops[0].close()
    assert asked.count("lease.release.many") == 1
    assert not any(state.lease_holder for state in worker.state().ledgers.values())


@pytest.mark.usefixtures("short")
def test_loop_over_more_ledgers_than_a_request_has_renews_all_leases(
    store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (lease, deliveries, joined_deliveries):
        monkeypatch.setattr(module, "CURSORS_MAX", 2)
    for number in range(5):
        store.ledger(f"box-{number}").append([{"id": number}])
    worker = store.cursor("worker", ledgers_pattern="box-.*")
    other = worker.cursors()[4]
    with worker.batches(wait=0):
        first = [cursor.state().lease_until_ms for cursor in worker.cursors()]
        wait_until(lambda: all(c.state().lease_until_ms > at for c, at in zip(worker.cursors(), first, strict=True)))
    with other.batches():
        with pytest.raises(Refused, match="cursor 'worker' of box-4 is in use"):
            worker.batches()
        assert [bool(cursor.state().lease_holder) for cursor in worker.cursors()] == [False] * 4 + [True]


@pytest.mark.usefixtures("short")
def test_a_deleted_cursor_does_not_stop_the_renewals_of_others(store: LedgerStore) -> None:
    for number in range(3):
        store.ledger(f"box-{number}").append([{"id": number}])
    first, third = (store.ledger(f"box-{number}").cursor("worker") for number in (0, 2))
    with store.cursor("worker", ledgers_pattern="box-.*").batches(wait=0):
        first.delete()
        store.delete("box-1")
        at = third.state().lease_until_ms
        wait_until(lambda: third.state().lease_until_ms > at)


def test_a_closed_store_releases_the_leases_of_its_open_loops(store: LedgerStore) -> None:
    store.ledger("orders").append([{"id": 1}])
    opened = connect(store.location)
    batches = opened.ledger("orders").cursor("billing").batches()
    batch = next(batches)
    opened.close()
    with store.ledger("orders").cursor("billing").batches(wait=0) as others:
        assert [again.redeliveries for again in others] == [1]
    with pytest.raises(Refused, match="is closed"):
        batch.acknowledge()
    batches.close()
