"""Goal: a store in a directory continues in a bucket as it was, and only there. Method: a store with everything."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from pyspark_ledger.ledger.broker.bucket_home import FoundStore, open_in_bucket
from pyspark_ledger.ledger.bucket_store.home import BucketLimits
from pyspark_ledger.ledger.client.connect import connect_store
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import LedgerError, NotFound, Refused
from pyspark_ledger.ledger.metadata.offload_records import Driver, OffloadAttempt
from pyspark_ledger.ledger.metadata.read_only import MetadataView
from pyspark_ledger.ledger.metadata.records import TABLES
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.transport.moved_store import METADATA, MOVED_METADATA, moved_store
from pyspark_ledger.ledger.wal.bucket import MANIFEST
from pyspark_ledger.ledger.wal.manifest import Move
from pyspark_ledger.ledger.wal.requests import read_manifest, replace_manifest
from pyspark_ledger.offload.move import segments
from pyspark_ledger.offload.move.into_bucket import IntoBucket, MoveSummary
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from streaming_examples.s3_server import S3Server
from tests.rigs.bucket_store import REQUESTS, BucketRig, append
from tests.rigs.faulty_bucket import FaultyBucket, refused
from tests.rigs.moving_store import filled, killed, sends_again, staged, state
from tests.rigs.offload import OffloadRig

Wrap = Callable[[Any], Any]


def as_is(place: Any) -> Any:
    return place


class Offloader(ObjectStoreOffloader):
    """Offloader whose requests pass `wrap`."""

    wrap: Wrap = staticmethod(as_is)

    def _store_at(self, address: str, options: S3Options) -> Any:
        return self.wrap(super()._store_at(address, options))


def move(source: Path, address: str, options: S3Options | None = None, wrap: Wrap = as_is, **how: Any) -> MoveSummary:
    """Move as the command does, without the probe of the bucket."""
    options = options or S3Options()
    offloader = Offloader(f"{address}/segments", options)
    offloader.wrap = wrap
    bucket = wrap(open_object_store(address, options))
    try:
        return IntoBucket(source, bucket, offloader, BucketLimits(REQUESTS), probe=lambda _: None).run(**how)
    finally:
        offloader.close()


@pytest.fixture
def place(tmp_path: Path) -> str:
    return (tmp_path / "bucket").as_uri()


@pytest.fixture
def source(tmp_path: Path) -> OffloadRig:
    return filled(tmp_path)


def opened(tmp_path: Path, address: str, options: S3Options | None = None) -> BucketRig:
    return BucketRig(tmp_path / "hosts", address, options or S3Options())


@pytest.mark.thorough
def test_a_moved_store_is_what_it_was_and_continues(
    tmp_path: Path, source: OffloadRig, s3_server: S3Server, bucket: str
) -> None:
    before = state(source.store)
    moved = move(killed(source), bucket, s3_server.options)
    assert (moved.ledgers, moved.entries) == (4, 4 + 7 + 3 + 8 + 1)
    rig = opened(tmp_path, bucket, s3_server.options)
    host = rig.host("a")
    assert state(host.store) == before
    assert staged(tmp_path / "hosts" / "a") == staged(source.path) != []
    assert not sends_again(host.store)
    last = host.store.ledger("log").snapshot.end
    assert append(host, [b"later"])[0] > last
    shutil.rmtree(source.path)
    shutil.rmtree(tmp_path / "elsewhere")
    rig.lose_disk("a")
    later = state(rig.host("b").store)
    assert [payload for _, payload in later["public/default/persistent/log"][2]][-1] == b"later"
    assert later["public/default/persistent/old"] == before["public/default/persistent/old"]
    rig.close()


def test_a_moved_directory_cannot_be_opened(source: OffloadRig, place: str) -> None:
    path = killed(source)
    move(path, place)
    says = f"the store of {path} was moved to {place}"
    calls: list[Callable[[], object]] = [
        lambda: Store.open(path, settings=Settings(), clock=lambda: 1, create=True),
        lambda: connect_store(path, create=True),
        lambda: connect_store(path, start=False),
        lambda: MetadataView(path / METADATA, TABLES),
        lambda: move(path, f"{place}-other"),
    ]
    for call in calls:
        with pytest.raises(Refused, match=says) as error:
            call()
        assert f"rename {path / MOVED_METADATA} to {METADATA}" in error.value.hint
    assert move(path, place).entries == 0, "the same move once more has nothing to do"
    (path / MOVED_METADATA).rename(path / METADATA)
    Store.open(path, settings=Settings(), clock=lambda: 1).close()


@pytest.mark.thorough
def test_a_marked_directory_ends_its_move_only_with_its_own_manifest(source: OffloadRig, place: str) -> None:
    path = killed(source)
    faults = FaultyBucket()
    puts: list[str] = []

    def third(call: Callable[[], object]) -> object:
        puts.append("manifest")
        return call() if len(puts) < 3 else refused(call)

    faults.on("put", MANIFEST, third, 100)
    with pytest.raises(LedgerError):
        move(path, place, wrap=faults.before)
    assert len(puts) > 2
    assert moved_store(path) is not None
    bucket = open_object_store(place)
    kept = bucket.get(MANIFEST, 1 << 20).data
    with pytest.raises(Refused, match="is not complete: its move from"):
        open_in_bucket(FoundStore.find(bucket, Settings(), create=True), path.parent / "a", Settings(), None)
    other = filled(path.parent / "other")
    bucket.delete([MANIFEST, *[found.key for found in bucket.objects()]])
    move(killed(other), place)
    with pytest.raises(Refused, match="Another store is at this address"):
        move(path, place)
    assert kept
    bucket.close()


@pytest.mark.thorough
def test_wrong_targets_change_nothing(tmp_path: Path, source: OffloadRig, place: str) -> None:
    path = killed(source)
    bucket = open_object_store(place)
    bucket.put("a file", b"of somebody")
    with pytest.raises(Refused, match="has objects and no manifest, the first is a file"):
        move(path, place)
    bucket.delete(["a file"])
    rig = opened(tmp_path, place)
    append(rig.host("a"), [b"another store"])
    with pytest.raises(Refused, match="already, the source is store"):
        move(path, place)
    rig.close()
    with pytest.raises(NotFound, match="there is no ledger store"):
        move(tmp_path / "nothing", f"{place}-2")
    faults = FaultyBucket()
    faults.on("put", "", refused, 1_000)
    with pytest.raises(LedgerError, match="403"):
        move(path, f"{place}-3", wrap=faults.before)
    Store.open(path, settings=Settings(), clock=lambda: 1).close()
    bucket.close()


def test_a_store_that_was_copied_back_is_not_moved_over_itself(source: OffloadRig, place: str) -> None:
    path = killed(source)
    move(path, place)
    (path / MOVED_METADATA).rename(path / METADATA)
    with pytest.raises(Refused, match="has the same store already"):
        move(path, place)


@pytest.mark.parametrize("state_of_move", ["leaving", "left"])
def test_a_move_out_of_a_bucket_by_an_earlier_version_is_refused_and_ended(
    tmp_path: Path, source: OffloadRig, place: str, state_of_move: Literal["leaving", "left"]
) -> None:
    before = state(source.store)
    move(killed(source), place)
    bucket = open_object_store(place)
    found = read_manifest(bucket, REQUESTS)
    target = tmp_path / "target"
    after = msgspec.structs.replace(
        found.manifest, revision=found.manifest.revision + 1, move=Move(state_of_move, str(target), "host")
    )
    replace_manifest(bucket, found, after, REQUESTS)
    with pytest.raises(Refused, match=rf"{target} of host.*ledger serve --take-over broker --store {place}"):
        open_in_bucket(FoundStore.find(bucket, Settings(), create=True), tmp_path / "b", Settings(), None)
    bucket.close()
    target.mkdir()
    (target / "moving.json").write_text("{}")
    for create in (True, False):
        with pytest.raises(Refused, match=rf"did not complete the move .* to {target}.*--take-over broker"):
            Store.open(target, settings=Settings(), clock=system_clock_ms, create=create)
    hosts = opened(tmp_path, place)
    assert state(hosts.host("a").store) == before
    hosts.close()


def test_a_direct_segment_without_index_objects_is_not_moved() -> None:
    attempt = OffloadAttempt.direct(uuid.uuid4(), Driver("aws-s3", {"bucket": "b"}), 7)
    with pytest.raises(Refused, match="segment 1 of 'log' has no index objects"):
        segments._require_indexes("public/default/persistent/log", 1, attempt)
    segments._require_indexes("public/default/persistent/log", 1, attempt.with_indexes())


def test_a_store_with_a_broker_is_refused(source: OffloadRig, place: str) -> None:
    with pytest.raises(Refused, match="is in use by the broker"):
        move(source.path, place)


def test_ledgers_without_syncs_are_converted_only_on_request(tmp_path: Path, source: OffloadRig, place: str) -> None:
    fast = source.store.create_ledger(CreateLedger("fast", durability="os"))
    assert fast.properties["ledger.durability"] == "os"
    path = killed(source)
    with pytest.raises(Refused, match="ledgers with durability 'os' cannot be in a bucket: fast") as error:
        move(path, place)
    assert "--durability fsync" in error.value.hint
    assert not (tmp_path / "bucket").exists()
    move(path, place, convert=True)
    rig = opened(tmp_path, place)
    host = rig.host("a")
    assert "ledger.durability" not in host.store.ledger("fast").properties
    append(host, [b"x"], "fast")
    rig.close()


@pytest.mark.thorough
def test_an_interrupted_move_finds_its_objects(source: OffloadRig, place: str) -> None:
    path = killed(source)
    faults = FaultyBucket()
    faults.on("put", "snapshot/", refused, 1_000)
    with pytest.raises(LedgerError):
        move(path, place, wrap=faults.before)
    directory = path.parent / "bucket" / "segments"
    before = {
        found.name: found.stat().st_mtime_ns for found in directory.iterdir() if found.name.endswith(("-0", "-2"))
    }
    assert before
    store = Store.open(path, settings=Settings(), clock=lambda: 1)
    store.delete_ledger("once")
    store.close()
    move(path, place)
    after = {found.name: found.stat().st_mtime_ns for found in directory.iterdir() if found.name in before}
    assert after == before, "data are not uploaded twice"
