"""Goal: answers that are wrong, late or missing lose nothing. Method: a proxy before a real S3 server."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import LedgerError
from streaming_examples.s3_server import S3Server
from tests.rigs.bucket_store import BucketRig, append, numbered, offload, payloads
from tests.rigs.entry import entry
from tests.rigs.fault_proxy import FaultProxy

pytestmark = pytest.mark.fault
WAIT = 60


@pytest.fixture
def rig(tmp_path: Path, s3_server: S3Server, proxy: FaultProxy, bucket: str) -> Iterator[BucketRig]:
    through = dataclasses.replace(s3_server.options, endpoint=proxy.endpoint, attempts=1, read_timeout_ms=5_000)
    rig = BucketRig(tmp_path, bucket, s3_server.options, through)
    yield rig
    proxy.heal()
    rig.close()


@pytest.mark.parametrize("kind", ["refused", "twice", "internal", "throttle"])
def test_wrong_answers_to_puts_lose_nothing(rig: BucketRig, proxy: FaultProxy, kind: str) -> None:
    first = rig.host("a")
    for what in ("wal/", "manifest", "snapshot/"):
        proxy.on("PUT", what, kind, times=2)
    append(first, numbered(5), entries=2)
    offload(first)
    first.collector.collect()
    append(first, numbered(3, 5), entries=2)
    first.collector.collect()
    assert proxy.met == 6
    assert not rig.lost
    assert payloads(rig.host("b")) == numbered(8)


def test_deletions_that_arrive_twice_delete_nothing_else(rig: BucketRig, proxy: FaultProxy) -> None:
    first = rig.host("a")
    append(first, numbered(9), entries=2)
    offload(first)
    proxy.on("POST", "delete", "twice", times=5)
    first.collector.collect()
    assert proxy.met
    assert payloads(rig.host("b")) == numbered(9)


def test_credentials_that_expire_and_are_renewed_end_nothing(rig: BucketRig, proxy: FaultProxy) -> None:
    first = rig.host("a")
    proxy.on("*", "", "forbidden", times=3)
    append(first, numbered(4))
    assert proxy.met == 3
    assert not rig.lost
    assert payloads(rig.host("b")) == numbered(4)


def test_a_server_that_stops_delays_appends_and_bounds_memory(rig: BucketRig, proxy: FaultProxy) -> None:
    first = rig.host("a", window=2)
    append(first, numbered(2))
    proxy.on("PUT", "wal/", "stop")
    ledger = first.store.ledger("log")
    sent = [ledger.append([entry(b"%03d" % number + bytes(2_000))]) for number in range(100)]
    assert proxy.reached.wait(WAIT)
    held = sum(pending.size for pending in list(first.wal._pending.values()))
    assert held <= 2 * (16 * 1024 + 4_096), "two objects, whatever waits"
    assert not any(future.done() for future in sent)
    proxy.heal()
    for future in sent:
        future.result(WAIT)
    assert [found[:3] for found in payloads(rig.host("b"))[2:]] == [b"%03d" % number for number in range(100)]


def test_a_server_that_stays_away_refuses_every_append(rig: BucketRig, proxy: FaultProxy) -> None:
    first = rig.host("a")
    append(first, numbered(2))
    first.wal._limits = dataclasses.replace(first.wal._limits, deadline_ms=1_500)
    proxy.on("*", "", "throttle", times=100_000)
    ledger, refused = first.store.ledger("log"), threading.Semaphore(0)
    for number in range(20):
        ledger.append([entry(b"%d" % number)]).add_done_callback(
            lambda done: refused.release() if done.exception() else None
        )
    for _ in range(20):
        assert refused.acquire(timeout=WAIT)
    with pytest.raises(LedgerError, match="503"):
        append(first, [b"later"])
    proxy.heal()
    found = payloads(rig.host("b"))
    assert found[:2] == numbered(2)
    assert "SlowDown" in str(rig.lost[0])
