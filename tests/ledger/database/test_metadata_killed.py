"""Goal: SIGKILL leaves whole changes, and all that were reported. Method: a child kills itself at every statement."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store

pytestmark = pytest.mark.fault
NOW = 1_700_000_000_000

# Kills itself before statement sys.argv[2] of the change; reports what the metadata answered.
CHANGE = """
import os, signal, sys
from pathlib import Path
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.metadata.segment_records import SegmentRecord
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from pyspark_ledger.ledger.message.run_marker import CommittedBatch

metadata, last = Metadata.open(Path(sys.argv[1]), lambda: 1), int(sys.argv[2])
record, count = metadata.ledger("orders"), 0

def before(statement):
    global count
    count += 1
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)

metadata._file._writer.set_trace_callback(before)
info = ManagedLedgerInfo()
batch = CommittedBatch("q", 1, Position(5, 0), Position(5, 2), 2, 10, 1)
metadata.update_ledger(record, info, put=[SegmentRecord(5, 256, 0, 0, 0, 1)], committed=[batch])
print("reported", count, flush=True)
os._exit(0)
"""

# Changes by several threads for as long as it lives; each line is a change that was answered.
STREAM = """
import os, sys, threading
from pathlib import Path
from pyspark_ledger.ledger.metadata.records import Metadata

metadata = Metadata.open(Path(sys.argv[1]), lambda: 1)

def change(thread):
    number = 0
    while True:
        metadata.register_schema(thread, b"%d" % number, number - 1)
        os.write(1, b"%s %d\\n" % (thread.encode(), number))
        number += 1

threads = [threading.Thread(target=change, args=(name,)) for name in metadata.names()]
for thread in threads:
    thread.start()
"""

# Kills itself in the middle of making a store: before the call of `os` or SQLite that sys.argv[2] counts.
CREATE = """
import os, signal, sys
from pathlib import Path
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store

last, count = int(sys.argv[2]), 0

def audit(event, args):
    global count
    if event in ("open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.chmod", "sqlite3.connect"):
        if not any(str(arg).startswith(sys.argv[1]) for arg in args):
            return
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(audit)
Store.open(Path(sys.argv[1]), settings=Settings(), clock=lambda: 1, create=True)
os._exit(0)
"""


def run(script: str, path: Path, last: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, str(path), str(last)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_change_is_whole_wherever_it_was_killed(tmp_path: Path) -> None:
    killed = 0
    for last in range(1, 100):
        path = tmp_path / f"{last}.sqlite"
        metadata = Metadata.create(path, "s", "h", lambda: NOW)
        metadata.create_ledger("orders", "i", {}, exist_ok=False)
        metadata.close()
        child = run(CHANGE, path, last)
        after = Metadata.open(path, lambda: NOW)
        ids = {row.ledger_id for row in after.segments.of("orders")}
        batches = {found.query for found in after.committed_batches("orders")}
        seen = (after.ledger("orders").version, ids, after.ledger_ids(), batches)
        after.allocate_ledger_id()  # nothing is left locked
        after.close()
        if child.stdout:
            assert seen == (1, {5}, {5}, {"q"})
            break
        assert child.returncode == -signal.SIGKILL, child.stderr
        assert seen == (0, set(), set(), set())
        killed += 1
    assert killed >= 8  # BEGIN, the epoch or savepoint, five statements of the change, RELEASE, COMMIT


def test_every_reported_change_is_there_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    metadata = Metadata.create(path, "s", "h", lambda: NOW)
    names = [f"t{number}" for number in range(4)]
    for name in names:
        metadata.create_ledger(name, "i", {}, exist_ok=False)
    metadata.close()
    reported = dict.fromkeys(names, -1)
    with subprocess.Popen([sys.executable, "-c", STREAM, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(200):
            name, number = child.stdout.readline().split()
            reported[name] = int(number)
        child.kill()
        for line in child.stdout:  # what was answered before the kill and not read yet
            if line.endswith("\n"):
                name, number = line.split()
                reported[name] = int(number)
    after = Metadata.open(path, lambda: NOW)
    for name in names:
        version, body = after.schema(name, -1)
        assert body in (b"%d" % version, b"")
        assert reported[name] <= version <= reported[name] + 1  # one may be durable and not answered
    after.close()


def test_a_store_whose_making_was_killed_anywhere_can_be_made(tmp_path: Path) -> None:
    killed = 0
    for last in range(1, 100):
        path = tmp_path / str(last)
        child = run(CREATE, path, last)
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL, child.stderr
        killed += 1
        store = Store.open(path, settings=Settings(), clock=lambda: NOW, create=True)
        assert store.names() == []
        store.close()
        assert not list(path.glob("metadata.sqlite.new*"))
    assert killed >= 10
