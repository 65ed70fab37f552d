"""Goal: a store in a bucket continues in a directory as it was, and only there. Method: a store with everything."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ledger.ledger.broker.bucket_home import FoundStore, open_in_bucket
from pyspark_ledger.ledger.bucket_store.home import BucketLimits
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import LedgerError, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.ownership import process_identity
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.tiering.loader import OffloaderChoice
from pyspark_ledger.ledger.wal.bucket import MANIFEST
from pyspark_ledger.ledger.wal.manifest import BrokerAddress
from pyspark_ledger.offload.move.into_directory import IntoDirectory
from pyspark_ledger.offload.move.summary import MoveSummary
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from pyspark_ledger.offload.storage.factory import open_object_store
from pyspark_ledger.offload.storage.s3_options import S3Options
from streaming_examples.s3_server import S3Server
from tests.offload.move.test_into_bucket import Wrap, as_is, move, opened
from tests.rigs.bucket_store import REQUESTS, BucketRig, append, cursor, log
from tests.rigs.cursors import given
from tests.rigs.faulty_bucket import FaultyBucket, refused
from tests.rigs.moving_store import filled, killed, sends_again, staged, state


def back(
    address: str, target: Path, options: S3Options | None = None, wrap: Wrap = as_is, *, keep: bool = False
) -> MoveSummary:
    """Move as the command does."""
    options = options or S3Options()
    bucket = wrap(open_object_store(address, options))
    segments = wrap(open_object_store(f"{address}/segments", options))
    return IntoDirectory(bucket, segments, target, BucketLimits(REQUESTS), 200, keep=keep).run()


def used(directory: Path, address: str, options: S3Options | None = None) -> tuple[BucketRig, dict[str, Any]]:
    """A store that was moved into a bucket and used there, and its state."""
    rig = filled(directory)
    changed = {"managedLedgerCacheSizeMB": 77, "managedLedgerOffloadBucket": "file:///of/the/directory"}
    (rig.path / "settings.json").write_bytes(msgspec.json.encode(changed))
    move(killed(rig), address, options)
    hosts = opened(directory, address, options)
    host = hosts.host("a")
    positions = append(host, [b"in the bucket", b"and open"])
    host.store.cursors.acknowledge("log", "c", given((positions[1].ledger_id, positions[1].entry_id)))
    append(host, [b"sealed in the log", b"open in the log"], "new", entries=1)
    cursor(host, "d", ledger="new")
    log(host, "empty")
    found = state(host.store)
    hosts.close()
    return hosts, found


def opened_at(path: Path) -> Store:
    return Store.open(path, settings=Settings(), clock=system_clock_ms)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return (tmp_path / "bucket").as_uri()


@pytest.mark.thorough
def test_a_store_comes_back_as_it_is_and_needs_no_bucket(tmp_path: Path, s3_server: S3Server, bucket: str) -> None:
    _, before = used(tmp_path, bucket, s3_server.options)
    target = tmp_path / "target"
    moved = back(bucket, target, s3_server.options)
    place = open_object_store(bucket, s3_server.options)
    place.delete([found.key for found in place.objects()])
    place.close()
    assert moved.ledgers == 6
    assert msgspec.json.decode((target / "settings.json").read_bytes()) == {"managedLedgerCacheSizeMB": 77}
    store = opened_at(target)
    assert state(store) == before
    assert staged(target) == staged(tmp_path / "store") != []
    assert not sends_again(store)
    end = store.ledger("log").snapshot.end
    assert append(_Opened(store), [b"later"])[0] > end
    store.close()
    assert not [found.name for found in target.iterdir() if "moving" in found.name]
    assert all(record.offloadContext.complete is False for record in _segments(target))


class _Opened:
    """A store, for helpers that take a host of a store in a bucket."""

    def __init__(self, store: Store) -> None:
        self.store = store


def _segments(target: Path) -> list[Any]:
    store = opened_at(target)
    found = [row.listed() for name in store.metadata.names() for row in store.metadata.segments.of(name)]
    store.close()
    return found


def test_a_bucket_that_was_left_is_not_served(tmp_path: Path, place: str) -> None:
    used(tmp_path, place)
    target = tmp_path / "target"
    back(place, target)
    bucket = open_object_store(place)
    with pytest.raises(Refused, match=f"was moved to {target} of host") as error:
        open_in_bucket(FoundStore.find(bucket, Settings(), create=True), tmp_path / "b", Settings(), None)
    assert "ledger serve --take-over broker" in error.value.hint
    with pytest.raises(Refused, match=f"was moved to {target} of host"):
        back(place, tmp_path / "other")
    with pytest.raises(Refused, match="is not empty"):
        back(place, target)
    bucket.close()


def test_uploaded_segments_stay_in_the_bucket_on_request(tmp_path: Path, place: str) -> None:
    _, before = used(tmp_path, place)
    target = tmp_path / "target"
    assert back(place, target, keep=True).segments == 0
    complete = [record for record in _segments(target) if record.offloadContext.complete]
    assert len(complete) > 3
    offloader = OffloaderChoice(lambda _: ObjectStoreOffloader("", S3Options()), Settings())
    store = Store.open(target, settings=Settings(), clock=system_clock_ms, offloader=offloader)
    assert state(store) == before
    store.close()


@pytest.mark.thorough
def test_wrong_targets_change_nothing(tmp_path: Path, place: str) -> None:
    hosts, before = used(tmp_path, place)
    with pytest.raises(NotFound, match="there is no ledger store"):
        back(f"{place}-none", tmp_path / "target")
    with pytest.raises(Refused, match="is not empty, it has"):
        back(place, tmp_path / "store")
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match="cannot be used"):
        back(place, tmp_path / "file")
    manifest = hosts.manifest()
    hosts.bucket = open_object_store(place)
    faults = FaultyBucket()
    faults.on("put", MANIFEST, refused, 1_000)
    with pytest.raises(LedgerError, match="403"):
        back(place, tmp_path / "target", wrap=faults.before)
    assert hosts.manifest() == manifest, "a bucket that cannot be written stays as it is"
    used(tmp_path / "second", f"{place}-2")
    with pytest.raises(Refused, match=r"is being moved to .*target, and not the store of"):
        back(f"{place}-2", tmp_path / "target")
    back(place, tmp_path / "target")
    store = opened_at(tmp_path / "target")
    assert state(store) == before
    store.close()


def test_a_crash_before_the_first_note_leaves_a_directory_that_can_be_used(tmp_path: Path, place: str) -> None:
    used(tmp_path, place)
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "moving.json.0123456789abcdef").write_text("{")
    back(place, tmp_path / "target")
    opened_at(tmp_path / "target").close()


def test_a_served_store_is_refused_by_the_name_of_its_broker(tmp_path: Path, place: str) -> None:
    used(tmp_path, place)
    hosts = opened(tmp_path, place)
    hosts.host("b").begin(BrokerAddress("grpc://127.0.0.1:9", process_identity()))
    with pytest.raises(Refused, match=f"is served at grpc://127.0.0.1:9 by {process_identity()}"):
        back(place, tmp_path / "target")
    hosts.close()
    back(place, tmp_path / "target")


def test_a_take_over_during_the_move_keeps_the_store_in_the_bucket(tmp_path: Path, place: str) -> None:
    used(tmp_path, place)
    hosts, faults = opened(tmp_path, place), FaultyBucket()

    def taken_over(call: Any) -> Any:
        append(hosts.host("c"), [b"taken over"])
        return call()

    faults.on("get_range", "", taken_over)
    target = tmp_path / "target"
    with pytest.raises((Refused, Unavailable), match=r"taken over|takes"):
        back(place, target, wrap=faults.before)
    with pytest.raises(NotFound):
        opened_at(target)
    before = state(hosts.opened[-1].store)
    assert before["public/default/persistent/log"][2][-1][1] == b"taken over"
    hosts.close()
    back(place, target)
    store = opened_at(target)
    assert state(store) == before
    store.close()


def test_a_damaged_download_is_fetched_again(tmp_path: Path, place: str) -> None:
    _, before = used(tmp_path, place)
    objects = [path for path in (tmp_path / "bucket" / "segments").iterdir() if path.name.endswith("-ledger-3")]
    (path,) = objects
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    target = tmp_path / "target"
    with pytest.raises(LedgerError, match=path.name):
        back(place, target)
    bucket = open_object_store(place)
    with pytest.raises(Refused, match="is being moved to"):
        open_in_bucket(FoundStore.find(bucket, Settings(), create=True), tmp_path / "b", Settings(), None)
    bucket.close()
    path.write_bytes(sound)
    kept = {found.name: found.stat().st_mtime_ns for found in (target / "ledgers").glob("*.ledger")}
    back(place, target)
    assert kept.items() <= {found.name: found.stat().st_mtime_ns for found in (target / "ledgers").iterdir()}.items()
    store = opened_at(target)
    assert state(store) == before
    store.close()
    shutil.rmtree(target)
