"""Goal: who syncs many logs takes several at once, answers after one look behind the last sync, and starves none.

Method: turns that write down what is done to them, and can be held.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.log.sync_pool import SyncPool
from pyspark_ledger.ledger.segment.file_syncs import FILES_MAX, FileSyncs

WAIT = 60


class Turn:
    """Sync job of a log: `rounds` syncs, the first of which can be held up."""

    def __init__(self, name: str, log: list[str], *, rounds: int = 1, taken: bool = False) -> None:
        self.name, self.log, self.rounds, self.taken = name, log, rounds, taken
        self.inside, self.free, self.over = threading.Event(), threading.Event(), threading.Event()
        self.free.set()
        self.looked: list[Exception | None] = []
        self.errors: list[OSError | None] = []
        self.failed: list[BaseException] = []
        self.fd = -1

    def take(self) -> bool:
        self.log.append(f"take {self.name}")
        if self.taken:
            self.over.set()
        return not self.taken

    def file(self) -> Turn:
        self.log.append(f"begin {self.name}")
        return self

    def begin_sync(self) -> int:
        self.inside.set()
        assert self.free.wait(WAIT)
        return self.fd

    def end_sync(self, error: OSError | None) -> None:
        self.log.append(f"end {self.name}")
        self.errors.append(error)

    def answer(self, error: Exception | None) -> bool:
        self.log.append(f"answer {self.name}")
        self.looked.append(error)
        self.rounds -= 1
        if not self.rounds:
            self.over.set()
        return self.rounds > 0

    def fail(self, error: BaseException) -> None:
        self.failed.append(error)
        self.over.set()


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def make(log: list[str]) -> Iterator[Callable[..., SyncPool]]:
    pools: list[SyncPool] = []

    def made(threads: int, look: Callable[[], None] | None = None) -> SyncPool:
        pools.append(SyncPool(threads, look or (lambda: log.append("look"))))
        return pools[-1]

    yield made
    for pool in pools:
        pool.close()


Make = Callable[..., SyncPool]


def held(pool: SyncPool, log: list[str]) -> Turn:
    """A turn that keeps one thread until it is let go."""
    job = Turn("held", log)
    job.free.clear()
    pool.submit(job)
    assert job.inside.wait(WAIT)
    return job


def test_jobs_waiting_for_the_only_thread_start_together_with_one_check(make: Make, log: list[str]) -> None:
    pool = make(1)
    first = held(pool, log)
    jobs = [Turn(name, log) for name in "abc"]
    for job in jobs:
        pool.submit(job)
    first.free.set()
    assert all(job.over.wait(WAIT) for job in jobs)
    # The thread takes the first of them as its own, and the two others with it.
    done = log[log.index("answer held") + 1 :]
    assert done == [
        *("take a", "take b", "take c"),
        *("begin a", "end a", "begin b", "end b", "begin c", "end c"),
        *("look", "answer a", "answer b", "answer c"),
    ]


def test_sync_pool_with_many_waiting_logs_starts_nine_together(make: Make, log: list[str]) -> None:
    pool = make(1)
    first = held(pool, log)
    jobs = [Turn(f"{number}", log) for number in range(20)]
    for job in jobs:
        pool.submit(job)
    first.free.set()
    assert all(job.over.wait(WAIT) for job in jobs)
    done = log[log.index("answer held") + 1 :]
    rounds = "".join("L" if line == "look" else "" if line[0] in "be" else line[0] for line in done)
    assert rounds == "t" * 9 + "L" + "a" * 9 + "t" * 9 + "L" + "a" * 9 + "tt" + "L" + "aa"


def test_each_log_of_many_hears_of_its_own_file(make: Make, log: list[str], tmp_path: Path) -> None:
    pool = make(1)
    first = held(pool, log)
    jobs = [Turn(name, log) for name in "abc"]
    with (tmp_path / "a").open("wb") as a, (tmp_path / "c").open("wb") as c:
        broken, _ = os.pipe()
        for job, fd in zip(jobs, (a.fileno(), broken, c.fileno()), strict=True):
            job.fd = fd
            pool.submit(job)
        first.free.set()
        assert all(job.over.wait(WAIT) for job in jobs)
    assert [job.errors[0] and job.errors[0].errno for job in jobs] == [None, errno.EINVAL, None]


def test_who_needs_no_sync_does_not_wait_for_those_that_do(make: Make, log: list[str], tmp_path: Path) -> None:
    pool = make(1)
    first = held(pool, log)
    jobs = [Turn(name, log) for name in "abc"]
    with (tmp_path / "b").open("wb") as b:
        jobs[1].fd = b.fileno()
        for job in jobs:
            pool.submit(job)
        first.free.set()
        assert all(job.over.wait(WAIT) for job in jobs)
    done = log[log.index("begin c") + 1 :]
    assert done == ["end c", "look", "answer a", "answer c", "end b", "look", "answer b"]


def test_a_log_has_a_thread_of_its_own_while_there_are_as_many_threads(make: Make, log: list[str]) -> None:
    pool = make(2)
    first = held(pool, log)
    other = Turn("other", log)
    pool.submit(other)
    assert other.over.wait(WAIT)  # though the first is held
    first.free.set()
    assert first.over.wait(WAIT)
    assert log.index("answer other") < log.index("end held")


def test_a_log_that_never_falls_silent_takes_along_who_waits(make: Make, log: list[str]) -> None:
    pool = make(1)
    busy = Turn("busy", log, rounds=1_000_000)
    pool.submit(busy)
    assert busy.inside.wait(WAIT)
    job = Turn("turn", log)
    pool.submit(job)
    assert job.over.wait(WAIT)
    busy.rounds = 1
    assert busy.over.wait(WAIT)


def test_sync_pool_under_more_logs_than_it_can_submit_serves_all_waiters(make: Make, log: list[str]) -> None:
    pool = make(1)
    first = held(pool, log)
    busy = [Turn(f"busy {number}", log, rounds=1_000_000) for number in range(FILES_MAX)]
    job = Turn("turn", log)
    for one in (*busy, job):
        pool.submit(one)
    first.free.set()
    waited = job.over.wait(WAIT)
    for one in busy:
        one.rounds = 1
    assert waited
    assert all(one.over.wait(WAIT) for one in busy)


def test_a_turn_that_somebody_else_has_made_is_passed_over(make: Make, log: list[str]) -> None:
    pool = make(1)
    first = held(pool, log)
    gone, job = Turn("gone", log, taken=True), Turn("turn", log)
    pool.submit(gone)
    pool.submit(job)
    first.free.set()
    assert job.over.wait(WAIT)
    assert "begin gone" not in log
    assert "answer gone" not in log


def test_what_the_look_raises_is_told_to_every_turn(make: Make, log: list[str]) -> None:
    def look() -> None:
        raise OSError("the disk is gone")

    pool = make(1, look)
    jobs = [Turn(name, log) for name in "ab"]
    for job in jobs:
        pool.submit(job)
    assert all(job.over.wait(WAIT) for job in jobs)
    assert [str(job.looked[0]) for job in jobs] == ["the disk is gone"] * 2


@pytest.mark.parametrize("step", ["take", "answer"])
def test_a_turn_that_raises_is_told_and_takes_no_thread_along(make: Make, log: list[str], step: str) -> None:
    pool = make(1)
    broken = Turn("broken", log)
    setattr(broken, step, lambda *_: 1 / 0)
    pool.submit(broken)
    assert broken.over.wait(WAIT)
    assert [type(error) for error in broken.failed] == [ZeroDivisionError]
    job = Turn("turn", log)
    pool.submit(job)
    assert job.over.wait(WAIT)
    assert not job.failed


def test_a_turn_that_raises_among_many_leaves_nobody_waiting(make: Make, log: list[str]) -> None:
    pool = make(1)
    first = held(pool, log)
    jobs = [Turn(name, log) for name in "abc"]
    jobs[0].answer = lambda *_: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    for job in jobs:
        pool.submit(job)
    first.free.set()
    assert all(job.over.wait(WAIT) for job in jobs)
    assert [type(error) for error in jobs[0].failed] == [ZeroDivisionError]
    assert not any(job.failed for job in jobs[1:])
    assert log.count("look") == 2, "they were synced together"


@pytest.mark.parametrize("step", ["file", "begin_sync", "end_sync"])
def test_a_sync_that_raises_is_what_its_log_is_answered(make: Make, log: list[str], step: str) -> None:
    pool = make(1)
    first = held(pool, log)
    jobs = [Turn(name, log) for name in "abc"]
    setattr(jobs[0], step, lambda *_: 1 / 0)
    for job in jobs:
        pool.submit(job)
    first.free.set()
    assert all(job.over.wait(WAIT) for job in jobs)
    assert [[type(error) for error in job.looked] for job in jobs] == [
        [ZeroDivisionError],
        [type(None)],
        [type(None)],
    ]


def test_files_whose_sync_raises_have_failed(
    make: Make, log: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(FileSyncs, "sync", raises)
    pool = make(1)
    first = held(pool, log)
    jobs = [Turn(name, log) for name in "abc"]
    with (tmp_path / "a").open("wb") as file:
        for job in jobs:
            job.fd = file.fileno()
            pool.submit(job)
        first.free.set()
        assert all(job.over.wait(WAIT) for job in jobs)
    assert [[str(error) for error in job.errors] for job in jobs] == [
        ["[Errno 5] the result of the sync is unknown: MemoryError()"]
    ] * 3


def test_where_no_thread_can_be_made_those_that_there_are_do_it(
    make: Make, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make(2)
    first = held(pool, log)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    job = Turn("turn", log)
    pool.submit(job)
    first.free.set()
    assert job.over.wait(WAIT)


def test_closing_makes_all_that_was_asked_for_and_may_be_repeated(make: Make, log: list[str]) -> None:
    pool = make(3)
    jobs = [Turn(str(number), log) for number in range(50)]
    for job in jobs:
        pool.submit(job)
    pool.close()
    pool.close()
    assert all(job.over.is_set() for job in jobs)
    assert log.count("look") <= len(jobs)


def test_many_turns_of_many_threads_are_each_made_once(make: Make, log: list[str]) -> None:
    pool = make(4)
    jobs = [Turn(str(number), log, rounds=1 + number % 3) for number in range(300)]
    submitters = [threading.Thread(target=lambda part=jobs[k::5]: [pool.submit(job) for job in part]) for k in range(5)]
    for asker in submitters:
        asker.start()
    for asker in submitters:
        asker.join(WAIT)
    assert all(job.over.wait(WAIT) for job in jobs)
    for job in jobs:
        assert log.count(f"begin {job.name}") == log.count(f"answer {job.name}") == 1 + int(job.name) % 3
