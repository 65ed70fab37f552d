"""Goal: many logs are synced at the same time. Each log is answered after the sync of its own file, and no log waits
for a slow or broken file.

Method: turns that write down what is done to them, and can be held; files whose sync is held or fails.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.log.sync_pool import SyncJob, SyncPool
from pyspark_ledger.ledger.segment import file_syncs
from pyspark_ledger.ledger.segment.file_syncs import FILES_MAX, FileSyncs
from pyspark_ledger.ledger.segment.writer import UnsyncedRange

WAIT = 60


class Turn(SyncJob):
    """Sync job of a log: `rounds` syncs, the first of which can be held up."""

    def __init__(self, name: str, log: list[str], *, rounds: int = 1, taken: bool = False, fd: int = -1) -> None:
        self.name, self.log, self.rounds, self.taken = name, log, rounds, taken
        self.inside, self.free, self.over = threading.Event(), threading.Event(), threading.Event()
        self.free.set()
        self.looked: list[Exception | None] = []
        self.errors: list[OSError | None] = []
        self.failed: list[BaseException] = []
        self.file = fd

    def write(self) -> None:
        raise AssertionError("no test asked for a write")

    def take(self) -> bool:
        self.log.append(f"take {self.name}")
        if self.taken:
            self.over.set()
        return not self.taken

    def begin_sync(self) -> int:
        self.log.append(f"begin {self.name}")
        self.inside.set()
        assert self.free.wait(WAIT)
        if self.file < 0:
            self.end_sync(None, 0)  # as a log without syncs
        return self.file

    def unsynced(self) -> UnsyncedRange:
        raise AssertionError("a sync of a local file does not ask")

    def end_sync(self, error: OSError | None, seconds: float) -> None:
        assert seconds >= 0
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

    def made(look: Callable[[], None] | None = None) -> SyncPool:
        pools.append(SyncPool(look or (lambda: log.append("look"))))
        return pools[-1]

    yield made
    for pool in pools:
        pool.close()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    opened = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(4)]
    yield opened
    for fd in opened:
        os.close(fd)


Make = Callable[..., SyncPool]


class Held:
    """The thread of the first log and the loop of the others, both held until `free`. Later turns start together."""

    def __init__(self, pool: SyncPool, log: list[str]) -> None:
        self.turns = [Turn(name, log) for name in ("alone", "first")]
        for turn in self.turns:
            turn.free.clear()
            pool.submit(turn)
            assert turn.inside.wait(WAIT)

    def free(self) -> None:
        for turn in self.turns:
            turn.free.set()
            assert turn.over.wait(WAIT)


def run(pool: SyncPool, log: list[str], turns: list[Turn]) -> list[str]:
    """Make turns start together, wait until all are over, and return what was done to them."""
    held = Held(pool, log)
    for turn in turns:
        pool.submit(turn)
    held.free()
    assert all(turn.over.wait(WAIT) for turn in turns)
    names = {turn.name for turn in turns}
    done = [line for line in log if line == "look" or line.split()[1] in names]
    return done[2:]  # without the two looks of the held turns


def by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads sync the files, through `disk.sync_data`, as on a system without the kernel's calls."""
    monkeypatch.setattr(file_syncs, "_CALLS", {})


def test_jobs_waiting_for_the_loop_start_together_with_one_check(make: Make, log: list[str]) -> None:
    assert run(make(), log, [Turn(name, log) for name in "abc"]) == [
        *("take a", "take b", "take c"),
        *("begin a", "end a", "begin b", "end b", "begin c", "end c"),
        *("look", "answer a", "answer b", "answer c"),
    ]


def test_each_log_of_many_hears_of_its_own_file(make: Make, log: list[str], files: list[int]) -> None:
    broken, other = os.pipe()
    turns = [Turn(name, log, fd=fd) for name, fd in zip("abc", (files[0], broken, files[1]), strict=True)]
    run(make(), log, turns)
    os.close(broken), os.close(other)
    assert [turn.errors[0] and turn.errors[0].errno for turn in turns] == [None, errno.EINVAL, None]
    assert turns[0].looked == turns[2].looked == [None]
    assert turns[1].looked == turns[1].errors


