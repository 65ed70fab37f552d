"""Append queues for tests: a disk that tests can hold or break, in place of a log's writer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import pytest

from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.log.append_queue import AppendQueue
from pyspark_ledger.ledger.log.pending import CheckedEntry, PendingAppend, PendingChange, PendingRun, Room
from pyspark_ledger.ledger.log.sync_pool import SyncPool
from pyspark_ledger.ledger.log.writer import LogWriter, Settled
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.commits import CommitRun


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
