"""Set-up for tests of the broker: real processes on real stores, whose sockets are in a run directory of the tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from tests.rigs.deadline import wait_until
from tests.rigs.entry import entry, parsed

ROOT = Path(__file__).resolve().parents[2]


def halt(pid: int) -> None:
    """Stop a broker with SIGSTOP. Return when all its threads have stopped, because a running thread still answers."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    wait_until(
        lambda: all((thread / "stat").read_text().rpartition(")")[2].split()[0] == "T" for thread in threads.iterdir()),
        "all threads of the broker are stopped",
    )


class BrokerRig:
    """Brokers of one test. They end with the test."""

    wait_until = staticmethod(wait_until)
    halt = staticmethod(halt)

    def __init__(self, store: Path) -> None:
        self.store = store
        self.pids: set[int] = set()
        self._clients: list[Client] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a broker without a supervisor as a child process, and wait until it answers calls."""
        known = BrokerRecord.read(self.store)
        child = self.spawn(*arguments)
        wait_until(
            lambda: child.poll() is not None or BrokerRecord.read(self.store) not in (None, known), "the broker starts"
        )
        assert child.poll() is None, f"the broker ended with {child.returncode}: {self.log()}"
        return child

    def spawn(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a broker process, which may fail. `log` returns its output."""
        self.store.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pyspark_ledger.ledger.broker.main", "--store", str(self.store), *arguments]
        with (self.store.parent / "broker-said").open("ab") as said:
            child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        self.pids.add(child.pid)
        return child

    def log(self) -> str:
        return (self.store.parent / "broker-said").read_text()

    def client(self, **options: int) -> Client:
        """Return a client of the broker that the store's record names."""
        record = self.record()
        client = Client(record.address, record.store_id, **options)
        self._clients.append(client)
        return client

    def record(self) -> BrokerRecord:
        record = BrokerRecord.read(self.store)
        assert record is not None
        return record

    def supervised(self) -> tuple[int, int]:
        """Return the process ids of the supervisor and its broker. After a kill, wait for the next broker."""
        found: list[int] = []

        def there() -> bool:
            broker = self.record().pid
            with suppress(FileNotFoundError, ProcessLookupError):  # the process ended just now
                state, parent = Path(f"/proc/{broker}/stat").read_text().rpartition(")")[2].split()[:2]
                found[:] = [int(parent), broker] if state != "Z" else []
            return bool(found)

        self.wait_until(there, "a broker runs")
        supervisor, broker = found
        assert b"pyspark_ledger.ledger.broker.supervisor" in Path(f"/proc/{supervisor}/cmdline").read_bytes()
        self.pids |= {supervisor, broker}
        return supervisor, broker

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for pid in self._ours():
            for number in (signal.SIGCONT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def _ours(self) -> list[int]:
        """Return every supervisor and broker of this store, supervisors first: a killed supervisor starts no broker."""
        mine = str(self.store).encode()
        found = []
        for folder in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                command = (folder / "cmdline").read_bytes().split(b"\0")
                if mine in command and b"--store" in command:
                    found.append((b"pyspark_ledger.ledger.broker.supervisor" not in command, int(folder.name)))
        return [pid for _, pid in sorted(found)]


@pytest.fixture(scope="session")
def session_run_directory() -> Iterator[Path]:
    """Yield a run directory with a short name: the path of a socket has at most about a hundred bytes."""
    path = Path(tempfile.mkdtemp(prefix="ledger-run-"))
    yield path
    wait_until(lambda: not _users(path), "the last brokers have ended")  # a broker deletes its own files at its end
    shutil.rmtree(path)


def _users(run_directory: Path) -> list[str]:
    """Return the ids of the processes that were started with a run directory."""
    mine, found = f"XDG_RUNTIME_DIR={run_directory}".encode(), []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if mine in (folder / "environ").read_bytes().split(b"\0"):
                found.append(folder.name)
    return found


@pytest.fixture(autouse=True)
def run_directory(session_run_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session_run_directory))
    return session_run_directory


@pytest.fixture
def rig(store_path: Path) -> Iterator[BrokerRig]:
    rig = BrokerRig(store_path)
    yield rig
    rig.close()


@pytest.fixture(scope="module")
def shared_rig(session_run_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerRig]:
    """Yield a broker that the tests of a file share. None of them may stop it."""
    rig = BrokerRig(tmp_path_factory.mktemp("shared") / "store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(session_run_directory))
        rig.start("--create")
        yield rig
        rig.close()


@pytest.fixture
def make_entry() -> Callable[..., bytes]:
    """Return a function that makes a Pulsar entry of one message."""

    def make(payload: bytes, sequence_id: int = 0, producer: str = "p", **fields: int) -> bytes:
        return entry(payload, producer_name=producer, sequence_id=sequence_id, **fields)

    return make


@pytest.fixture
def read_log() -> Callable[..., list[tuple[str, bytes]]]:
    """Return a function that reads a ledger: (position, payload) of every entry."""

    def read(client: Client, ledger: str, *, mapping: bool = True) -> list[tuple[str, bytes]]:
        request = ReadRequest(ledger, PositionRange(EARLIEST, LATEST), max_block_bytes=4096)
        blocks = client.read_blocks(request, mapping=mapping)
        return [(position, bytes(entry.payload)) for block in blocks for position, entry in parsed(block)]

    return read
