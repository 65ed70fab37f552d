"""Set-up for tests of the connector: a store whose broker ends with the test."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.client.connect import connect_store
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.protocol.actions import StopBroker
from tests.rigs.processes import serving


@pytest.fixture
def store(store_path: Path) -> Iterator[Path]:
    """Yield the path of a store that does not exist yet. All processes that serve it end with the test."""
    yield store_path
    end_all(store_path)


@pytest.fixture
def api(store: Path) -> LedgerStore:
    return connect(store)


@contextmanager
def served(path: Path) -> Iterator[LedgerStore]:
    """Yield a store with a broker of its own, which is shut down when the block ends."""
    opened = connect(path)
    yield opened
    opened.client.ask(StopBroker())


@pytest.fixture
def served_store(store_path: Path) -> Iterator[LedgerStore]:
    with served(store_path) as opened:
        yield opened


def end_all(store_path: Path) -> None:
    """End all that serves a store, for good.

    The store gets another path. Otherwise a thread that the test has left behind, such as the heartbeat of a reader,
    could start the next broker.
    """
    if serving(store_path):
        with suppress(LedgerError):
            connect_store(store_path, start=False, deadline_ms=1_000).ask(StopBroker(), deadline_ms=0)
    with suppress(FileNotFoundError):
        store_path.rename(tempfile.mkdtemp(prefix="ended-", dir=store_path.parent))
    kill_all(store_path)  # A broker waits for open streams when it shuts down, so they are closed first.


def kill_all(store_path: Path) -> None:
    """Kill the processes of a store, its supervisor first, so that the broker is not restarted."""
    until = time.monotonic() + 60
    while left := serving(store_path):
        assert time.monotonic() < until, f"processes {left} still serve {store_path}"
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def kill_broker(store_path: Path, timeout_s: float = 30.0) -> int:
    """Kill the broker of a store. Its supervisor starts another. Return the process id of the killed broker.

    The id is in the record that the broker writes. Just after a kill, the record still names the killed broker. Then
    the function waits for the record of the next broker.
    """
    for _ in range(int(timeout_s / 0.05)):
        pid = int(msgspec.json.decode((store_path / "broker.json").read_bytes())["pid"])
        assert pid != os.getpid(), "the broker is a thread of this process: mark the test with `broker_process`"
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            time.sleep(0.05)
        else:
            return pid
    raise AssertionError(f"no broker of {store_path} started in {timeout_s} s")
