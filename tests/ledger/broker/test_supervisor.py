"""Goal: a broker that dies is restarted, a broker that exits is not, and SIGTERM ends both at any moment. Method: a
real supervisor over a script that obeys the test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pyspark_ledger.ledger.broker import supervisor
from tests.rigs.processes import command_words

CHILD = """
import os, signal, sys, time
from pathlib import Path
runs, orders = Path(sys.argv[1]), sys.argv[2].split(",")
with runs.open("a") as file:
    print(os.getpid(), "--create" in sys.argv, file=file)
order = orders[min(len(runs.read_text().splitlines()), len(orders)) - 1]
if order == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if order == "stay":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    time.sleep(60)
sys.exit(int(order))
"""
Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Lines of the child's starts: its pid, and whether it may create the store."""
    path = tmp_path / "runs"
    path.touch()
    return path


@pytest.fixture
def start(tmp_path: Path, runs: Path) -> Iterator[Start]:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    started = []

    def begin(orders: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "pyspark_ledger.ledger.broker.supervisor",
            str(script),
            str(runs),
            orders,
            "--create",
        ]
        with (tmp_path / "log").open("ab") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
    for line in runs.read_text().splitlines():
        pid = int(line.split()[0])
        if str(script).encode() in command_words(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def started(runs: Path) -> list[str]:
    return runs.read_text().splitlines()


def until_started(runs: Path, times: int) -> None:
    until = time.monotonic() + 60
    while len(started(runs)) < times:
        assert time.monotonic() < until, started(runs)
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("orders", "status", "times"),
    [("0", 0, 1), ("2", 2, 1), ("kill,0", 0, 2), ("1,kill,1,0", 0, 4), ("kill,2", 2, 2)],
)
def test_a_child_is_started_again_until_it_leaves_or_cannot_start(
    start: Start, runs: Path, orders: str, status: int, times: int
) -> None:
    assert start(orders).wait(60) == status
    assert len(started(runs)) == times


def test_sigterm_reaches_the_child_and_nobody_comes_back(start: Start, runs: Path) -> None:
    process = start("stay")
    until_started(runs, 1)
    process.terminate()
    assert process.wait(60) == 0
    assert len(started(runs)) == 1


def test_sigterm_ends_a_supervisor_that_waits_before_the_next_start(start: Start, runs: Path) -> None:
    process = start("1")
    until_started(runs, 4)
    process.terminate()
    assert process.wait(60) == 0
    assert len(started(runs)) <= 5


def test_a_store_that_was_served_for_a_while_is_not_created_again(
    start: Start, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", CHILD, str(runs), "1,1,0", "--create"]
    monkeypatch.setattr(supervisor, "_QUICK_SECONDS", 0.0)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert supervisor.Supervisor(command).run() == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [line.split()[1] for line in started(runs)] == ["True", "False", "False"]


def test_a_log_that_has_grown_too_large_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_LOG_BYTES_MAX", 100)
    log, old = tmp_path / "log", tmp_path / "log.old"
    for size, left in ((100, 100), (101, 0)):
        log.write_bytes(b"x" * size)
        with log.open("ab") as file:
            supervisor.bound_log(file.fileno(), str(tmp_path / "another"))
            assert log.stat().st_size == size
            supervisor.bound_log(file.fileno(), str(log))
        assert log.stat().st_size == left
    assert old.read_bytes() == b"x" * 101
    assert old.stat().st_mode & 0o777 == 0o600


def test_a_child_that_never_came_to_answer_is_given_up_with_its_last_words(
    tmp_path: Path, runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    child = f"import sys; open({str(runs)!r}, 'a').write('run\\n'); sys.exit('no library of that name')"
    command = [sys.executable, "-m", "pyspark_ledger.ledger.broker.supervisor", "-c", child]
    log = tmp_path / "log"
    with log.open("ab") as output:
        done = subprocess.run(command, stdout=output, stderr=output, timeout=60, check=False)
    assert done.returncode == 3
    assert len(started(runs)) == 5
    last = log.read_text().splitlines()[-1]
    assert last == "the broker ended with status 1, 5 times, and never answered a call: no library of that name"


@pytest.mark.thorough
def test_a_child_that_has_answered_once_is_never_given_up(tmp_path: Path, runs: Path) -> None:
    """The record beside the store names it: that is how a broker says that it answers."""
    script = tmp_path / "child.py"
    store = tmp_path / "store"
    store.mkdir()
    answering = f"""
import json, os, sys
record = {str(store / "broker.json")!r}
with open({str(runs)!r}, "a") as file:
    print("run", file=file)
runs = len(open({str(runs)!r}).readlines())
if runs == 1:
    open(record, "w").write('{{"address":"x","pid":%d,"epoch":1}}' % os.getpid())
sys.exit(0 if runs == 7 else 1)
"""
    script.write_text(answering)
    command = [sys.executable, "-m", "pyspark_ledger.ledger.broker.supervisor", str(script), "--store", str(store)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=False)
    assert (done.returncode, len(started(runs))) == (0, 7)


def test_it_is_small_and_imports_nothing_of_ours_but_itself() -> None:
    ours = "('pyarrow', 'numpy', 'msgspec', 'ledger', 'pyspark', 'pyspark_ledger')"
    code = "import sys, pyspark_ledger.ledger.broker.supervisor; "
    code += f"print([m for m in sys.modules if m.split('.')[0] in {ours}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = [".ledger", ".ledger.version", "", ".ledger.broker", ".ledger.broker.supervisor"]
    assert done.stdout.strip() == str([f"pyspark_ledger{name}" for name in names])
