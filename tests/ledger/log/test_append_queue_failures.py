"""Goal: an unexpected error gives a log up, and nobody waits for ever.

Method: a real queue, steps and threads that fail.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.log.pending import Item, PendingChange
from pyspark_ledger.ledger.log.sync_pool import SyncPool
from pyspark_ledger.ledger.position import Position
from tests.rigs.append_queue import Disk, Make, Written, closed, held, item, queue_of, run
from tests.rigs.deadline import wait_until


class Unforeseen(Exception):
    """An error that no step of a log handles."""


def broken(*_: object) -> None:
    raise Unforeseen("bit flip")


def given_up(disk: Disk, items: list[Item]) -> None:
    """A log that was given up tells everybody: who waits, who comes, who closes it; it is sealed once."""
    futures: list[Future[object]] = [item.future for item in items]
    done, waiting = wait(futures, 10)
    assert not waiting
    for future in done:
        with pytest.raises(Unavailable, match=r"'orders' accepts no append .*Unforeseen\('bit flip'\)"):
            future.result()
    wait_until(lambda: bool(disk.given_up))
    for here in (True, False):
        with pytest.raises(Unavailable, match=r"'orders' accepts no append .*bit flip"):
            disk.queue.put(item(9), here=here)
    closed(disk.queue)
    assert len(disk.given_up) == 1


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("step", ["write", "settle", "room"])
def test_an_error_that_no_step_handles_gives_the_log_up(
    make: Make, step: str, here: bool, caplog: pytest.LogCaptureFixture
) -> None:
    queue, disk = make()
    first = held(disk)
    items: list[Item] = [item(2)]
    setattr(disk, step, broken)
    if step == "room":  # asked where several wait
        change = PendingChange(lambda: None)
        items.append(item(3))
        for one in (change, *items):
            queue.put(one)
        disk.free.set()
        change.future.result(60)
    else:
        for one in items:
            queue.put(one, here=here)
        disk.free.set()
    if step == "settle":
        items.append(first)
    given_up(disk, items)
    if step != "settle":
        assert first.future.result(60) == Position(0, 0), "what was synced before is acknowledged"
    assert "orders is closed for appends because of an unexpected error" in caplog.text
    assert "bit flip" in caplog.text


@pytest.mark.parametrize("step", ["commit_run", "make_change"])
def test_an_error_of_a_run_or_a_change_gives_the_log_up(make: Make, step: str) -> None:
    queue, disk = make()
    held(disk)
    setattr(disk, step, broken)
    items: list[Item] = [PendingChange(lambda: None) if step == "make_change" else run(3), item(4)]
    for one in items:
        queue.put(one)
    disk.free.set()
    given_up(disk, items)


def test_error_while_completing_is_raised_to_waiters_in_the_write_stage(make: Make) -> None:
    queue, disk = make()
    first = held(disk)
    disk.settle = broken  # type: ignore[method-assign, assignment]
    items: list[Item] = [item(2), run(3), item(4)]
    for one in items:
        queue.put(one)
    wait_until(lambda: len(disk.written) == 2)
    disk.free.set()
    given_up(disk, [first, *items])
    assert not disk.runs


def test_an_error_of_a_sync_is_what_the_log_settles_with(executor: ThreadPoolExecutor) -> None:
    """Any such error is a failed sync: the appends are written again, and the log continues."""
    pool = SyncPool(lambda: None)
    disks = [Disk() for _ in range(3)]  # two that wait for the only thread are begun together
    for disk in disks:
        disk.queue = queue_of(executor, pool, disk)
    held(disks[0])
    broken_disk, raised = disks[1], list[str]()
    real = broken_disk.begin_sync

    def once(written: list[Written]) -> int:
        if not raised:
            raised.append("begin_sync")
            raise Unforeseen("bit flip")
        return real(written)

    broken_disk.begin_sync = once  # type: ignore[method-assign]
    items = [item(2) for _ in disks[1:]]
    for disk, one in zip(disks[1:], items, strict=True):
        disk.queue.put(one, here=True)
    disks[0].free.set()
    assert [one.future.result(60) for one in items] == [Position(0, 0) for _ in items]
    assert raised
    for disk in disks:
        closed(disk.queue)
        assert not disk.given_up
    pool.close()


class Refusing(ThreadPoolExecutor):
    """Takes no more work once told; may have queued it all the same, as where no thread can be started."""

    refuse = False
    queues = False

    def submit(self, *arguments: object) -> Future[object]:  # type: ignore[override]
        if self.refuse and self.queues:
            super().submit(*arguments)  # type: ignore[arg-type]
        if self.refuse:
            raise Unforeseen("bit flip")
        return super().submit(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("queues", [True, False])
def test_an_executor_that_refuses_leaves_nobody_waiting(pool: SyncPool, queues: bool) -> None:
    with Refusing(1) as executor:
        disk = Disk()
        queue = disk.queue = queue_of(executor, pool, disk)
        before = threading.Event()
        executor.submit(before.wait, 10)
        executor.refuse, executor.queues = True, queues
        one = item(1)
        queue.put(one)
        before.set()
        given_up(disk, [one])


def test_a_pool_without_a_thread_leaves_nobody_waiting(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = SyncPool(lambda: None)
    monkeypatch.setattr(pool, "_start", broken)
    disk = Disk()
    queue = disk.queue = queue_of(executor, pool, disk)
    one = item(1)
    queue.put(one)
    given_up(disk, [one])


def test_a_callback_that_raises_harms_nobody(make: Make) -> None:
    queue, disk = make()
    first = held(disk)
    first.future.add_done_callback(broken)
    behind = item(2)
    queue.put(behind)
    disk.free.set()
    assert behind.future.result(60) == Position(0, 0)
    closed(queue)
    assert not disk.given_up


def test_an_interrupted_caller_leaves_nobody_waiting(make: Make) -> None:
    queue, disk = make()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    disk.write = interrupted  # type: ignore[method-assign, assignment]
    one = item(1)
    with pytest.raises(KeyboardInterrupt):
        queue.put(one, here=True)
    with pytest.raises(Unavailable, match="KeyboardInterrupt"):
        one.future.result(60)
    closed(queue)
