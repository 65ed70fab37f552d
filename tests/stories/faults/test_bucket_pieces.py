"""Goal: a kill with several objects of one ledger in flight loses, repeats and reorders nothing.

Method: a broker process, and a proxy before a real S3 server. The proxy delays answers, so that pieces of about 1 MiB
are in flight. A round kills the broker then. Each other round also deletes the cache directory.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path

import pytest

from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.connect import connect_store, stop_broker
from pyspark_ledger.ledger.client.producer import Producer
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from streaming_examples.s3_server import S3Server
from tests.rigs.bucket_clients import create_store
from tests.rigs.deadline import wait_until
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.victim import Victim

pytestmark = pytest.mark.fault
ROUNDS, ENTRIES, WAIT_MS = 6, 40, 60_000
PIECE = 900_000  # of about 1 MiB
MakeEntry = Callable[..., bytes]
ReadLog = Callable[[Client, str], list[bytes]]


@pytest.fixture
def address(
    bucket: str, s3_server: S3Server, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    for name, value in {**s3_server.environment, "AWS_ENDPOINT_URL_S3": proxy.endpoint}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LEDGER_CACHE", str(tmp_path / "cache"))
    create_store(bucket, s3_server.options)
    yield bucket
    proxy.heal()
    stop_broker(bucket_directory(bucket))


def pieces(proxy: FaultProxy) -> int:
    """Return the number of puts of pieces that the broker has sent, and that have no answer."""
    return sum(size > PIECE and "/wal/" in path for method, path, size in list(proxy.handled) if method == "PUT")


class Log:
    """Entries that were sent to one ledger, and those of them that were acknowledged."""

    def __init__(self, dice: random.Random, make_entry: MakeEntry) -> None:
        self.sizes: list[int] = []
        self.acknowledged: list[int] = []
        self._dice, self._make_entry = dice, make_entry

    def append(self, producer: Producer) -> Future[Position]:
        number = len(self.sizes)
        self.sizes.append(self._dice.randrange(100_000, 600_000))
        sent = producer.append(self._make_entry(self.payload(number)))
        sent.add_done_callback(lambda done: None if done.exception() else self.acknowledged.append(number))
        return sent

    def payload(self, number: int) -> bytes:
        return b"%d/" % number + bytes(self.sizes[number])

    def check(self, found: list[bytes]) -> None:
        numbers = [int(payload.partition(b"/")[0]) for payload in found]
        assert numbers == sorted(set(numbers)), "each entry once, in order"
        assert set(self.acknowledged) <= set(numbers), "everything acknowledged"
        assert all(payload == self.payload(number) for number, payload in zip(numbers, found, strict=True))


def test_kills_with_pieces_in_flight_keep_every_acknowledged_entry(
    address: str, proxy: FaultProxy, dice: random.Random, make_entry: MakeEntry, read_log: ReadLog, tmp_path: Path
) -> None:
    victim, log, lost = Victim(bucket_directory(address)), Log(dice, make_entry), 0
    for number in range(ROUNDS):
        client = opened(address)
        log.check(read_log(client, "log"))
        producer = client.producer("log")
        log.append(producer).result(60)
        proxy.on("PUT", "/wal/", "hang", times=dice.randrange(2))
        proxy.on("PUT", "/wal/", "slow", times=dice.randrange(3))
        proxy.on("PUT", "/wal/", "late", times=1_000)
        before = len(log.acknowledged)
        flying = [log.append(producer) for _ in range(dice.randrange(1, ENTRIES))]
        pids = victim.processes() if number % 2 else [victim.broker()]  # a killed supervisor restarts no broker
        while not stopped(pids[-1], proxy):
            assert len(flying) < 10 * ENTRIES, "a kill meets pieces in flight"
            flying.append(log.append(producer))
        for pid in pids:
            victim.kill(pid)
        if number % 2:
            wait_until(lambda: not victim.processes(), "the processes end")
            victim.store.rename(tmp_path / f"deleted{number}")
        wait(flying, 60)
        lost += before + len(flying) - len(log.acknowledged)
        proxy.heal()
        wait_until(lambda: not pieces(proxy), "the puts of the killed broker end")
    log.check(read_log(opened(address), "log"))
    assert lost >= 2 * ROUNDS, "entries of pieces in flight were not acknowledged"


def opened(address: str) -> Client:
    client = connect_store(address, deadline_ms=WAIT_MS)
    client.ask(CreateLedger("log", exist_ok=True, block_bytes=5 * 1024 * 1024))
    return client


def stopped(broker: int, proxy: FaultProxy) -> bool:
    """Stop the broker if several pieces are in flight, and return whether they still are."""
    if pieces(proxy) < 2:
        return False
    os.kill(broker, signal.SIGSTOP)
    if pieces(proxy) > 1:
        return True
    os.kill(broker, signal.SIGCONT)
    return False
