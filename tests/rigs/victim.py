"""Set-up for tests that kill brokers: random numbers of a printed seed, and a store whose broker is restarted."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.connect import connect_store
from pyspark_ledger.ledger.message.entry import is_marker
from pyspark_ledger.ledger.position import EARLIEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import AskEnd
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from tests.rigs.entry import entry, parsed
from tests.rigs.processes import is_supervisor, serving


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Return a random generator. LEDGER_FAULT_SEED sets its seed, which is printed if a test fails."""
    seed = int(os.environ.get("LEDGER_FAULT_SEED") or random.SystemRandom().randrange(2**32))
    print(f"LEDGER_FAULT_SEED={seed}")  # noqa: T201 — pytest shows it when the test fails
    return random.Random(seed)


class Victim:
    """Store with a supervised broker of its own, which a test may kill at any moment."""

    def __init__(self, store: Path) -> None:
        self.store = store

    def client(self, **options: int) -> Client:
        return connect_store(self.store, create=True, **options)

    def broker(self) -> int:
        record = BrokerRecord.read(self.store)
        return 0 if record is None else record.pid

    def processes(self) -> list[int]:
        """Return the process ids of this store's supervisors, then of its brokers."""
        return serving(self.store)

    def kill(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def kill_broker(self) -> None:
        """Kill the present broker, if one runs. Its supervisor restarts it."""
        for pid in self.processes():
            if not is_supervisor(pid):
                self.kill(pid)

    def kill_all(self) -> None:
        for pid in self.processes():
            self.kill(pid)

    def close(self) -> None:
        while self.processes():
            self.kill_all()


@pytest.fixture
def victim(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Victim]:
    run_directory = Path(tempfile.mkdtemp(prefix="ledger-run-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(run_directory))
    victim = Victim(store_path)
    yield victim
    victim.close()
    shutil.rmtree(run_directory)


@pytest.fixture
def make_entry() -> Callable[..., bytes]:
    return entry


@pytest.fixture
def read_log() -> Callable[[Client, str], list[bytes]]:
    """Return a function that reads the payloads of a ledger in order, without markers. Every byte is checked."""

    def read(client: Client, ledger: str) -> list[bytes]:
        blocks = client.read_blocks(ReadRequest(ledger, PositionRange(EARLIEST, client.ask(AskEnd(ledger)).end)))
        entries = (entry for block in blocks for _, entry in parsed(block))
        return [bytes(entry.payload) for entry in entries if not is_marker(entry.metadata)]

    return read
