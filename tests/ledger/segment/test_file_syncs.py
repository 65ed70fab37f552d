"""Goal: every file that is synced has an answer of its own, with the kernel's help or without, and none is guessed.

Method: real files, and files that cannot be synced; a kernel that refuses is a call that fails.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.segment import file_syncs
from pyspark_ledger.ledger.segment.file_syncs import FILES_MAX, FileSyncs

KERNEL = FileSyncs().together


@pytest.fixture(params=["together", "one by one"])
def syncs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileSyncs]:
    if request.param == "one by one":
        monkeypatch.setattr(file_syncs, "_CALLS", {})
    elif not KERNEL:
        pytest.skip("this kernel syncs no files together")
    made = FileSyncs()
    assert made.together == (request.param == "together")
    yield made
    made.close()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    opened = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(2 * FILES_MAX)]
    for fd in opened:
        os.pwrite(fd, b"x" * 5000, 0)
    yield opened
    for fd in opened:
        os.close(fd)


@pytest.mark.parametrize("count", [0, 1, 2, 33, FILES_MAX, FILES_MAX + 1, 2 * FILES_MAX])
def test_all_files_are_synced_again_and_again(syncs: FileSyncs, files: list[int], count: int) -> None:
    for _ in range(3):
        assert syncs.sync(files[:count]) == [None] * count


def test_a_file_that_cannot_be_synced_fails_alone(syncs: FileSyncs, files: list[int]) -> None:
    end, other = os.pipe()
    answers = syncs.sync([files[0], end, files[1], 999_999])
    assert [answer and answer.errno for answer in answers] == [None, errno.EINVAL, None, errno.EBADF]
    assert syncs.sync(files[:5]) == [None] * 5
    os.close(end), os.close(other)


@pytest.mark.skipif(not KERNEL, reason="this kernel syncs no files together")
def test_together_no_file_is_synced_by_a_call_of_its_own(files: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(disk, "sync_data", calls.append)
    syncs = FileSyncs()
    assert syncs.sync(files) == [None] * len(files)
    assert not calls
    syncs.close()
    assert not syncs.together
    assert syncs.sync(files[:2]) == [None, None]
    assert calls == files[:2]


@pytest.mark.skipif(not KERNEL, reason="this kernel syncs no files together")
def test_unreported_syncs_have_failed_and_untaken_ones_are_done_here(
    files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = FileSyncs()
    assert syncs.together
    call, calls = file_syncs._call, syncs._calls
    assert calls is not None
    refused = [calls.getevents]

    def refusing(number: int, *arguments: int) -> int:
        if number in refused:
            ctypes.set_errno(errno.EFAULT)
            return -1
        return call(number, *arguments)

    monkeypatch.setattr(file_syncs, "_call", refusing)
    answers = syncs.sync(files[:3])
    assert [answer and answer.errno for answer in answers] == [errno.EIO] * 3
    assert "did not return the result" in str(answers[0])
    assert not syncs.together, "what it has not told must not answer for the next files"
    assert syncs.sync(files[:3]) == [None] * 3
    for refused[:] in ([calls.submit], [calls.setup]):
        assert FileSyncs().sync(files[:3]) == [None] * 3


@pytest.mark.skipif(not KERNEL, reason="this kernel syncs no files together")
def test_a_call_that_a_signal_interrupts_is_made_again(files: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    call, made = file_syncs._call, []

    def interrupted(number: int, *arguments: int) -> int:
        made.append(number)
        if len(made) % 2:
            ctypes.set_errno(errno.EINTR)
            return -1
        return call(number, *arguments)

    syncs = FileSyncs()
    assert syncs.together
    monkeypatch.setattr(file_syncs, "_call", interrupted)
    assert syncs.sync(files) == [None] * len(files)
    assert len(made) > 2
