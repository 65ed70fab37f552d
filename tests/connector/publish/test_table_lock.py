"""Goal: one process of a host at a time commits to a local table, and a process that dies releases the lock.

Method: processes increment a counter in a file under the lock; without the lock counts are lost. One is killed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_ledger.connector.publish.table_lock import directory_of, table_lock

ROUNDS, PROCESSES = 300, 3
COUNT = """
import sys
from pathlib import Path
from pyspark_ledger.connector.publish.table_lock import table_lock
table, count = Path(sys.argv[1]), Path(sys.argv[2])
print(flush=True)
for _ in range(int(sys.argv[3])):
    with table_lock(table):
        number = int(count.read_text())
        count.write_text(str(number + 1))
"""
HOLD = """
import sys
from pathlib import Path
from pyspark_ledger.connector.publish.table_lock import table_lock
with table_lock(Path(sys.argv[1])):
    print(flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    (tmp_path / "table" / "_delta_log" / f"{0:020}.json").touch()
    return tmp_path / "table"


def free(place: Path) -> bool:
    fd = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


@pytest.mark.thorough
def test_processes_take_turns(table: Path, tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("0")
    command = [sys.executable, "-c", COUNT, str(table), str(count), str(ROUNDS)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(PROCESSES)]
    for process in started:
        with process:
            process.communicate(timeout=60)
        assert process.returncode == 0
    assert int(count.read_text()) == ROUNDS * PROCESSES


def test_who_is_killed_lets_go(table: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(table)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert not free(table / "_delta_log")
        holder.send_signal(signal.SIGKILL)
    with table_lock(table):
        assert not free(table / "_delta_log")
    assert free(table / "_delta_log")


def test_what_is_locked_is_there_already_and_nothing_is_left(tmp_path: Path) -> None:
    with table_lock(tmp_path / "not" / "yet"):
        assert not free(tmp_path), "the lock covers the creation of the table"
    assert list(tmp_path.iterdir()) == []
    with table_lock(None):
        pass
    assert directory_of("/tables/a b") == Path("/tables/a b")
    assert directory_of("file:/tables/a%20b") == Path("/tables/a b")
    assert directory_of("file:///tables/a") == Path("/tables/a")
    for elsewhere in ("s3a://bucket/t", "dbfs:/t", "hdfs://host/t", ""):
        assert directory_of(elsewhere) is None
