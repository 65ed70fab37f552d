"""Goal: order is kept, one group at a time, nobody waits for ever. Method: a real queue, a commit that can be held."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from ledger.append_queue import AppendQueue, CheckedEntry, Group, PendingAppend, PendingRun, Room
from ledger.errors import Unavailable
from ledger.position import Position
from ledger.protocol import CommitRun


def item(*sizes: int) -> PendingAppend:
    return PendingAppend([CheckedEntry(b"x" * size, size, 1) for size in sizes], sum(sizes))


def run(*sizes: int) -> PendingRun:
    return PendingRun(CommitRun("l", "q", 0, 1, 1, []), [CheckedEntry(b"", size, 1) for size in sizes], sum(sizes))


class Disk:
    """Commits what it is given, in order; can be made to wait, and says what came in which group."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.inside = 0
        self.most_inside = 0
        self.free = threading.Event()
        self.free.set()
        self.entered = threading.Event()
        self._lock = threading.Lock()

    def commit(self, group: Group) -> None:
        with self._lock:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        self.entered.set()
        assert self.free.wait(10)
        items = group if isinstance(group, list) else [group]
        self.groups.append([one.size for one in items])
        with self._lock:
            self.inside -= 1
        for one in items:
            one.future.set_result(Position(0, 0))  # type: ignore[arg-type]


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.fixture
def make(disk: Disk, executor: ThreadPoolExecutor) -> Callable[..., AppendQueue]:
    return lambda entries=100, size=1000: AppendQueue(executor, lambda: Room(entries, size), disk.commit)


def held(disk: Disk, queue: AppendQueue) -> None:
    """Put one item, and hold the disk with it, so that what follows gathers."""
    disk.free.clear()
    disk.entered.clear()
    queue.put(item(1))
    assert disk.entered.wait(10)


@pytest.mark.parametrize(
    ("entries", "size", "put", "groups"),
    [
        (100, 1000, [item(2), item(3), item(4)], [[2, 3, 4]]),
        (2, 1000, [item(2), item(3), item(4)], [[2, 3], [4]]),
        (100, 5, [item(2), item(3), item(4)], [[2, 3], [4]]),
        (0, 0, [item(2), item(3)], [[2], [3]]),
        (1, 1, [item(2, 2, 2)], [[6]]),
        (100, 1000, [item(2), run(7, 1), item(3), run(9)], [[2], [8], [3], [9]]),
    ],
)
def test_what_gathers_while_the_disk_works_goes_together_in_order_and_a_run_goes_alone(
    make: Callable[..., AppendQueue],
    disk: Disk,
    entries: int,
    size: int,
    put: list[PendingAppend | PendingRun],
    groups: list[list[int]],
) -> None:
    queue = make(entries, size)
    held(disk, queue)
    for one in put:
        queue.put(one)
    disk.free.set()
    put[-1].future.result(10)
    assert disk.groups == [[1], *groups]
    assert disk.most_inside == 1


def test_close_waits_for_what_was_queued_and_refuses_what_comes_after(
    make: Callable[..., AppendQueue], disk: Disk
) -> None:
    queue = make()
    held(disk, queue)
    last = item(2)
    queue.put(last)
    closing = threading.Thread(target=queue.close, args=("gone fishing",))
    closing.start()
    while not queue._closed:
        pass
    with pytest.raises(Unavailable, match="gone fishing"):
        queue.put(item(3))
    assert closing.is_alive()
    assert not last.future.done()
    disk.free.set()
    closing.join(10)
    assert last.future.done()
    assert disk.groups == [[1], [2]]
    queue.close("again")


def test_a_future_that_its_owner_cancels_stops_nobody(make: Callable[..., AppendQueue], disk: Disk) -> None:
    """A cancelled future refuses its result with an exception, in the one thread that everybody waits for."""
    queue = make()
    held(disk, queue)
    impatient, patient = item(2), item(3)
    queue.put(impatient)
    queue.put(patient)
    assert not impatient.future.cancel()
    disk.free.set()
    patient.future.result(10)
    assert impatient.future.result(10) == Position(0, 0)


def test_logs_that_never_fall_silent_do_not_keep_another_waiting(executor: ThreadPoolExecutor) -> None:
    """As many busy logs as there are threads, each put to again in every commit; one more log still gets its turn."""
    stop = threading.Event()
    queues: list[AppendQueue] = []

    def busy(number: int) -> Callable[[Group], None]:
        def commit(group: Group) -> None:
            if not stop.is_set():
                queues[number].put(item(1))

        return commit

    queues += [AppendQueue(executor, lambda: Room(100, 1000), busy(number)) for number in range(2)]
    for queue in queues:
        queue.put(item(1))
    done: Future[bool] = Future()
    late = AppendQueue(executor, lambda: Room(100, 1000), lambda _: done.set_result(True))
    late.put(item(1))
    try:
        assert done.result(5)
    finally:
        stop.set()
        for queue in queues:
            queue.close("over")


def test_many_threads_lose_nothing_and_each_keeps_its_order(make: Callable[..., AppendQueue], disk: Disk) -> None:
    queue = make(entries=7)
    sent: dict[int, list[PendingAppend]] = {}

    def produce(number: int) -> None:
        sent[number] = [item(1000 * number + i) for i in range(200)]
        for one in sent[number]:
            queue.put(one)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.close("over")
    arrived = [size for group in disk.groups for size in group]
    assert len(arrived) == 800
    assert disk.most_inside == 1
    for number in range(1, 5):
        assert [size for size in arrived if size // 1000 == number] == [one.size for one in sent[number]]
