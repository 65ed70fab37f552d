"""Goal: a walk over /proc survives each process that ends meanwhile. Method: a listing names processes that have ended.

Each planted entry leads to the folder of a killed process, so the kernel's own errors are raised.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs import processes


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Yield the id of a process that ended after the listing of /proc named it."""
    child = subprocess.Popen(["sleep", "600"])
    folder = os.open(f"/proc/{child.pid}", os.O_PATH | os.O_DIRECTORY)
    child.kill()
    child.wait()
    (tmp_path / str(child.pid)).symlink_to(f"/proc/self/fd/{folder}")
    (tmp_path / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    (tmp_path / "1000000000").symlink_to(tmp_path / "absent")
    monkeypatch.setattr(processes, "PROC", tmp_path)
    yield child.pid
    os.close(folder)


def test_a_planted_process_raises_the_kernels_error(ended: int) -> None:
    with pytest.raises(ProcessLookupError):
        list(processes.PROC.glob("[0-9]*/cmdline"))


def test_a_walk_leaves_out_processes_that_ended_meanwhile(ended: int, tmp_path: Path) -> None:
    assert processes.process_ids() == sorted([ended, os.getpid(), 1_000_000_000])
    assert processes.serving(tmp_path) == []
    assert processes.descendants(ended) == [ended]
    assert processes.descendants(os.getppid()) == [os.getppid(), os.getpid()]


def test_a_process_that_ended_has_empty_values(ended: int) -> None:
    assert processes.command_words(ended) == [b""]
    assert processes.process_status(ended) == processes.thread_states(ended) == []
    assert processes.parent_of(ended) == 0
    assert not processes.is_running(ended)
    assert not processes.is_supervisor(ended)


def test_a_running_process_has_its_values() -> None:
    assert processes.parent_of(os.getpid()) == os.getppid()
    assert processes.is_running(os.getpid())
    assert set(processes.thread_states(os.getpid())) <= {"R", "S", "D"}


def test_a_zombie_does_not_run() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.process_status(child.pid)[0] == "Z"
    assert not processes.is_running(child.pid)
    child.wait()
