"""Goal: order is kept, one writes beside one who syncs, nobody waits for ever.

Method: a real queue, a disk that can be held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import cast

import pytest

from pyspark_ledger.ledger.errors import LedgerError, Unavailable
from pyspark_ledger.ledger.log.append_queue import AppendQueue
from pyspark_ledger.ledger.log.pending import CheckedEntry, Item, PendingAppend, PendingChange, PendingRun, Room
from pyspark_ledger.ledger.log.sync_pool import SyncJob, SyncPool
from pyspark_ledger.ledger.log.writer import LogWriter, Settled
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.commits import CommitRun
from tests.rigs.deadline import wait_until


def item(*sizes: int) -> PendingAppend:
    return PendingAppend([CheckedEntry(b"x" * size, size, 1) for size in sizes], sum(sizes))


def run(*sizes: int) -> PendingRun:
    return PendingRun(CommitRun("l", "q", 0, 1, 1, []), [CheckedEntry(b"", size, 1) for size in sizes], sum(sizes))


@dataclass
class Written:
    group: list[PendingAppend]
    ledger: Disk


class Disk:
    """Writes what it is given, in order; syncs can be made to wait or to fail, and it says what went into which."""

    name = "orders"

    def __init__(self, entries: int = 100, size: int = 1000) -> None:
        self.given_up: list[LedgerError] = []
        self.most = Room(entries, size)
        self.synced: list[list[int]] = []
        self.runs: list[int] = []
        self.order: list[int] = []
        self.written: list[int] = []
        self.inside = {"write": 0, "sync": 0}
        self.fail_next = 0
        self.free = threading.Event()
        self.free.set()
        self.entered = threading.Event()
        self.queue: AppendQueue

    def room(self) -> Room:
        return self.most

    def is_writable(self) -> bool:
        return True

    def write(self, group: list[PendingAppend], _settled: Settled) -> Written:
        with self._alone("write"):
            self.written += [item.size for item in group]
            return Written(group, self)

    def begin_sync(self, written: list[Written]) -> int:
        assert written
        with self._alone("sync"):
            self.entered.set()
            assert self.free.wait(60)
            if self.fail_next:
                self.fail_next -= 1
                raise OSError("as asked for")
        return -1

    def end_sync(self, written: list[Written], error: OSError | None, seconds: float) -> None:
        raise AssertionError("no sync has begun")

    def settle(self, written: list[Written], error: Exception | None) -> list[PendingAppend]:
        with self._alone("sync"):
            items = [item for part in written for item in part.group]
            if error is not None:
                return items
            self._done(items)
            return []

    def commit_run(self, run: PendingRun) -> None:
        with self._alone("write"), self._alone("sync"):
            self.synced.append([run.size])
            self.order.append(run.size)
            run.future.set_result(None)  # type: ignore[arg-type]

    def make_change(self, change: PendingChange) -> None:
        with self._alone("write"), self._alone("sync"):
            change.future.set_result(change.change())

    def give_up(self, error: LedgerError) -> None:
        with self._alone("write"), self._alone("sync"):
            self.given_up.append(error)

    def _done(self, items: list[PendingAppend]) -> None:
        self.synced.append([one.size for one in items])
        self.order += [one.size for one in items]
        for one in items:
            one.future.set_result(Position(0, 0))

    @contextmanager
    def _alone(self, stage: str) -> Iterator[None]:
        self.inside[stage] += 1
        assert self.inside[stage] == 1, f"two threads have the {stage} stage"
        try:
            yield
        finally:
            self.inside[stage] -= 1


def queue_of(executor: ThreadPoolExecutor, pool: SyncPool, disk: Disk) -> AppendQueue:
    """Return a queue that drives a disk instead of the writer of a log."""
    return AppendQueue(executor, pool, cast("LogWriter", disk))


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as executor:
        yield executor


@pytest.fixture
def pool() -> Iterator[SyncPool]:
    pool = SyncPool(lambda: None)
    yield pool
    pool.close()


@pytest.fixture
def make(executor: ThreadPoolExecutor, pool: SyncPool) -> Callable[..., tuple[AppendQueue, Disk]]:
    def made(entries: int = 100, size: int = 1000) -> tuple[AppendQueue, Disk]:
        disk = Disk(entries, size)
        disk.queue = queue_of(executor, pool, disk)
        return disk.queue, disk

    return made


Make = Callable[..., tuple[AppendQueue, Disk]]


def held(disk: Disk) -> PendingAppend:
    """Put one item, and hold its sync, so that what follows gathers."""
    disk.free.clear()
    disk.entered.clear()
    first = item(1)
    disk.queue.put(first, here=True)  # the write stage has ended when this returns
    assert disk.entered.wait(60)
    return first


def closed(queue: AppendQueue) -> None:
    """Close a queue, in time."""
    closing = threading.Thread(target=queue.close, args=("over",), daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive(), "close waits for a stage that no thread runs"


@pytest.mark.parametrize(
    ("entries", "size", "put", "synced"),
    [
        (100, 1000, [item(2), item(3), item(4)], [[2, 3, 4]]),
        (100, 1000, [item(2), run(7, 1), item(3), run(9)], [[2], [8], [3], [9]]),
        (100, 1000, [run(7), run(8), item(3)], [[7], [8], [3]]),
    ],
)
def test_appends_during_a_sync_are_grouped_in_order_and_a_run_is_alone(
    make: Make,
    entries: int,
    size: int,
    put: list[PendingAppend | PendingRun],
    synced: list[list[int]],
) -> None:
    queue, disk = make(entries, size)
    held(disk)
    putting = threading.Thread(target=lambda: [queue.put(one, here=True) for one in put])
    putting.start()
    wait_until(lambda: not putting.is_alive() or isinstance(put[0], PendingRun) or bool(disk.written[1:]))
    disk.free.set()
    putting.join(60)
    put[-1].future.result(60)
    assert [size for group in disk.synced for size in group] == [1, *[size for group in synced for size in group]]
    assert [group for group in disk.synced if group[0] in (7, 8, 9)] == [g for g in synced if g[0] in (7, 8, 9)]


def test_the_next_group_is_written_while_the_one_before_is_synced(make: Make) -> None:
    queue, disk = make()
    first = held(disk)
    items = [item(2), item(3)]
    for number, one in enumerate(items, 2):
        queue.put(one, here=True)
        wait_until(lambda number=number: len(disk.written) == number)  # type: ignore[misc]
    assert not first.future.done()
    assert disk.inside["sync"] == 1
    disk.free.set()
    items[-1].future.result(60)
    assert disk.synced == [[1], [2, 3]], "both with one sync"


@pytest.mark.parametrize(
    ("entries", "size", "groups"),
    [(2, 1000, [[2, 3], [4]]), (100, 5, [[2, 3], [4]]), (0, 0, [[2], [3], [4]]), (100, 1000, [[2, 3, 4]])],
)
def test_group_takes_what_fits_into_the_segment_and_at_least_one_append(
    make: Make, entries: int, size: int, groups: list[list[int]]
) -> None:
    queue, disk = make(entries, size)
    taken: list[list[int]] = []
    entered, free = threading.Event(), threading.Event()
    write = disk.write

    def held_write(group: list[PendingAppend], settled: Settled) -> Written:
        taken.append([one.size for one in group])
        entered.set()
        assert free.wait(60)
        return write(group, settled)

    disk.write = held_write  # type: ignore[method-assign]
    first = threading.Thread(target=lambda: queue.put(item(1), here=True))
    first.start()
    assert entered.wait(60)
    items = [item(2), item(3), item(4)]
    for one in items:
        queue.put(one, here=True)
    free.set()
    items[-1].future.result(60)
    first.join(60)
    assert taken == [[1], *groups]


@pytest.mark.parametrize("failures", [1, 2, 3])
@pytest.mark.parametrize("behind", [[], [2, 3], [2, -7, 3]])
def test_appends_of_a_failed_sync_are_written_again_before_later_ones(
    make: Make, failures: int, behind: list[int]
) -> None:
    queue, disk = make()
    held(disk)
    disk.fail_next = failures
    put = [item(size) if size > 0 else run(-size) for size in behind]
    # A run waits for the sync in flight on its caller's thread.
    putting = threading.Thread(target=lambda: [queue.put(one, here=True) for one in put])
    putting.start()
    disk.free.set()
    putting.join(60)
    closed(queue)
    assert disk.order == [1, *map(abs, behind)]


def test_close_waits_for_what_was_queued_and_refuses_what_comes_after(make: Make) -> None:
    queue, disk = make()
    held(disk)
    last = item(2)
    queue.put(last)
    closing = threading.Thread(target=queue.close, args=("gone fishing",))
    closing.start()
    wait_until(lambda: bool(queue._closed))
    with pytest.raises(Unavailable, match="gone fishing"):
        queue.put(item(3), here=True)
    assert closing.is_alive()
    assert not last.future.done()
    disk.free.set()
    closing.join(60)
    assert last.future.done()
    assert disk.synced == [[1], [2]]
    queue.close("again")


def test_a_future_that_its_owner_cancels_stops_nobody(make: Make) -> None:
    """A cancelled future refuses its result with an exception, in the one thread that everybody waits for."""
    queue, disk = make()
    held(disk)
    impatient, patient = item(2), item(3)
    queue.put(impatient)
    queue.put(patient)
    assert not impatient.future.cancel()
    disk.free.set()
    patient.future.result(60)
    assert impatient.future.result(60) == Position(0, 0)


def test_logs_that_never_fall_silent_do_not_keep_another_waiting(make: Make) -> None:
    """Start as many busy logs as threads, each with a new append in every sync. One more log is still synced."""
    stop = threading.Event()
    queues = []
    for _ in range(3):
        queue, disk = make()
        settle = disk.settle

        def busy(
            written: list[Written],
            error: Exception | None,
            settle: Callable[[list[Written], Exception | None], list[PendingAppend]] = settle,
            queue: AppendQueue = queue,
        ) -> list[PendingAppend]:
            if not stop.is_set():
                with suppress(Unavailable):  # the queue may be closed since `stop` was looked at
                    queue.put(item(1), here=True)
            return settle(written, error)

        disk.settle = busy  # type: ignore[method-assign]
        queues.append(queue)
        queue.put(item(1), here=True)
    late, _ = make()
    last = item(2)
    late.put(last)
    try:
        assert last.future.result(60) == Position(0, 0)
    finally:
        stop.set()
        for queue in queues:
            closed(queue)


@pytest.mark.parametrize("broken", [False, True])
def test_logs_that_wait_for_their_syncs_do_so_with_fewer_threads_than_logs(broken: bool, pool: SyncPool) -> None:
    """Each log waits before its second group, as for a new ledger, and the only thread there is has to do it all."""
    with ThreadPoolExecutor(1) as executor:
        queues, last = [], []
        for _ in range(3):
            disk = Disk(entries=1)
            queue = disk.queue = queue_of(executor, pool, disk)
            write = disk.write

            def full(
                group: list[PendingAppend],
                settled: Settled,
                write: Callable[[list[PendingAppend], Settled], Written] = write,
            ) -> Written:
                return write(settled(broken) + group, settled)

            disk.write = full  # type: ignore[method-assign]
            items = [item(1), item(2), item(3)]
            before = threading.Event()
            executor.submit(before.wait, 10)  # until all of them wait
            for one in items:
                queue.put(one)
            before.set()
            queues.append(queue)
            last.append((disk, items[-1]))
        for disk, end in last:
            assert end.future.result(60) == Position(0, 0)
            assert disk.order == [1, 2, 3]
        for queue in queues:
            closed(queue)


def test_many_threads_lose_nothing_and_each_keeps_its_order(make: Make) -> None:
    queue, disk = make(entries=7)
    disk.fail_next = 5
    sent: dict[int, list[PendingAppend]] = {}

    def produce(number: int) -> None:
        sent[number] = [item(1000 * number + i) for i in range(200)]
        for one in sent[number]:
            queue.put(one, here=True)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    closed(queue)
    assert len(disk.order) == 800
    for number in range(1, 5):
        assert [size for size in disk.order if size // 1000 == number] == [one.size for one in sent[number]]


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


def test_appends_during_a_sync_of_limited_size_wait_until_they_are_large(make: Make, pool: SyncPool) -> None:
    pool.sync_bytes = 10
    queue, disk = make()
    held(disk)
    items = [item(size) for size in (3, 4, 5, 6, 7, 2)]
    for count, written in enumerate(([1], [1], [1, 3, 4, 5], [1, 3, 4, 5], [1, 3, 4, 5, 6, 7], [1, 3, 4, 5, 6, 7])):
        queue.put(items[count], here=True)
        assert disk.written == written
    disk.free.set()
    for one in items:
        one.future.result(60)
    assert disk.synced == [[1], [3, 4, 5], [6, 7], [2]]
    closed(queue)


def test_an_append_that_waits_for_a_sync_is_written_before_a_run(make: Make, pool: SyncPool) -> None:
    pool.sync_bytes = 10
    queue, disk = make()
    held(disk)
    queue.put(item(3), here=True)
    assert disk.written == [1]
    last = run(7)
    queue.put(last)
    disk.free.set()
    last.future.result(60)
    assert disk.order == [1, 3, 7]


def test_only_a_quick_write_of_an_idle_log_is_left_to_the_pool(executor: ThreadPoolExecutor, pool: SyncPool) -> None:
    left: list[SyncJob] = []

    def write(job: SyncJob) -> bool:
        left.append(job)
        job.write()
        return True

    pool.write = write  # type: ignore[method-assign]
    disk = Disk(size=10**9)
    queue = queue_of(executor, pool, disk)
    for appended, expected in ((item(10), 1), (item(256 * 1024 + 1), 1), (item(10), 2)):
        queue.put(appended, here=True)
        appended.future.result(60)
        assert len(left) == expected
        queue._settled(False)
    disk.is_writable = lambda: False  # type: ignore[method-assign]
    queue.put(rolled := item(10), here=True)
    rolled.future.result(60)
    assert len(left) == 2
