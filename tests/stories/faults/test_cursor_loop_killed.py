"""Goal: after any kill every row is handed out, and no row is acknowledged that was not handed out.

Method: worker processes in turn read one cursor in a loop, while rows are appended. Workers and broker are killed at
random moments, or a worker is stopped until another one has taken its lease. Then sets of rows are compared.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.cursor import Cursor
from pyspark_ledger.ledger.api.joined_cursor import JoinedCursor
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.protocol.actions import StopBroker

SECONDS, ENTRIES, ROWS, KILLS = 60, 60, 20, 6


def start_worker(store: LedgerStore, ack: str, file: Path, lease_ms: str = "") -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "tests.rigs.loop_worker", str(store.client.store_path), ack, str(file), lease_ms]
    return subprocess.Popen([word for word in words if word])


def told(file: Path, word: str) -> set[int]:
    """The ids in whole lines of a worker's file that begin with a word."""
    text = file.read_text() if file.exists() else ""
    lines = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return {int(number) for first, *numbers in lines if first == word for number in numbers}


def wait_until(done: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def backlog(store: LedgerStore) -> set[int]:
    cursor: Cursor | JoinedCursor = store.ledger("orders").cursor("billing")
    cursors = cursor.cursors() if isinstance(cursor, JoinedCursor) else [cursor]
    return {number for one in cursors for number in one.read()[0].column("id").to_pylist()}


@pytest.fixture
def store(tmp_path: Path, request: pytest.FixtureRequest) -> LedgerStore:
    """A store with the ledger `orders`. The parameter is the number of its partitions."""
    store = connect(tmp_path / "store")
    if partitions := getattr(request, "param", 0):
        store.create_partitioned("orders", partitions)
    store.ledger("orders").append([{"id": number} for number in range(ROWS)])
    store.ledger("orders").cursor("billing")
    store.client.same_host_token()  # reads the path of the store, too
    return store


@pytest.mark.fault
@pytest.mark.parametrize(
    ("store", "ack", "seed"),
    [(0, "explicit", 0), (0, "after", 1), (4, "explicit", 2), (4, "after", 3)],
    indirect=["store"],
)
def test_killed_workers_and_brokers_lose_no_row(store: LedgerStore, tmp_path: Path, ack: str, seed: int) -> None:
    dice, file = random.Random(seed), tmp_path / "told"
    everything = set(range(ENTRIES * ROWS))

    def append() -> None:
        for at in range(1, ENTRIES):
            store.ledger("orders").append([{"id": at * ROWS + row} for row in range(ROWS)])
            pause.wait(0.02)

    pause = threading.Event()
    writer = threading.Thread(target=append)
    writer.start()
    for number in range(KILLS):
        worker = start_worker(store, ack, file)
        seen = len(told(file, "received"))
        wanted = min(seen + dice.randrange(60, 200), len(everything))
        wait_until(lambda wanted=wanted: len(told(file, "received")) >= wanted, f"{wanted} rows were not received")
        if number % 2:
            os.kill(store.client.hello().pid, signal.SIGKILL)
            pause.wait(dice.random() * 0.3)
        worker.kill()
        worker.wait(SECONDS)
        appended = set(store.ledger("orders").read().column("id").to_pylist())
        assert appended - backlog(store) <= told(file, "received"), "a row was acknowledged that was not handed out"
    writer.join(SECONDS)
    worker = start_worker(store, ack, file)
    wait_until(lambda: told(file, "received") == everything, "a row was never handed out")
    if ack == "explicit":
        wait_until(lambda: not backlog(store), "a row was never acknowledged")
    worker.kill()
    worker.wait(SECONDS)
    left = backlog(store)
    assert everything - left <= told(file, "received"), "a row was acknowledged that was not handed out"
    if ack == "explicit":
        assert told(file, "acknowledged") <= everything - left, "an acknowledgement was lost"
    store.client.ask(StopBroker())


@pytest.mark.fault
def test_stopped_worker_whose_lease_was_taken_acknowledges_nothing(store: LedgerStore, tmp_path: Path) -> None:
    files = [tmp_path / "first", tmp_path / "second"]
    orders = store.ledger("orders")
    first = start_worker(store, "explicit", files[0], "600")
    wait_until(lambda: not backlog(store), "the first worker did not begin")
    orders.append([{"id": 100}])
    with suppress(ProcessLookupError):
        os.kill(first.pid, signal.SIGSTOP)
    orders.append([{"id": 101}])
    second = None
    until = time.monotonic() + SECONDS
    while not told(files[1], "received"):  # a worker is refused until the lease has expired
        assert time.monotonic() < until
        if second is None or second.poll() is not None:
            second = start_worker(store, "explicit", files[1], "600000")
        time.sleep(0.05)
    assert second is not None
    wait_until(lambda: not backlog(store), "the second worker acknowledged not all")
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait(SECONDS) in (0, 1), "the first worker ended by itself, with LeaseLost"
    assert told(files[0], "acknowledged").isdisjoint(told(files[1], "acknowledged") - {100})
    assert told(files[1], "acknowledged") >= {101}
    second.kill()
    second.wait(SECONDS)
    with orders.cursor("billing").batches(wait=0) as batches:
        assert list(batches) == []
    store.client.ask(StopBroker())
