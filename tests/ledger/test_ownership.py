"""Goal: a store has one broker, a process one name, sockets a private place. Method: real locks and real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.ownership import (
    StoreLock,
    host_identity,
    is_gone,
    machine_id,
    process_identity,
    run_directory,
)

HOLD = """
import sys
from pathlib import Path
from pyspark_ledger.ledger.ownership import StoreLock
lock = StoreLock.acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lock of `tmp_path`."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_holder_is_refused_with_the_first_ones_process(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(Refused) as refused:
        StoreLock.acquire(tmp_path)
    assert process_identity(holder.pid) in str(refused.value)
    assert process_identity() in str(refused.value)
    with pytest.raises(Refused):  # the refusal let nothing go and changed nothing
        StoreLock.acquire(tmp_path)


def test_a_killed_holder_leaves_no_lock(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    StoreLock.acquire(tmp_path).release()


def test_a_taken_over_store_belongs_to_the_taker_alone(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    taken = StoreLock.acquire(tmp_path, take_over=True)
    with pytest.raises(Refused, match=process_identity()):
        StoreLock.acquire(tmp_path)
    holder.kill()
    holder.wait()
    with pytest.raises(Refused):  # what the old holder let go is a file that nobody looks at
        StoreLock.acquire(tmp_path)
    taken.release()
    StoreLock.acquire(tmp_path).release()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_released_lock_may_be_released_again_and_taken(tmp_path: Path) -> None:
    lock = StoreLock.acquire(tmp_path)
    lock.release()
    lock.release()
    StoreLock.acquire(tmp_path).release()


def test_a_lock_is_never_taken_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        StoreLock.acquire(tmp_path)
    assert (tmp_path / "elsewhere").read_bytes() == b""


def test_two_directories_are_two_hosts_and_one_is_always_itself(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    assert host_identity(one) != host_identity(two)
    moved = tmp_path / "moved"
    before = host_identity(one)
    one.rename(moved)
    assert host_identity(moved) == before
    assert before.startswith(machine_id())


def test_a_process_is_gone_when_it_is_dead_or_its_pid_is_another_ones() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        identity = process_identity(process.pid)
        assert not is_gone(identity)
        assert not is_gone(identity + "/task-3")
        machine, pid, start = identity.split("/")
        assert is_gone(f"{machine}/{pid}/{int(start) - 1}")
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(identity)  # dead, though its parent has not asked for its exit yet
    assert is_gone(identity)


def test_who_is_not_known_is_not_known_to_be_gone() -> None:
    _, pid, start = process_identity().split("/")
    for identity in (f"another-host/{pid}/1", "", "a", f"{machine_id()}/x/{start}", f"{machine_id()}/-1/{start}"):
        assert not is_gone(identity)


def test_the_run_directory_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = run_directory()
    assert path == tmp_path / "pyspark-ledger"
    assert path.stat().st_mode & 0o777 == 0o700
    assert run_directory() == path
    path.chmod(0o750)
    with pytest.raises(Refused, match=r"mode 750, expected .*700"):
        run_directory()


@pytest.mark.parametrize("there", ["file", "link", "dangling"])
def test_what_is_no_directory_of_ours_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path, target = tmp_path / "pyspark-ledger", tmp_path / "target"
    if there == "file":
        path.touch()
    else:
        path.symlink_to(target)
        if there == "link":
            target.mkdir(mode=0o700)
    with pytest.raises(Refused, match="is not a directory"):
        run_directory()
    assert not target.is_dir() or not any(target.iterdir())
