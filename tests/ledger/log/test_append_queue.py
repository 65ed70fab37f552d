"""Goal: order is kept, one writes beside one who syncs, nobody waits for ever.

Method: a real queue, a disk that can be held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.log.append_queue import AppendQueue
from pyspark_ledger.ledger.log.pending import PendingAppend, PendingRun
from pyspark_ledger.ledger.log.sync_pool import SyncJob, SyncPool
from pyspark_ledger.ledger.log.writer import Settled
from pyspark_ledger.ledger.position import Position
from tests.rigs.append_queue import Disk, Make, Written, closed, held, item, queue_of, run
from tests.rigs.deadline import wait_until


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
