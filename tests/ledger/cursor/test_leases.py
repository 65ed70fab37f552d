"""Goal: one reader at a time uses a cursor, and acknowledges only rows that it received; a dead reader's lease is free.
Method: a real store whose clock is moved by hand, many threads, a process that really dies, and a plain model of sets.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import LeaseLost, NotFound, Refused
from pyspark_ledger.ledger.ownership import process_identity
from pyspark_ledger.ledger.position import EARLIEST, Position
from pyspark_ledger.ledger.protocol.cursors import (
    AcquireLease,
    DeleteCursor,
    DeliveredRange,
    DescribeCursor,
    LeaseReply,
    OpenCursor,
    ReleaseLease,
    ResetCursor,
)
from pyspark_ledger.ledger.store.store import Store
from tests.rigs.deliveries import ROWS, TIMEOUT, DeliveryRig, LoopWorker, Row, all_rows


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[DeliveryRig]:
    made = DeliveryRig(tmp_path / "store")
    yield made
    made.store.close()


@pytest.fixture
def store(rig: DeliveryRig) -> Store:
    return rig.store


def test_of_many_threads_one_gets_the_lease(store: Store) -> None:
    with ThreadPoolExecutor(8) as executor:
        asked = [AcquireLease("log", "c", f"elsewhere/1/{i}", 1000) for i in range(16)]
        replies = list(executor.map(store.leases.acquire, asked))
    assert sum(reply.granted for reply in replies) == 1
    assert len({reply.holder for reply in replies}) == 1


def test_a_lease_runs_out_by_the_clock_and_is_renewed_and_given_back(rig: DeliveryRig) -> None:
    store = rig.store
    take = store.leases.acquire
    assert take(AcquireLease("log", "c", "elsewhere/1/1", 1000)) == LeaseReply(True, "elsewhere/1/1", rig.now + 1000)
    assert take(AcquireLease("log", "c", "elsewhere/2/2", 1000)).granted is False
    rig.now += 999
    assert take(AcquireLease("log", "c", "elsewhere/1/1", 1000)).granted
    rig.now += 999
    refused = take(AcquireLease("log", "c", "elsewhere/2/2", 1000))
    assert refused == LeaseReply(False, "elsewhere/1/1", rig.now + 1)
    store.leases.release(ReleaseLease("log", "c", "elsewhere/2/2"))
    assert not take(AcquireLease("log", "c", "elsewhere/2/2", 1000)).granted
    rig.now += 1
    assert take(AcquireLease("log", "c", "elsewhere/2/2", 1000)).granted
    store.leases.release(ReleaseLease("log", "c", "elsewhere/2/2"))
    assert take(AcquireLease("log", "c", "elsewhere/3/3", 1)).granted
    for holder, ttl in (("", 1000), ("me", 0), ("me", -1)):
        with pytest.raises(Refused):
            take(AcquireLease("log", "c", holder, ttl))


def test_lease_of_a_dead_process_is_free_and_of_a_living_one_is_not(rig: DeliveryRig) -> None:
    store = rig.store
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        holder = f"{process_identity(child.pid)}/run-1"
        assert store.leases.acquire(AcquireLease("log", "c", holder, 10**9)).granted
        mine = AcquireLease("log", "c", f"{process_identity()}/run-2", 1000)
        assert store.leases.acquire(mine) == LeaseReply(False, holder, rig.now + 10**9)
        child.kill()
    assert store.leases.acquire(mine).granted


def test_a_renewal_is_granted_only_to_the_holder(store: Store) -> None:
    def renew(holder: str) -> bool:
        return store.leases.acquire(AcquireLease("log", "c", holder, 1000, renews=True)).granted

    assert not renew("elsewhere/1/1"), "nobody has the lease"
    store.leases.acquire(AcquireLease("log", "c", "elsewhere/1/1", 1000))
    assert renew("elsewhere/1/1")
    assert not renew("elsewhere/2/2")
    store.leases.release(ReleaseLease("log", "c", "elsewhere/1/1"))
    assert not renew("elsewhere/1/1"), "a renewal on its way must not bring a released lease back"
    assert not store.leases.is_held("public/default/persistent/log", "c")
    assert store.cursors.describe(DescribeCursor("log", "c")).lease_holder == ""


def test_all_leases_of_a_request_are_granted_or_none(rig: DeliveryRig) -> None:
    leases = rig.store.leases
    for cursor in "de":
        rig.store.cursors.open(OpenCursor("log", cursor, Position(0, 0)))
    taken = AcquireLease("log", "d", "elsewhere/1/1", 1000)
    assert leases.acquire(taken).granted
    wanted = [AcquireLease("log", cursor, "elsewhere/2/2", 500) for cursor in "cde"]
    assert [reply.granted for reply in leases.acquire_all(wanted)] == [True, False, True]
    held = [leases.is_held("public/default/persistent/log", cursor) for cursor in "cde"]
    assert held == [False, True, False], "no lease is kept if one is refused"
    with pytest.raises(NotFound, match="has no cursor 'x'"):
        leases.acquire_all([*wanted, AcquireLease("log", "x", "elsewhere/2/2", 500)])
    leases.release_all([ReleaseLease("log", "d", "elsewhere/1/1"), ReleaseLease("log", "x", "elsewhere/1/1")])
    assert all(reply.granted for reply in leases.acquire_all(wanted))
    assert all(leases.is_held("public/default/persistent/log", cursor) for cursor in "cde")


def test_renewals_of_a_request_are_granted_one_by_one(rig: DeliveryRig) -> None:
    leases = rig.store.leases
    rig.store.cursors.open(OpenCursor("log", "d", Position(0, 0)))
    leases.acquire(AcquireLease("log", "c", "elsewhere/1/1", 1000))
    rig.now += 900
    asked = [("gone", "c"), ("log", "x"), ("log", "d"), ("log", "c")]
    renewed = leases.acquire_all([AcquireLease(*of, "elsewhere/1/1", 1000, renews=True) for of in asked])
    assert renewed == [LeaseReply(False, "", 0)] * 3 + [LeaseReply(True, "elsewhere/1/1", rig.now + 1000)]
    rig.now += 900
    assert leases.is_held("public/default/persistent/log", "c")


def test_a_loop_receives_all_rows_within_its_limit_and_moves_the_cursor(rig: DeliveryRig) -> None:
    loop, found = LoopWorker(rig, "a"), Counter[tuple[Row, int]]()
    while shares := loop.take(rows=12):
        rows = rig.rows_of(shares)
        assert sum(rows.values()) == 2 * ROWS, "two entries have ten rows, and a third one is above the limit"
        found += rows
        position = loop.acknowledge(shares)
    assert found == Counter({(row, 0): 1 for row in all_rows()})
    assert (position, rig.backlog()) == (rig.store.ledger("log").snapshot.end, 0)


def test_an_entry_above_the_limit_is_a_batch_of_its_own(rig: DeliveryRig) -> None:
    loop = LoopWorker(rig, "a")
    for number in range(4):
        assert loop.rows(rows=1) == Counter({((0, number, row), 0): 1 for row in range(ROWS)})


def test_a_loop_at_the_end_is_told_the_end_and_not_before(rig: DeliveryRig) -> None:
    loop, end = LoopWorker(rig, "a"), rig.store.ledger("log").snapshot.end
    loop.acknowledge(loop.take())
    assert loop.decide().record == 0
    assert loop.decide().position == end


@pytest.mark.parametrize("dies", [False, True])
def test_rows_of_the_worker_before_come_at_once_and_once(rig: DeliveryRig, dies: bool) -> None:
    first = LoopWorker(rig, "a", ttl_ms=1)
    kept, _ = first.take(rows=20), first.take(rows=20)
    first.acknowledge(kept)
    rig.now += 1
    if dies:
        rig.crash()
    second = LoopWorker(rig, "b")
    assert second.rows(rows=15) == Counter({((1, number, row), 1): 1 for number in range(3) for row in range(ROWS)})
    rest = second.rows(rows=20)
    assert rest == Counter(
        {((1, 3, row), 1): 1 for row in range(ROWS)}
        | {((2, number, row), 0): 1 for number in range(3) for row in range(ROWS)}
    )
    second.rows()
    assert second.rows() == Counter(), "the rows that this worker received are not due"
    rig.now += TIMEOUT
    assert sum(second.rows().values()) == 80


def test_rows_of_a_worker_of_the_same_millisecond_come_at_once(rig: DeliveryRig) -> None:
    first = LoopWorker(rig, "a")
    first.take()
    rig.store.leases.release(ReleaseLease("log", "c", "a"))
    second = LoopWorker(rig, "b")
    assert second.rows() == Counter({(row, 1): 1 for row in all_rows()})
    assert second.rows() == Counter()


def test_a_worker_that_lost_its_lease_neither_decides_nor_acknowledges(rig: DeliveryRig) -> None:
    first = LoopWorker(rig, "host-a/1/1/x", ttl_ms=50)
    mine = first.take(rows=10)
    rig.now += 60
    assert first.acknowledge(mine) == Position(0, 2), "the lease has expired, and no other worker has acquired it"
    mine = first.take(rows=10)
    rig.now += 60
    second = LoopWorker(rig, "host-b/2/2/y")
    theirs = second.take(rows=10)
    second.acknowledge(theirs)
    rig.store.leases.release(ReleaseLease("log", "c", second.holder))
    before = rig.left()
    for call in (lambda: first.acknowledge(mine), first.decide):
        with pytest.raises(LeaseLost, match=r"cursor 'c' of '.*log': host-b/2/2/y has the lease and has released it, "
                           r"this reader is host-a/1/1/x") as error:  # fmt: skip
            call()
        assert error.value.code == "LEDGER_LEASE_LOST"
    assert rig.left() == before
    assert not rig.store.leases.acquire(AcquireLease("log", "c", first.holder, 1000, renews=True)).granted


def test_an_acknowledgement_without_a_holder_is_refused(rig: DeliveryRig) -> None:
    with pytest.raises(LeaseLost, match="nobody has the lease, this reader is unnamed"):
        LoopWorker.acknowledge(_without_lease(rig, ""), [])
    with pytest.raises(LeaseLost, match="nobody has the lease, this reader is a"):
        _without_lease(rig, "a").decide()


def test_a_released_lease_still_acknowledges_until_it_is_acquired(rig: DeliveryRig) -> None:
    first = LoopWorker(rig, "a")
    batches = [first.take(rows=10), first.take(rows=10)]
    rig.store.leases.release(ReleaseLease("log", "c", "a"))
    first.acknowledge(batches[0])
    LoopWorker(rig, "b")
    with pytest.raises(LeaseLost):
        first.acknowledge(batches[1])
    assert rig.backlog() == 90


def test_acknowledgements_in_any_order_and_twice_are_one(rig: DeliveryRig) -> None:
    loop = LoopWorker(rig, "a")
    batches = [loop.take(rows=10) for _ in range(4)]
    for batch in (batches[2], batches[0], batches[0], batches[2], batches[3]):
        loop.acknowledge(batch)
    rig.crash()
    assert rig.left() == set(all_rows()) - {row for at in (0, 2, 3) for row, _ in rig.rows_of(batches[at])}
    assert loop.acknowledge(batches[1]) == Position(1, 4)


def test_a_broker_that_dies_before_the_acknowledgement_changes_nothing(rig: DeliveryRig) -> None:
    loop = LoopWorker(rig, "a")
    batch = loop.take(rows=10)
    rig.crash()
    assert loop.acknowledge(batch) == Position(0, 2)
    rig.crash()
    assert sum(loop.rows().values()) == 90


def test_a_lost_reply_is_decided_again_with_its_given_back_rows(rig: DeliveryRig) -> None:
    loop = LoopWorker(rig, "a")
    loop.nacked = loop.take(rows=10)
    lost = loop.decide(rows=5)
    assert rig.rows_of(loop.decide(rows=5).shares) == rig.rows_of(lost.shares)
    rig.crash()
    assert loop.rows(rows=5) == Counter({((0, 0, row), 1): 1 for row in range(ROWS)})


def test_given_back_rows_come_at_once_and_can_still_be_acknowledged(rig: DeliveryRig) -> None:
    loop = LoopWorker(rig, "a")
    first = loop.take(rows=10)
    loop.nacked = first
    again = loop.take(rows=10)
    assert {(share.count, share.range) for share in again} == {(1, share.range) for share in first}
    loop.acknowledge(first)
    assert rig.backlog() == 90, "a later delivery of the same rows to the same worker"


def test_acknowledgements_of_the_next_request_count_before_its_decision(rig: DeliveryRig) -> None:
    loop = LoopWorker(rig, "a")
    loop.done = first = loop.take(rows=10)
    loop.decide(rows=10)
    assert rig.backlog() == 90
    rig.now += TIMEOUT
    assert not {row for row, _ in rig.rows_of(first)} & {row for row, _ in loop.rows()}, "nor after a lost reply"


def test_a_reset_delivers_afresh_and_an_older_batch_acknowledges_nothing(rig: DeliveryRig) -> None:
    loop = LoopWorker(rig, "a")
    older = loop.take()
    rig.now += 1
    rig.store.cursors.reset(ResetCursor("log", "c", Position(1, 0)))
    loop.acknowledge(older)
    assert rig.backlog() == 80
    fresh = loop.take()
    assert rig.rows_of(fresh) == Counter({(row, 0): 1 for row in all_rows(range(1, 5))})
    loop.acknowledge(older)
    assert rig.backlog() == 80
    loop.acknowledge(fresh)
    assert rig.backlog() == 0


def test_a_reset_before_the_first_batch_skips_nothing(rig: DeliveryRig) -> None:
    loop = LoopWorker(rig, "a")
    rig.store.cursors.reset(ResetCursor("log", "c", rig.store.ledger("log").snapshot.end))
    assert loop.take() == []
    rig.store.cursors.reset(ResetCursor("log", "c", EARLIEST))
    assert sum(loop.rows().values()) == 100


@pytest.mark.parametrize("again", [False, True])
def test_a_deleted_cursor_ends_its_loop_with_an_error(rig: DeliveryRig, again: bool) -> None:
    loop = LoopWorker(rig, "a")
    batch = loop.take()
    rig.store.cursors.delete(DeleteCursor("log", "c"))
    if again:
        rig.store.cursors.open(OpenCursor("log", "c", EARLIEST))
    for call in (loop.decide, lambda: loop.acknowledge(batch)):
        with pytest.raises(LeaseLost if again else NotFound):
            call()


def test_the_log_keeps_only_what_a_loop_has_not_acknowledged(rig: DeliveryRig) -> None:
    rig.retain(0, 0)
    rig.take(Position(1, 0))
    rig.ack(*all_rows(range(1)))
    loop = LoopWorker(rig, "a")
    loop.acknowledge(loop.take(rows=40))
    rig.now += 10
    assert rig.store.ledger("log").trim().ledgers == [0, 1, 2], "Spark repeats no batch that a loop follows"
    assert sum(loop.rows().values()) == 40


def test_a_query_after_a_loop_reads_each_unacknowledged_row(rig: DeliveryRig) -> None:
    loop = LoopWorker(rig, "a")
    loop.acknowledge(loop.take(rows=10))
    loop.take(rows=10)
    rig.now += TIMEOUT
    found = {row for row, _ in rig.take()}
    assert found == set(all_rows()) - {(0, number, row) for number in (0, 1) for row in range(ROWS)}


def test_a_clock_that_is_set_back_holds_no_redelivery_up(rig: DeliveryRig) -> None:
    first = LoopWorker(rig, "a", ttl_ms=1)
    first.take()
    rig.now -= 3_600_000
    with pytest.raises(AssertionError):
        LoopWorker(rig, "b")
    rig.store.leases.release(ReleaseLease("log", "c", "a"))
    assert sum(LoopWorker(rig, "b").rows().values()) == 100


def test_given_back_rows_that_were_acknowledged_and_trimmed_do_not_return(rig: DeliveryRig) -> None:
    rig.retain(0, 0)
    loop = LoopWorker(rig, "a")
    loop.nacked = batch = loop.take()
    rig.ack(*all_rows(range(2)))
    rig.now += 10
    assert rig.store.ledger("log").trim().ledgers == [0, 1]
    assert loop.rows() == Counter({(row, 1): 1 for row in all_rows(range(2, 5))})
    assert loop.acknowledge(batch) == rig.store.ledger("log").snapshot.end


class Chaos:
    """Workers that come and go, lose replies and leases, and a broker that dies, with the sets that a user sees."""

    def __init__(self, rig: DeliveryRig, seed: int) -> None:
        self.rig, self.chance = rig, random.Random(seed)
        self.workers = [LoopWorker(rig, "0", ttl_ms=500)]
        self.held: list[tuple[LoopWorker, list[DeliveredRange]]] = []
        self.handed, self.done = set[Row](), set[Row]()

    def seen(self, shares: list[DeliveredRange]) -> set[Row]:
        return {row for row, _ in self.rig.rows_of(shares)}

    def take(self) -> None:
        worker = self.chance.choice(self.workers[-2:])
        done = self.seen(worker.done)
        try:
            shares = worker.take(self.chance.randrange(1, 30))
        except LeaseLost:
            assert worker is not self.workers[-1]
        else:
            self.done |= done
            self.held.append((worker, shares))
            self.handed |= self.seen(shares)

    def lose_reply(self) -> None:
        self.workers[-1].decide()
        self.done |= self.seen(self.workers[-1].done)

    def settle(self) -> None:
        if not self.held:
            return
        worker, shares = self.held.pop(self.chance.randrange(len(self.held)))
        how = self.chance.random()
        if how < 0.5:
            (worker.nacked if how < 0.25 else worker.done).extend(shares)
            return
        try:
            worker.acknowledge(shares)
        except LeaseLost:
            assert worker is not self.workers[-1]
        else:
            assert worker is self.workers[-1]
            self.done |= self.seen(shares)

    def replace_worker(self) -> None:
        self.rig.now += 600
        self.workers.append(LoopWorker(self.rig, str(len(self.workers)), ttl_ms=500))

    def crash(self) -> None:
        self.rig.crash()

    def pass_time(self) -> None:
        self.rig.now += self.chance.randrange(1, 400)


@pytest.mark.parametrize("seed", range(8))
def test_no_row_is_lost_or_acknowledged_unseen_whatever_happens(rig: DeliveryRig, seed: int) -> None:
    chaos = Chaos(rig, seed)
    steps = [chaos.take, chaos.settle, chaos.lose_reply, chaos.replace_worker, chaos.crash, chaos.pass_time]
    for _ in range(120):
        chaos.chance.choices(steps, (4, 4, 1, 1, 1, 1))[0]()
        assert rig.left() == set(all_rows()) - chaos.done
        assert chaos.done <= chaos.handed
    rig.now += TIMEOUT
    last = LoopWorker(rig, "last")
    while shares := last.take():
        chaos.handed |= chaos.seen(shares)
        last.acknowledge(shares)
    assert rig.left() == set()
    assert chaos.handed == set(all_rows())


def _without_lease(rig: DeliveryRig, holder: str) -> LoopWorker:
    loop = LoopWorker.__new__(LoopWorker)
    loop.rig, loop.holder, loop.nacked, loop.done, loop.after, loop.since_ms = rig, holder, [], [], 0, 0
    return loop
