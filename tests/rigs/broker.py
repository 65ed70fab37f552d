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
from tests.rigs.processes import is_running, is_supervisor, parent_of, process_file, process_ids, serving, thread_states

ROOT = Path(__file__).resolve().parents[2]


def halt(pid: int) -> None:
    """Stop a broker with SIGSTOP. Return when all its threads have stopped, because a running thread still answers."""
    assert pid != os.getpid(), "the broker is a thread of this process: mark the test with `broker_process`"
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: set(thread_states(pid)) <= {"T"}, "all threads of the broker are stopped")


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
        command = [sys.executable, "-m", "pyspark_ledger.offload.broker", "--store", str(self.store), *arguments]
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
            parent = parent_of(broker)
            found[:] = [parent, broker] if is_supervisor(parent) and is_running(broker) else []
            return bool(found)

        self.wait_until(there, "a supervised broker runs")
        supervisor, broker = found
        self.pids |= {supervisor, broker}
        return supervisor, broker

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for pid in serving(self.store):
            for number in (signal.SIGCONT, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


@pytest.fixture(scope="session")
def session_run_directory() -> Iterator[Path]:
    """Yield a run directory with a short name: the path of a socket has at most about a hundred bytes."""
    path = Path(tempfile.mkdtemp(prefix="ledger-run-"))
    yield path
    wait_until(lambda: not _users(path), "the last brokers have ended")  # a broker deletes its own files at its end
    shutil.rmtree(path)


def _users(run_directory: Path) -> list[int]:
    """Return the ids of the processes that were started with a run directory."""
    mine = f"XDG_RUNTIME_DIR={run_directory}".encode()
    return [pid for pid in process_ids() if mine in process_file(pid, "environ").split(b"\0")]


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
