"""Goal: the log stays small and nothing needed is deleted. Method: rounds by hand, then a host without a disk."""

from __future__ import annotations

import dataclasses

import pytest

from pyspark_ledger.ledger.bucket_store.live_files import LiveFile, LiveFiles, to_carry
from pyspark_ledger.ledger.errors import Fenced
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.cursors import DescribeCursor
from pyspark_ledger.ledger.transport.bucket_discovery import BrokerSecret
from pyspark_ledger.ledger.wal.bucket import secret_key, snapshot_key
from pyspark_ledger.ledger.wal.manifest import BrokerAddress
from tests.rigs.bucket_store import SMALL, BucketRig, append, cursor, numbered, offload, payloads
from tests.rigs.cursors import given


@pytest.mark.thorough
def test_uploaded_segments_leave_the_log(rig: BucketRig) -> None:
    first = rig.host("a")
    append(first, numbered(21), entries=5)
    assert offload(first).offloaded >= 4
    before = rig.keys("wal/")
    first.collector.collect()
    manifest = rig.manifest()
    after = rig.keys("wal/")
    assert manifest.first > 10
    assert len(after) < len(before)
    assert all(f"{manifest.first:020d}" <= key.removeprefix("wal/") for key in after)
    assert rig.keys("snapshot/") == [manifest.snapshot.key]
    rig.lose_disk("a")
    second = rig.host("b")
    assert payloads(second) == numbered(21)
    append(second, numbered(3, 21), entries=5)
    assert payloads(rig.host("c")) == numbered(24)


@pytest.mark.thorough
def test_segments_that_are_not_uploaded_stay_in_the_log(rig: BucketRig) -> None:
    first = rig.host("a")
    append(first, numbered(12), entries=5)
    cursor(first)
    first.store.cursors.acknowledge("log", "c", given((0, 0), (0, 3)))
    first.collector.collect()
    append(first, numbered(3, 12), entries=5)
    first.collector.collect()
    second = rig.host("b")
    assert payloads(second) == numbered(15)
    assert second.store.cursors.describe(DescribeCursor("log", "c")).next_position.entry_id == 1


@pytest.mark.thorough
def test_slow_segments_are_carried_forward(rig: BucketRig) -> None:
    limits = dataclasses.replace(SMALL, objects_max=5)
    first = rig.host("a", limits=limits)
    append(first, numbered(3), "slow")
    cursor(first, ledger="slow")
    slow = first.store.ledger("slow").snapshot.segments[0].ledger_id
    first.store.cursors.acknowledge("slow", "c", given((slow, 1)))
    for turn in range(3):
        append(first, numbered(8, 8 * turn), "busy", entries=8)
        offload(first, "busy")
        first.collector.collect()
    assert rig.manifest().first > 15
    assert len(rig.keys("wal/")) < 25
    second = rig.host("b")
    assert payloads(second, "slow") == numbered(3)
    assert payloads(second, "busy") == numbered(24)
    assert append(second, [b"3"], "slow")[0] == Position(slow, 3), "carried, and not sealed"
    second.store.cursors.acknowledge("slow", "c", given((slow, 0)))
    assert second.store.cursors.describe(DescribeCursor("slow", "c")).next_position.entry_id == 2


@pytest.mark.thorough
def test_a_fenced_collector_deletes_nothing(rig: BucketRig) -> None:
    first = rig.host("a")
    append(first, numbered(11), entries=5)
    offload(first)
    rig.host("b")
    before = rig.keys()
    with pytest.raises(Fenced):
        first.collector.collect()
    assert set(before) <= set(rig.keys())


def test_an_idle_store_has_nothing_due(rig: BucketRig) -> None:
    first = rig.host("a", limits=dataclasses.replace(SMALL, objects_max=3))
    append(first, numbered(3))
    assert first.collector.is_due
    first.collector.collect()
    assert not first.collector.is_due


def test_a_sweep_deletes_what_crashes_left(rig: BucketRig) -> None:
    first = rig.host("a")
    append(first, numbered(3))
    epoch = rig.manifest().epoch
    lower, own = snapshot_key(1, epoch - 1, "n"), snapshot_key(1, epoch, "n")
    first.begin(BrokerAddress("grpc+tls://here:1", "machine/1/2"), BrokerSecret("token", "authority"))
    secret = rig.manifest().broker.secret
    lower_secret, own_secret = secret_key(epoch - 1, "n"), secret_key(epoch, "n")
    for key in (lower, own, lower_secret, own_secret):
        rig.bucket.put(key, b"left by a crash")
    named = rig.manifest().snapshot.key
    rig.bucket.put("probe-1/create-0001", b"left by a probe")
    first.collector.sweep()
    assert rig.keys("probe-") == []
    assert rig.keys("snapshot/") == sorted([named, own])
    assert rig.keys("secret/") == sorted([secret, own_secret])


def test_a_file_that_is_recorded_during_a_round_is_kept() -> None:
    files = LiveFiles()
    files.record("ledgers/1.ledger", 5, 100)
    files.record("ledgers/2.ledger", 6, 100)

    def needed() -> list[str]:
        files.record("ledgers/3.ledger", 9, 10)
        return ["ledgers/1.ledger"]

    assert files.keep(needed) == {"ledgers/1.ledger": LiveFile(5, 100), "ledgers/3.ledger": LiveFile(9, 10)}


def test_only_old_and_small_files_are_carried() -> None:
    files = {"old": LiveFile(3, 10), "new": LiveFile(9, 10), "large": LiveFile(3, 1000)}
    assert to_carry(files, 8, 100) == ["old"]
