"""Goal: no fault loses what a store in a bucket acknowledged. Method: races, kills, a proxy, damaged objects."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.errors import Corrupt, LedgerError
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from streaming_examples.s3_server import S3Server
from tests.rigs.bucket_clients import be_client, create_store
from tests.rigs.bucket_store import BucketRig, append, numbered, offload, payloads
from tests.rigs.fault_proxy import FaultProxy

pytestmark = pytest.mark.fault
STARTS, KILLS = 12, 5


@pytest.fixture
def rig(tmp_path: Path, s3_server: S3Server, bucket: str) -> Iterator[BucketRig]:
    rig = BucketRig(tmp_path, bucket, s3_server.options)
    yield rig
    rig.close()


def test_of_two_brokers_that_start_at_once_one_serves(rig: BucketRig) -> None:
    """Each round starts two brokers together. What either of them acknowledged is there afterwards."""
    rig.host("first")
    acknowledged: list[bytes] = []
    served = 0
    for number in range(STARTS):
        ready = threading.Barrier(2)

        def start(name: str, ready: threading.Barrier = ready, number: int = number) -> bool:
            ready.wait()
            payload = b"%d %s" % (number, name.encode())
            try:
                append(rig.host(f"{name}{number}"), [payload])
            except LedgerError:
                return False
            acknowledged.append(payload)
            return True

        with ThreadPoolExecutor(2) as pool:
            served += sum(pool.map(start, "ab"))
    found = payloads(rig.host("last"))
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))
    assert served >= STARTS // 2, "a round without any serving broker is a rare one"


def test_kills_lose_no_acknowledged_row(
    bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    be_client(s3_server, tmp_path, monkeypatch)
    create_store(bucket)
    directory, over, acknowledged = bucket_directory(bucket), threading.Event(), list[int]()
    connect(bucket).create("orders")

    def write() -> None:
        orders, number = connect(bucket).ledger("orders"), 0
        while not over.is_set():
            try:
                orders.append([{"id": number}])
                acknowledged.append(number)
            except LedgerError:
                orders = connect(bucket).ledger("orders")
            number += 1

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        killed = 0
        try:
            for _ in range(KILLS):
                before, until, record = len(acknowledged), threading.Event(), None
                # A new broker answers calls before its record names it.
                while (len(acknowledged) < before + 3 or record is None) and not writing.done():
                    until.wait(0.02)
                    record = BrokerRecord.read(directory)
                assert record is not None
                os.kill(record.pid, signal.SIGKILL)
                killed += 1
        finally:
            over.set()
        writing.result(120)
    found = connect(bucket).ledger("orders").read().column("id").to_pylist()
    stop_broker(directory)
    assert killed == KILLS
    assert set(acknowledged) <= set(found)
    assert [number for number in dict.fromkeys(found) if number in set(acknowledged)] == acknowledged


@pytest.mark.parametrize("what", ["wal/", "snapshot/", "manifest"])
def test_a_flipped_bit_is_found_by_the_next_broker(rig: BucketRig, what: str) -> None:
    first = rig.host("a")
    append(first, numbered(6))
    first.collector.collect()
    append(first, numbered(6, 6))
    key = rig.keys(what)[-1]
    data = bytearray(rig.bucket.get(key, 1 << 20).data)
    data[len(data) // 2] ^= 0x10
    first.close()
    rig.bucket.put(key, bytes(data))
    with pytest.raises(Corrupt, match=what):
        rig.host("b")


def test_a_lost_log_object_is_an_error(rig: BucketRig) -> None:
    first = rig.host("a")
    append(first, numbered(12))
    key = rig.keys("wal/")[-6]
    first.close()
    rig.bucket.delete([key])
    with pytest.raises(Corrupt, match="objects of the log are lost"):
        rig.host("b")


def test_yesterdays_directory_is_not_believed(rig: BucketRig, tmp_path: Path) -> None:
    first = rig.host("a")
    append(first, numbered(11), entries=4)
    first.close()
    shutil.copytree(tmp_path / "a", tmp_path / "yesterday")
    second = rig.host("b")
    append(second, numbered(9, 11), entries=4)
    offload(second)
    second.collector.collect()
    second.close()
    shutil.rmtree(tmp_path / "a")
    shutil.copytree(tmp_path / "yesterday", tmp_path / "a")
    assert payloads(rig.host("a")) == numbered(20)


@pytest.mark.parametrize("kind", ["lost", "error", "cut", "slow"])
def test_faults_of_the_network_lose_nothing(rig: BucketRig, proxy: FaultProxy, s3_server: S3Server, kind: str) -> None:
    rig.through = dataclasses.replace(s3_server.options, endpoint=proxy.endpoint, attempts=1, read_timeout_ms=5_000)
    first = rig.host("a")
    for turn in range(4):
        proxy.on("*", "", kind, times=3)
        append(first, numbered(5, 5 * turn), entries=4)
        first.collector.collect()
    assert proxy.met >= 6
    proxy.heal()
    assert payloads(rig.host("b")) == numbered(20)


def test_a_bucket_made_read_only_ends_the_broker(rig: BucketRig, proxy: FaultProxy, s3_server: S3Server) -> None:
    rig.through = dataclasses.replace(s3_server.options, endpoint=proxy.endpoint, attempts=1, read_timeout_ms=5_000)
    first = rig.host("a")
    append(first, numbered(3))
    proxy.on("PUT", "", "forbidden", times=10_000)
    with pytest.raises(LedgerError, match="403"):
        append(first, [b"refused"])
    assert rig.lost
    proxy.heal()
    assert payloads(rig.host("b")) == numbered(3)
