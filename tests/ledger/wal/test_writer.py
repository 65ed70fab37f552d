"""Goal: what is acknowledged is in the bucket, once and in order. Method: a real S3 server behind a faulty proxy."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from pyspark_ledger.ledger.errors import Fenced, LedgerError, Unavailable
from pyspark_ledger.ledger.wal.bucket import LOG_PREFIX, log_key, number_of
from pyspark_ledger.ledger.wal.fence import Slot
from pyspark_ledger.ledger.wal.packing import FileBytes
from pyspark_ledger.ledger.wal.reader import WalReader
from pyspark_ledger.ledger.wal.requests import read_manifest
from pyspark_ledger.ledger.wal.take_over import TakeOver
from pyspark_ledger.ledger.wal.writer import WalWriter
from tests.rigs.deadline import wait_until
from tests.rigs.fault_proxy import FaultProxy
from tests.rigs.wal import LIMITS, WalRig, text

WAIT = 60


def texts(count: int, first: int = 0) -> list[bytes]:
    return [f"{number}".encode() for number in range(first, first + count)]


def test_batches_are_acknowledged_in_order_and_read_again(rig: WalRig) -> None:
    writer, found = rig.take_over()
    assert found == []
    futures = [writer.append(text(number, 3_000)) for number in range(200)]
    places = [future.result(WAIT) for future in futures]
    assert places == sorted(places)
    assert places[-1].last > places[0].first + 5, "several objects"
    assert rig.read() == texts(200)
    assert (writer.end, writer.needed) == (places[-1].last + 1, places[-1].last + 1)


def test_a_lone_batch_needs_one_put_and_one_look(rig: WalRig, proxy: FaultProxy) -> None:
    writer, _ = rig.take_over()
    before = proxy.requests
    writer.append(text(0)).result(WAIT)
    assert proxy.requests - before == 2


def test_an_idle_log_needs_one_put_and_one_look_more(rig: WalRig, proxy: FaultProxy) -> None:
    writer, _ = rig.take_over(limits=dataclasses.replace(LIMITS, idle_ms=200))
    first, before = writer.end, proxy.requests
    for number in range(2):
        writer.append(text(number)).result(WAIT)
        wait_until(lambda: writer.end == first + 2 * (number + 1))  # noqa: B023 — called at once
    assert proxy.requests - before == 8


def test_many_clients_share_objects(rig: WalRig) -> None:
    writer, _ = rig.take_over(limits=dataclasses.replace(LIMITS, flush_interval_ms=200))
    first = writer.end

    def client(number: int) -> None:
        for turn in range(3):
            writer.append(text(number * 3 + turn)).result(WAIT)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(rig.read()) == sorted(texts(60))
    assert writer.end - first <= 8, "60 batches in a few objects"


def test_a_batch_larger_than_an_object_is_read_whole(rig: WalRig) -> None:
    data = bytes(range(256)) * 1024
    writer, _ = rig.take_over()
    batch = [FileBytes("ledgers/7.ledger", 0, len(data), lambda start, size: data[start : start + size])]
    futures = [writer.append(text(0)), writer.append(batch), writer.append(text(1))]
    places = [future.result(WAIT) for future in futures]
    assert places[1].last - places[1].first >= 3
    assert rig.read() == [b"0", data.rstrip(b"."), b"1"]


@pytest.mark.parametrize("kind", ["lost", "error", "hang", "slow"])
@pytest.mark.parametrize("what", ["wal/", "manifest"])
def test_a_request_that_fails_is_repeated(rig: WalRig, proxy: FaultProxy, kind: str, what: str) -> None:
    writer, _ = rig.take_over()
    proxy.on("PUT" if what == "wal/" else "GET", what, kind, times=2)
    futures = [writer.append(text(number)) for number in range(3)]
    for future in futures:
        future.result(WAIT)
    assert proxy.met >= 1
    assert rig.read() == texts(3)


def test_a_stall_refuses_after_the_deadline_and_acknowledges_nothing_later(rig: WalRig, proxy: FaultProxy) -> None:
    writer, _ = rig.take_over(limits=dataclasses.replace(LIMITS, deadline_ms=500))
    proxy.on("PUT", "wal/", "error", times=1_000)
    with pytest.raises(Unavailable, match="503"):
        writer.append(text(0)).result(WAIT)
    proxy.heal()
    with pytest.raises(Unavailable):
        writer.append(text(1))
    assert rig.read() == []
    assert len(rig.failures) == 1


def test_a_broker_that_lost_the_store_acknowledges_nothing(rig: WalRig) -> None:
    old, _ = rig.take_over()
    old.append(text(0)).result(WAIT)
    new, found = rig.take_over()
    assert found == [b"0"]
    with pytest.raises(Fenced, match="epoch"):
        old.append(text(1)).result(WAIT)
    new.append(text(2)).result(WAIT)
    assert rig.read() in ([b"0", b"2"], [b"0", b"1", b"2"])
    with pytest.raises(Fenced):
        old.append(text(3))


def test_a_put_that_arrives_after_a_take_over_is_not_acknowledged(rig: WalRig, proxy: FaultProxy) -> None:
    old, _ = rig.take_over()
    old.append(text(0)).result(WAIT)
    proxy.on("PUT", log_key(old.end), "after")
    late = old.append(text(1))
    assert proxy.reached.wait(WAIT)
    new, found = rig.take_over()
    assert found == [b"0", b"1"], "the object is in the log, and its broker does not know"
    proxy.released.set()
    with pytest.raises(Fenced):
        late.result(WAIT)
    new.append(text(2)).result(WAIT)
    assert rig.read() == [b"0", b"1", b"2"]


def test_a_put_that_is_overtaken_by_a_claim_is_lost(rig: WalRig, proxy: FaultProxy) -> None:
    old, _ = rig.take_over()
    old.append(text(0)).result(WAIT)
    proxy.on("PUT", log_key(old.end), "before")
    late = old.append(text(1))
    assert proxy.reached.wait(WAIT)
    new, found = rig.take_over()
    assert found == [b"0"]
    proxy.released.set()
    with pytest.raises(Fenced):
        late.result(WAIT)
    new.append(text(2)).result(WAIT)
    assert rig.read() == [b"0", b"2"]


def test_a_taker_that_was_overtaken_reports_no_loss(rig: WalRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later taker has objects behind the window of a slow one, which has claimed one slot so far."""
    old, _ = rig.take_over()
    old.append(text(0)).result(WAIT)
    claim_first = TakeOver._claim_first

    def overtaken(taking: TakeOver, reader: WalReader) -> Slot:
        monkeypatch.undo()
        claimed = claim_first(taking, reader)
        new, _ = rig.take_over()
        for number in range(3):
            new.append(text(number)).result(WAIT)
        return claimed

    monkeypatch.setattr(TakeOver, "_claim_first", overtaken)
    with pytest.raises(Fenced, match="epoch 3, this broker has 2"):
        rig.take_over()


