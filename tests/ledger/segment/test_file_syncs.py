"""Goal: every file that is synced has an answer of its own, with the kernel's help or without, and none is guessed.

Method: real files, and files that cannot be synced; a kernel that refuses is a call that fails.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.segment import file_syncs
from pyspark_ledger.ledger.segment.file_syncs import FILES_MAX, FileSyncs

WAIT_MS = 60_000
Answers = dict[int, OSError | None]


@pytest.fixture
def event() -> Iterator[int]:
    fd = os.eventfd(0)
    yield fd
    os.close(fd)


def kernel_syncs() -> bool:
    fd = os.eventfd(0)
    made = FileSyncs(fd)
    by_kernel = made.by_kernel
    made.close()
    os.close(fd)
    return by_kernel


KERNEL = kernel_syncs()
needs_kernel = pytest.mark.skipif(not KERNEL, reason="this kernel syncs no files together")


@pytest.fixture(params=["kernel", "threads"])
def syncs(request: pytest.FixtureRequest, event: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileSyncs]:
    if request.param == "threads":
        monkeypatch.setattr(file_syncs, "_CALLS", {})
    elif not KERNEL:
        pytest.skip("this kernel syncs no files together")
    made = FileSyncs(event)
    assert made.by_kernel == (request.param == "kernel")
    yield made
    made.close()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    opened = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(FILES_MAX)]
    for fd in opened:
        os.pwrite(fd, b"x" * 5000, 0)
    yield opened
    for fd in opened:
        os.close(fd)


def synced(syncs: FileSyncs, event: int, files: list[int], first: int = 0) -> Answers:
    """Sync files, whose numbers start at `first`, and return the answer of each. Every answer follows a signal."""
    syncs.begin(dict(enumerate(files, first)))
    answers: Answers = {}
    ready = select.poll()
    ready.register(event, select.POLLIN)
    while len(answers) < len(files):
        assert ready.poll(WAIT_MS), f"no signal after {len(answers)} of {len(files)} answers"
        os.eventfd_read(event)
        for number, error in syncs.ended():
            assert number not in answers
            answers[number] = error
    return answers


def numbers(answers: Answers) -> list[int | None]:
    return [error and error.errno for _, error in sorted(answers.items())]


@pytest.mark.parametrize("count", [0, 1, 2, 33, FILES_MAX])
def test_all_files_are_synced_again_and_again(syncs: FileSyncs, event: int, files: list[int], count: int) -> None:
    for round_ in range(3):
        first = 1000 * round_
        assert synced(syncs, event, files[:count], first) == dict.fromkeys(range(first, first + count))
    assert syncs.ended() == []


def test_a_file_that_cannot_be_synced_fails_alone(syncs: FileSyncs, event: int, files: list[int]) -> None:
    end, other = os.pipe()
    answers = synced(syncs, event, [files[0], end, files[1], 999_999])
    assert numbers(answers) == [None, errno.EINVAL, None, errno.EBADF]
    assert numbers(synced(syncs, event, files[:5])) == [None] * 5
    os.close(end), os.close(other)


def test_an_odd_error_of_a_thread_is_a_failed_sync(
    event: int, files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def odd(fd: int) -> None:
        if fd == files[1]:
            raise RuntimeError("bit flip")

    monkeypatch.setattr(file_syncs, "_CALLS", {})
    monkeypatch.setattr(disk, "sync_data", odd)
    syncs = FileSyncs(event)
    answers = synced(syncs, event, files[:3])
    assert numbers(answers) == [None, errno.EIO, None]
    assert "bit flip" in str(answers[1])
    syncs.close()


@needs_kernel
def test_by_the_kernel_no_file_is_synced_by_a_call_of_its_own(
    event: int, files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(disk, "sync_data", calls.append)
    syncs = FileSyncs(event)
    assert numbers(synced(syncs, event, files)) == [None] * len(files)
    assert not calls
    syncs.close()
    assert not syncs.by_kernel
    assert numbers(synced(syncs, event, files[:2])) == [None, None]
    assert sorted(calls) == sorted(files[:2])
    syncs.close()


@needs_kernel
@pytest.mark.parametrize("refused", ["setup", "submit", "getevents"])
def test_unreported_syncs_have_failed_and_untaken_ones_are_done_by_threads(
    event: int, files: list[int], monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    call, number = file_syncs._call, getattr(file_syncs._CALLS[os.uname().machine], refused)

    def refusing(called: int, *arguments: int) -> int:
        if called == number:
            ctypes.set_errno(errno.EFAULT)
            return -1
        return call(called, *arguments)

    monkeypatch.setattr(file_syncs, "_call", refusing)
    syncs = FileSyncs(event)
    answers = synced(syncs, event, files[:3])
    if refused == "getevents":
        assert numbers(answers) == [errno.EIO] * 3
        assert "did not return the result" in str(answers[0])
    else:
        assert numbers(answers) == [None] * 3
    assert syncs.by_kernel == (refused == "submit")
    assert numbers(synced(syncs, event, files[:3])) == [None] * 3
    syncs.close()


@needs_kernel
def test_a_part_that_the_kernel_does_not_take_is_synced_by_threads(
    event: int, files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes requests in order, as many as fit into its queue."""
    call, submit = file_syncs._call, file_syncs._CALLS[os.uname().machine].submit
    by_thread: list[int] = []

    def taking_two(called: int, *arguments: int) -> int:
        if called != submit:
            return call(called, *arguments)
        if taken:
            ctypes.set_errno(errno.EAGAIN)
            return -1
        taken.append(call(called, arguments[0], 2, *arguments[2:]))
        return taken[0]

    taken: list[int] = []
    monkeypatch.setattr(file_syncs, "_call", taking_two)
    monkeypatch.setattr(disk, "sync_data", by_thread.append)
    syncs = FileSyncs(event)
    assert numbers(synced(syncs, event, files[:5])) == [None] * 5
    assert sorted(by_thread) == sorted(files[2:5])
    syncs.close()


@needs_kernel
def test_a_call_that_a_signal_interrupts_is_made_again(
    event: int, files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    call, made = file_syncs._call, []
    calls = file_syncs._CALLS[os.uname().machine]

    def interrupted(number: int, *arguments: int) -> int:
        made.append(number)
        if number in (calls.submit, calls.getevents) and made.count(number) % 2:
            ctypes.set_errno(errno.EINTR)
            return -1
        return call(number, *arguments)

    syncs = FileSyncs(event)
    monkeypatch.setattr(file_syncs, "_call", interrupted)
    assert numbers(synced(syncs, event, files)) == [None] * len(files)
    assert all(made.count(number) > 1 for number in (calls.submit, calls.getevents))
    syncs.close()


def test_close_waits_for_running_syncs_and_forgets_their_results(
    syncs: FileSyncs, event: int, files: list[int]
) -> None:
    syncs.begin(dict(enumerate(files[:20])))
    syncs.close()
    assert syncs.ended() == []
    assert numbers(synced(syncs, event, files[:3], 100)) == [None] * 3
