"""Goal: a suspended broker and a deleted directory lose nothing. Method: broker processes, and a real S3 server."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import connect_store, stop_broker
from pyspark_ledger.ledger.clock import monotonic_ms
from pyspark_ledger.ledger.location import FENCED, bucket_directory
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.ownership import is_gone
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from pyspark_ledger.ledger.wal.requests import RequestLimits, read_manifest
from streaming_examples.s3_server import S3Server
from tests.rigs.bucket_clients import be_client, create_store
from tests.rigs.processes import is_running, is_supervisor, serving

pytestmark = pytest.mark.fault
WAIT_MS, KILLS = 60_000, 4


@pytest.fixture
def address(bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    be_client(s3_server, tmp_path / "one", monkeypatch)
    create_store(bucket)
    yield bucket
    for root in tmp_path.iterdir():
        monkeypatch.setenv("LEDGER_CACHE", str(root))
        stop_broker(bucket_directory(bucket))


def wait_until(what: Callable[[], object], name: str) -> None:
    until, turn = monotonic_ms() + WAIT_MS, threading.Event()
    while not what():
        assert monotonic_ms() < until, name
        turn.wait(0.05)


def rows(count: int, first: int = 0) -> list[dict[str, int]]:
    return [{"id": number} for number in range(first, first + count)]


def ids(address: str) -> list[int]:
    found: list[int] = connect(address).ledger("orders").read().column("id").to_pylist()
    return found


def pid_of(directory: Path) -> int:
    """The pid of the broker that serves, 0 while a new broker builds its directory."""
    record = BrokerRecord.read(directory)
    return 0 if record is None else record.pid


def process_of(address: str) -> str:
    """The process of the broker that the manifest names, empty if it names none."""
    place = open_object_store(address)
    try:
        broker = read_manifest(place, RequestLimits()).manifest.broker
    finally:
        place.close()
    return "" if broker is None else broker.process


def test_a_suspended_broker_that_was_replaced_acknowledges_nothing(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(address).ledger("orders").append(rows(3))
    one = bucket_directory(address)
    suspended, named = pid_of(one), process_of(address)
    os.kill(suspended, signal.SIGSTOP)
    monkeypatch.setenv("LEDGER_CACHE", str(tmp_path / "two"))
    two = bucket_directory(address)
    two.mkdir(parents=True, mode=0o700)
    command = [sys.executable, "-m", "pyspark_ledger.offload.broker", "--store", str(two), "--take-over", "broker"]
    with (two / "broker.log").open("ab") as output:
        taker = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_until(lambda: process_of(address) not in ("", named), "another broker takes the store over")
        store = connect(address)
        store.ledger("orders").append(rows(3, 3))
        os.kill(suspended, signal.SIGCONT)
        store.ledger("orders").append(rows(3, 6))
        # The private socket of both brokers has one path, so this client reaches the new one. The old one learns of
        # its loss when it is stopped, and must leave the socket alone.
        assert ids(address) == list(range(9))
        os.kill(suspended, signal.SIGTERM)
        wait_until(lambda: not is_running(suspended), "the old broker ends")
        assert (one / FENCED).exists(), "it left because of the take-over"
        assert ids(address) == list(range(9))
    finally:
        taker.terminate()
        taker.wait(60)


def test_a_deleted_directory_ends_the_broker_and_loses_nothing(address: str) -> None:
    orders = connect(address).ledger("orders")
    orders.append(rows(5))
    directory = bucket_directory(address)
    broker = pid_of(directory)
    shutil.rmtree(directory)
    wait_until(lambda: not is_running(broker), "the broker ends")
    wait_until(lambda: is_gone(process_of(address)), "its process is gone")
    connect(address).ledger("orders").append(rows(5, 5))
    assert ids(address) == list(range(10))


def test_a_broker_that_is_killed_while_it_takes_over_is_no_obstacle(address: str, dice: random.Random) -> None:
    """Each round kills a broker, and then the next one at some step of its start."""
    connect(address).ledger("orders").append(rows(5))
    directory, killed = bucket_directory(address), 0
    for delay in (dice.uniform(0, 0.8) for _ in range(10 * KILLS)):
        if killed == KILLS:
            break
        before = pid_of(directory)
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: broker_of(directory) not in (0, before), "a broker starts")  # noqa: B023 — called at once
        threading.Event().wait(delay)
        taker = broker_of(directory)
        if taker not in (0, before) and pid_of(directory) in (0, before):  # it has not served yet
            os.kill(taker, signal.SIGKILL)
            killed += 1
        client = connect_store(address, deadline_ms=WAIT_MS)
        client.hello(deadline_ms=WAIT_MS)
        client.close()
    assert killed == KILLS, f"{killed} kills met a take-over, not {KILLS}"
    assert ids(address) == list(range(5))


def broker_of(directory: Path) -> int:
    """The pid of the newest broker process of a directory, 0 if none runs."""
    return max((pid for pid in serving(directory) if not is_supervisor(pid)), default=0)