def test_a_log_is_answered_while_the_file_of_another_is_still_synced(
    make: Make, log: list[str], files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_threads(monkeypatch)
    free, real = threading.Event(), disk.sync_data

    def slow(fd: int) -> None:
        assert fd != files[0] or free.wait(WAIT)
        real(fd)

    monkeypatch.setattr(disk, "sync_data", slow)
    pool, held = make(), Turn("slow", log, fd=files[0])
    gate = Held(pool, log)
    others = [Turn(f"{number}", log, fd=fd, rounds=5) for number, fd in enumerate(files[1:])]
    for turn in (held, *others):
        pool.submit(turn)
    gate.free()
    assert all(turn.over.wait(WAIT) for turn in others)
    late = Turn("late", log, fd=files[1])
    pool.submit(late)
    assert late.over.wait(WAIT)
    assert "answer slow" not in log
    free.set()
    assert held.over.wait(WAIT)
    assert held.looked == [None]


def test_who_needs_no_sync_does_not_wait_for_those_that_do(make: Make, log: list[str], files: list[int]) -> None:
    turns = [Turn(name, log, fd=fd) for name, fd in zip("abc", (-1, files[0], -1), strict=True)]
    done = run(make(), log, turns)
    assert done[done.index("begin c") + 1 :] == [
        *("end c", "look", "answer a", "answer c"),
        *("end b", "look", "answer b"),
    ]


def test_a_log_that_comes_alone_has_a_thread_of_its_own(make: Make, log: list[str]) -> None:
    pool = make()
    first = Turn("first", log)
    first.free.clear()
    pool.submit(first)
    assert first.inside.wait(WAIT)
    other = Turn("other", log)
    pool.submit(other)
    assert other.over.wait(WAIT)  # though the first is held
    first.free.set()
    assert first.over.wait(WAIT)
    assert log.index("answer other") < log.index("end first")


@pytest.mark.parametrize("busy", [1, 2, FILES_MAX + 2])
def test_logs_that_never_fall_silent_keep_nobody_waiting(
    make: Make, log: list[str], files: list[int], busy: int
) -> None:
    pool = make()
    held = Held(pool, log)
    turns = [Turn(f"busy {number}", log, rounds=1_000_000, fd=files[0]) for number in range(busy)]
    job = Turn("turn", log, fd=files[1])
    for turn in (*turns, job):
        pool.submit(turn)
    held.free()
    waited = job.over.wait(WAIT)
    for turn in turns:
        turn.rounds = 1
    assert waited
    assert all(turn.over.wait(WAIT) for turn in turns)


def test_a_turn_that_somebody_else_has_made_is_passed_over(make: Make, log: list[str]) -> None:
    gone, job = Turn("gone", log, taken=True), Turn("turn", log)
    run(make(), log, [gone, job])
    assert "begin gone" not in log
    assert "answer gone" not in log


def test_what_the_look_raises_is_told_to_every_turn(make: Make, log: list[str], files: list[int]) -> None:
    def look() -> None:
        raise OSError("the disk is gone")

    turns = [Turn(name, log, fd=fd) for name, fd in zip("abc", (-1, *files[:2]), strict=True)]
    run(make(look), log, turns)
    assert [str(turn.looked[0]) for turn in turns] == ["the disk is gone"] * 3
    assert [turn.errors for turn in turns] == [[None]] * 3, "the files are whole"


@pytest.mark.parametrize("step", ["take", "answer"])
@pytest.mark.parametrize("alone", [True, False])
def test_a_turn_that_raises_is_told_and_takes_no_thread_along(
    make: Make, log: list[str], step: str, alone: bool
) -> None:
    pool = make()
    broken, job = Turn("broken", log), Turn("turn", log)
    setattr(broken, step, lambda *_: 1 / 0)
    if alone:
        for turn in (broken, job):
            pool.submit(turn)
            assert turn.over.wait(WAIT)
    else:
        run(pool, log, [broken, job])
    assert [type(error) for error in broken.failed] == [ZeroDivisionError]
    assert not job.failed


@pytest.mark.parametrize("step", ["begin_sync", "end_sync"])
def test_a_sync_that_raises_is_what_its_log_is_answered(
    make: Make, log: list[str], files: list[int], step: str
) -> None:
    turns = [Turn(name, log, fd=fd) for name, fd in zip("abc", files[:3], strict=True)]
    setattr(turns[0], step, lambda *_: 1 / 0)
    run(make(), log, turns)
    assert [[type(error) for error in turn.looked] for turn in turns] == [
        [ZeroDivisionError],
        [type(None)],
        [type(None)],
    ]


@pytest.mark.parametrize("call", ["begin", "ended"])
def test_files_whose_sync_raises_have_failed_and_later_ones_are_synced(
    make: Make, log: list[str], files: list[int], monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The kernel may have reported the error of a file in the results that were lost, and reports it only once."""
    real = getattr(FileSyncs, call)
    raised: list[object] = []

    def raises(self: FileSyncs, *arguments: object) -> object:
        result = real(self, *arguments)
        if (arguments[0] if arguments else result) and not raised:
            raised.append(call)
            raise MemoryError
        return result

    monkeypatch.setattr(FileSyncs, call, raises)
    pool = make()
    turns = [Turn(name, log, fd=fd) for name, fd in zip("abc", files[:3], strict=True)]
    run(pool, log, turns)
    lost = [str(error) for turn in turns for error in turn.errors if error is not None]
    assert raised
    assert lost
    assert set(lost) == {"[Errno 5] the result of the sync is unknown: MemoryError()"}
    assert all(turn.errors == turn.looked and len(turn.errors) == 1 for turn in turns)
    if call == "begin":
        assert len(lost) == 3
    again = [Turn(name, log, fd=fd) for name, fd in zip("def", files[:3], strict=True)]
    run(pool, log, again)
    assert [turn.errors for turn in again] == [[None]] * 3


@pytest.mark.parametrize("alone", [True, False])
def test_an_odd_error_of_a_sync_is_told_to_its_log_only(
    make: Make, log: list[str], files: list[int], monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    by_threads(monkeypatch)
    real = disk.sync_data

    def odd(fd: int) -> None:
        if fd == files[0]:
            raise RuntimeError("bit flip")
        real(fd)

    monkeypatch.setattr(disk, "sync_data", odd)
    pool = make()
    turns = [Turn(name, log, fd=fd) for name, fd in zip("ab", files[:2], strict=True)]
    if alone:
        for turn in turns:
            pool.submit(turn)
            assert turn.over.wait(WAIT)
    else:
        run(pool, log, turns)
    assert "bit flip" in str(turns[0].looked[0])
    assert turns[1].looked == [None]


@pytest.mark.parametrize("step", ["_begin_due", "_complete"])
def test_the_loop_fails_the_jobs_of_a_step_that_raises_and_goes_on(
    make: Make, log: list[str], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    pool = make()
    held = Held(pool, log)
    turns = [Turn(name, log) for name in "ab"]
    for turn in turns:
        pool.submit(turn)
    real = getattr(pool._loop, step)

    def raises(argument: object) -> object:
        if not any(turn.over.is_set() for turn in turns) and "take b" in log:
            raise MemoryError
        return real(argument)

    monkeypatch.setattr(pool._loop, step, raises)
    held.free()
    assert all(turn.over.wait(WAIT) for turn in turns)
    assert [[type(error) for error in turn.failed] for turn in turns] == [[MemoryError]] * 2
    job = Turn("job", log)
    run(pool, log, [job])
    assert job.looked == [None]


@pytest.mark.parametrize("step", ["_thread", "_loop"])
def test_a_thread_that_cannot_be_made_is_told_and_tried_again(
    make: Make, log: list[str], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    pool = make()
    first = Turn("first", log)
    first.free.clear()
    if step == "_loop":
        pool.submit(first)
        assert first.inside.wait(WAIT)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    job = Turn("turn", log)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start"):
            pool.submit(job)
    pool.submit(job)
    assert job.over.wait(WAIT)
    first.free.set()


def test_closing_makes_all_that_was_asked_for_and_may_be_repeated(make: Make, log: list[str], files: list[int]) -> None:
    pool = make()
    jobs = [Turn(str(number), log, fd=files[number % 4], rounds=1 + number % 3) for number in range(50)]
    for job in jobs:
        pool.submit(job)
    pool.close()
    pool.close()
    assert all(job.over.is_set() for job in jobs)


@pytest.mark.parametrize("threads", [True, False])
def test_many_turns_of_many_threads_are_each_made_once(
    make: Make, log: list[str], files: list[int], monkeypatch: pytest.MonkeyPatch, threads: bool
) -> None:
    if threads:
        by_threads(monkeypatch)
    pool = make()
    jobs = [Turn(str(n), log, rounds=1 + n % 3, fd=(-1, *files)[n % 5]) for n in range(3 * FILES_MAX)]
    submitters = [threading.Thread(target=lambda part=jobs[k::5]: [pool.submit(job) for job in part]) for k in range(5)]
    for asker in submitters:
        asker.start()
    for asker in submitters:
        asker.join(WAIT)
    assert all(job.over.wait(WAIT) for job in jobs)
    for job in jobs:
        assert log.count(f"begin {job.name}") == log.count(f"answer {job.name}") == 1 + int(job.name) % 3
        assert not any(job.looked)


def test_the_loop_writes_while_it_has_other_logs_to_sync(make: Make, log: list[str]) -> None:
    """An idle loop leaves the write to the caller, who is faster alone."""
    pool = make()
    job = Turn("job", log)
    threads: list[str] = []

    def write() -> None:
        threads.append(threading.current_thread().name)
        pool.submit(job)

    job.write = write  # type: ignore[method-assign]
    assert not pool.write(job)
    held = Held(pool, log)
    assert pool.write(job)
    assert not threads
    held.free()
    assert job.over.wait(WAIT)
    assert threads == ["sync-loop"]
    assert job.looked == [None]


def test_closing_writes_and_syncs_what_the_loop_was_given(make: Make, log: list[str]) -> None:
    pool = make()
    gate = Held(pool, log)
    jobs = [Turn(str(number), log) for number in range(20)]
    for job in jobs:
        job.write = lambda job=job: pool.submit(job)  # type: ignore[method-assign, misc]
        assert pool.write(job)
    gate.free()
    pool.close()
    assert all(job.over.is_set() for job in jobs)
    assert not pool.write(jobs[0])


def test_a_step_that_raises_still_completes_the_syncs_that_have_ended(
    make: Make, log: list[str], files: list[int]
) -> None:
    class Ended(FileSyncs):
        def ended(self) -> list[tuple[int, OSError | None]]:
            return [(7, None)]

    loop, turn, broken = make()._loop, Turn("turn", log, fd=files[0]), Turn("broken", log)
    turn.begin()
    loop._running[7] = turn
    loop._unwritten.append(broken)
    event = os.eventfd(0)
    with pytest.raises(AssertionError, match="no test asked"):
        loop._step(Ended(event))
    os.close(event)
    assert turn.looked == [None]
