"""Goal: a broker may die at any request of its life. Method: each request is its last, before or after it arrives."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.bucket_store.verification import verify_store
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.protocol.cursors import DescribeCursor
from tests.rigs.bucket_store import REQUESTS, SMALL, BucketRig, append, cursor, numbered, offload, payloads
from tests.rigs.cursors import given

pytestmark = pytest.mark.fault
STARTS = 100
_KILLED = "the broker was killed"


class Mortal:
    """Bucket of brokers that die at request number `last`: nothing of them arrives afterwards."""

    def __init__(self) -> None:
        self.requests, self.last, self.after = 0, -1, False
        self.lock = threading.Lock()

    def before(self, place: ObjectStore) -> Any:
        owner = self

        class Dying:
            def __getattr__(self, name: str) -> Any:
                found = getattr(place, name)
                return (lambda *a, **k: owner.call(lambda: found(*a, **k))) if callable(found) else found

        return Dying()

    def live(self, last: int, *, after: bool) -> None:
        self.requests, self.last, self.after = 0, last, after

    def call(self, request: Callable[[], Any]) -> Any:
        with self.lock:
            self.requests += 1
            number = self.requests
        if 0 <= self.last < number:
            raise LedgerError(_KILLED)
        found = request()
        if number == self.last and self.after:
            raise LedgerError(_KILLED)
        return found


def life(rig: BucketRig, name: str, first: int, acknowledged: list[bytes]) -> None:
    """Take over, append with rollovers, offload, acknowledge, collect, sweep, close."""
    opened = rig.host(name)
    try:
        for payload in numbered(5, first):
            append(opened, [payload], entries=3)
            acknowledged.append(payload)
        segment = opened.store.ledger("log").snapshot.segments[-1].ledger_id
        cursor(opened)
        opened.store.cursors.acknowledge("log", "c", given((segment, 0)))
        offload(opened)
        opened.collector.sweep()
        opened.collector.collect()
    finally:
        opened.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_death_at_any_request_loses_nothing(tmp_path: Path, after: bool) -> None:
    mortal = Mortal()
    rig = BucketRig(tmp_path, (tmp_path / "bucket").as_uri(), S3Options(), wrap=mortal.before)
    acknowledged: list[bytes] = []
    life(rig, "first", 0, acknowledged)
    mortal.live(-1, after=False)
    life(rig, "second", 5, acknowledged)
    requests, deaths, sent = mortal.requests, 0, 10
    for last in range(2 if after else 3, requests, 2):
        mortal.live(last, after=after)
        try:
            life(rig, f"dying{last}", sent, acknowledged)
        except LedgerError:
            deaths += 1
        sent += 5
        mortal.live(-1, after=False)
        heir = rig.host(f"heir{last}")
        found = payloads(heir)
        assert [payload for payload in found if payload in set(acknowledged)] == acknowledged, f"request {last}"
        assert len(found) == len(set(found)), f"request {last}"
        assert set(found) <= set(numbered(sent))
        if last % 16 < 2:
            verify_store(rig.bucket, tmp_path / "scratch", REQUESTS)
            shutil.rmtree(tmp_path / "scratch")
            assert heir.store.cursors.describe(DescribeCursor("log", "c")).next_position
        heir.close()
        acknowledged[:] = found
        for opened in rig.opened:
            opened.close()
        rig.opened.clear()
    assert deaths >= (requests - 2) // 2 * 0.8
    last_host = rig.host("last", limits=SMALL)
    offload(last_host)
    last_host.collector.sweep()
    last_host.collector.collect()
    manifest = rig.manifest()
    assert rig.keys("snapshot/") == [manifest.snapshot.key], "orphans are swept"
    assert min(rig.keys("wal/")) >= f"wal/{manifest.first:020d}"
    rig.close()


def test_of_two_brokers_that_start_at_once_a_hundred_times_one_serves(tmp_path: Path) -> None:
    rig = BucketRig(tmp_path, (tmp_path / "bucket").as_uri(), S3Options())
    append(rig.host("first"), [b"first"])
    acknowledged: list[bytes] = [b"first"]
    served = refused = 0
    with ThreadPoolExecutor(2) as pool:
        for number in range(STARTS):
            ready = threading.Barrier(2)

            def start(name: str, ready: threading.Barrier = ready, number: int = number) -> bytes:
                opened: BucketStore | None = None
                ready.wait()
                payload = b"%d %s" % (number, name.encode())
                try:
                    opened = rig.host(f"{name}{number}")
                    append(opened, [payload])
                except LedgerError:
                    return b""
                return payload

            found = [payload for payload in pool.map(start, "ab") if payload]
            served, refused = served + len(found), refused + 2 - len(found)
            acknowledged += found
            for opened in rig.opened:
                opened.close()
            rig.opened.clear()
            shutil.rmtree(tmp_path / f"a{number}", ignore_errors=True)
            shutil.rmtree(tmp_path / f"b{number}", ignore_errors=True)
    found = payloads(rig.host("last"))
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))
    assert served >= STARTS // 2
    assert refused >= STARTS // 4, "both started at once"
    rig.close()