@pytest.mark.parametrize(("where", "call", "late"), [("_claim_first", 1, 0), ("_claim", 2, 3)])
def test_a_taker_that_was_suspended_over_a_collection_takes_no_slot(
    rig: WalRig, monkeypatch: pytest.MonkeyPatch, where: str, call: int, late: int
) -> None:
    """The claims of the later taker, which would stop the slow one, are deleted."""
    old, _ = rig.take_over()
    old.append(text(0)).result(WAIT)
    real, calls, owners = getattr(TakeOver, where), list[int](), list[WalWriter]()

    def suspended(taking: TakeOver, *places: Any) -> Slot:
        calls.append(1)
        if len(calls) == call:
            monkeypatch.undo()
            owners.append(rig.take_over()[0])
            for number in range(3):
                owners[0].append(text(number)).result(WAIT)
            rig.collect(owners[0])
        found: Slot = real(taking, *places)
        return found

    monkeypatch.setattr(TakeOver, where, suspended)
    with pytest.raises(Fenced, match="has epoch 3, this broker has 2"):
        rig.take_over()
    places = [owners[0].append(text(number)).result(WAIT) for number in range(3, 9)]
    assert places == sorted(places)
    assert rig.read() == texts(6, 3), "0, 1 and 2 are collected"
    assert rig.failures == []
    first = read_manifest(rig.bucket, LIMITS).manifest.first
    assert sum(number_of(found.key) < first for found in rig.bucket.objects(LOG_PREFIX)) == late, "harmless claims"


def test_close_acknowledges_what_waits(rig: WalRig) -> None:
    writer, _ = rig.take_over(limits=dataclasses.replace(LIMITS, flush_interval_ms=60_000))
    futures = [writer.append(text(number)) for number in range(5)]
    writer.close()
    assert all(future.result(0) for future in futures)
    assert rig.read() == texts(5)
    with pytest.raises(LedgerError, match="closed"):
        writer.append(text(9))
