"""Goal: verification finds damage to any object, and disturbs no broker. Method: each object flipped or deleted."""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.bucket_store.verification import VerifiedStore, verify_store
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, LedgerError, NotFound
from pyspark_ledger.ledger.objects.directory import DirectoryStore
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.wal.bucket import number_of
from pyspark_ledger.ledger.wal.reader import WalReader
from pyspark_ledger.offload.home_verification import VerifiedHome, verify_home
from tests.rigs.bucket_store import REQUESTS, BucketRig, append, cursor, log, numbered, offload, payloads
from tests.rigs.cursors import given

FLIPS = 6
"""Bits that are flipped in each object."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[BucketRig]:
    rig = BucketRig(tmp_path, (tmp_path / "bucket").as_uri(), S3Options())
    yield rig
    rig.close()


@pytest.fixture
def full(rig: BucketRig) -> BucketRig:
    """A store with uploaded, sealed and open segments, a cursor's own ledger, a snapshot and a log behind it."""
    first = rig.host("a")
    segment = append(first, numbered(9), entries=4)[0].ledger_id
    cursor(first)
    first.store.cursors.acknowledge("log", "c", given((segment, 1)))
    offload(first)
    append(first, numbered(3), "other", entries=2)
    first.collector.collect()
    append(first, numbered(3, 9), entries=4)
    return rig


def verify(rig: BucketRig) -> VerifiedStore:
    directory = rig.directory / f"scratch-{uuid.uuid4()}"
    try:
        return verify_store(rig.bucket, directory, REQUESTS)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run(rig: BucketRig, name: str | None = None) -> VerifiedHome:
    """Verify log and segments, as the command does."""
    segments = DirectoryStore(rig.directory / "bucket" / "segments")
    return verify_home(DirectoryStore(rig.directory / "bucket"), segments, name, lambda *_: None)


def test_a_whole_store_is_verified_and_no_epoch_is_raised(full: BucketRig) -> None:
    before = full.manifest()
    verified = verify(full)
    assert verified.objects == len(full.keys("wal/"))
    assert len(verified.uploaded) == 2
    assert run(full).entries == {"public/default/persistent/log": 12, "public/default/persistent/other": 3}
    assert run(full, "other").entries == {"public/default/persistent/other": 3}
    with pytest.raises(NotFound, match="there is no ledger 'nothing'"):
        run(full, "nothing")
    assert full.manifest() == before
    append(full.opened[0], [b"12"])
    assert not full.lost, "the broker goes on"


@pytest.mark.thorough
def test_a_flipped_bit_in_any_object_is_found(full: BucketRig) -> None:
    dice = random.Random(7)
    kinds = set()
    keys = full.keys()
    for key in keys:
        data = full.bucket.get(key, 1 << 24).data
        places = {0, 8 * len(data) - 1, *(dice.randrange(8 * len(data)) for _ in range(FLIPS))}
        for place in sorted(places):
            damaged = bytearray(data)
            damaged[place // 8] ^= 1 << place % 8
            full.bucket.put(key, bytes(damaged))
            with pytest.raises(LedgerError) as found:
                run(full)
            assert key.rpartition("/")[2] in str(found.value), f"bit {place} of {key}: {found.value}"
            kinds.add(key.partition("/")[0])
        full.bucket.put(key, data)
    run(full)
    assert kinds == {"manifest", "segments", "snapshot", "wal"}


def kind_of(key: str) -> str:
    return key.partition("/")[0] + ("-" + key.rpartition("-")[2] if key.endswith(("-index", "-entries")) else "")


KINDS = {"manifest", "snapshot", "wal", "segments", "segments-index", "segments-entries"}
"""Kinds of objects of a store. `tests/offload/test_direct_store.py` has the objects that tasks put."""


def test_a_fault_in_each_kind_of_object_is_named(full: BucketRig) -> None:
    kinds = {kind_of(key): key for key in full.keys()}  # noqa: SIM118 — a method of the rig
    assert set(kinds) == KINDS
    for key in kinds.values():
        data = full.bucket.get(key, 1 << 24).data
        damaged = bytearray(data)
        damaged[len(data) // 2] ^= 1
        full.bucket.put(key, bytes(damaged))
        with pytest.raises((Corrupt, DataLoss), match=key.rpartition("/")[2]):
            run(full)
        full.bucket.put(key, data)
    assert run(full).without_index == 0


@pytest.mark.thorough
def test_a_deleted_object_is_found(full: BucketRig) -> None:
    """The newest object of the log of a running broker cannot be told from the end. All others can."""
    newest = full.keys("wal/")[-1]
    for key in full.keys():  # noqa: SIM118 — a method of the rig
        data = full.bucket.get(key, 1 << 24).data
        full.bucket.delete([key])
        if key.endswith("-entries"):  # a segment may be uploaded without this index, which no row needs
            assert run(full).without_index == 1
        elif key == newest:
            assert run(full).entries["public/default/persistent/log"] == 11
        else:
            with pytest.raises((Corrupt, DataLoss, NotFound)):
                run(full)
        full.bucket.put(key, data)


@pytest.mark.thorough
def test_after_an_orderly_end_the_loss_of_any_object_is_found(full: BucketRig) -> None:
    full.opened.pop().close()
    assert full.manifest().acknowledged == number_of(full.keys("wal/")[-1]) + 1
    for key in full.keys("wal/"):
        data = full.bucket.get(key, 1 << 24).data
        full.bucket.delete([key])
        with pytest.raises(Corrupt, match=f"{key} of .* is missing, and (wal/.*|manifest) states"):
            run(full)
        with pytest.raises(Corrupt, match=f"{key} of .* is missing"):
            full.host("b")
        full.bucket.put(key, data)
    assert payloads(full.host("b")) == numbered(12)


def test_a_collection_states_the_end_of_the_log(full: BucketRig) -> None:
    """The manifest that names a new snapshot also states up to which number the log was acknowledged."""
    broker = full.opened[0]
    broker.collector.collect()
    assert full.manifest().acknowledged == broker.wal.end
    newest = full.keys("wal/")[-1:]
    full.bucket.delete(newest)
    if newest:
        with pytest.raises(Corrupt, match=f"{newest[0]} of .* is missing, and manifest states"):
            run(full)


def test_a_collection_during_the_pass_is_no_damage(full: BucketRig, monkeypatch: pytest.MonkeyPatch) -> None:
    broker, real, met = full.opened[0], WalReader.fetch, list[int]()

    def fetch(reader: WalReader, number: int) -> Any:
        if number == full.manifest().first and not met:
            met.append(number)
            for name in ("log", "other"):
                broker.store.ledger(name).roll_over()
                offload(broker, name)
            log(broker, "new")
            broker.collector.collect()
        return real(reader, number)

    monkeypatch.setattr(WalReader, "fetch", fetch)
    verified = verify(full)
    assert met
    assert met[0] < full.manifest().first
    assert len(verified.uploaded) == 5


def test_there_is_nothing_to_verify_at_another_address(rig: BucketRig) -> None:
    with pytest.raises(NotFound, match="there is no ledger store at"):
        verify(rig)
