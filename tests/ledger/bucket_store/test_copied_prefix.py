"""Goal: a copied prefix of a bucket is told apart from its original, and each has its own objects afterwards.

Method: brokers of two prefixes in a directory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ledger.ledger.broker import bucket_home
from pyspark_ledger.ledger.broker.bucket_home import FoundStore, open_in_bucket
from pyspark_ledger.ledger.bucket_store.builder import _driver_at
from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.ledger.metadata.offload_records import Driver
from pyspark_ledger.ledger.metadata.owner import SKIPPED_IDS
from pyspark_ledger.ledger.metadata.segment_records import attempts_of
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.ownership import OwnerChange, process_identity
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.transport.bucket_discovery import named_broker
from pyspark_ledger.ledger.wal.bucket import MANIFEST
from pyspark_ledger.ledger.wal.manifest import BrokerAddress, decode_manifest, encode_manifest
from pyspark_ledger.ledger.wal.requests import read_manifest
from pyspark_ledger.offload.home_verification import verify_home
from tests.rigs import bucket_store as rig_of
from tests.rigs.bucket_store import REQUESTS, BucketRig, append, numbered, offload, payloads

NAME = "public/default/persistent/log"


@pytest.fixture
def original(tmp_path: Path) -> Iterator[BucketRig]:
    """A served store with an uploaded segment and entries in its log."""
    rig = BucketRig(tmp_path, (tmp_path / "original").as_uri(), S3Options())
    opened = rig.host()
    append(opened, numbered(5), entries=3)
    offload(opened)
    opened.begin(BrokerAddress("grpc+unix:///nowhere", process_identity()))
    yield rig
    rig.close()


def copied(rig: BucketRig, tmp_path: Path, name: str = "copy") -> BucketRig:
    shutil.copytree(tmp_path / "original", tmp_path / name)
    return BucketRig(tmp_path / f"hosts of {name}", (tmp_path / name).as_uri(), S3Options())


def taken(rig: BucketRig, change: OwnerChange | None, monkeypatch: pytest.MonkeyPatch, host: str = "a") -> BucketStore:
    """Take the store over as the broker does."""
    monkeypatch.setattr(bucket_home.disk, "skip_syncs", lambda: None)
    found = FoundStore.find(open_object_store(rig.address, S3Options()), Settings(), change, create=False)
    offloader = rig_of.ObjectStoreOffloader(f"{rig.address}/segments", S3Options())
    rig.offloaders.append(offloader)
    options: dict[str, Any] = {"offloader": rig_of._Target(offloader, Settings())}
    opened = open_in_bucket(found, rig.directory / host, Settings(), change, **options)
    rig.opened.append(opened)
    return opened


@pytest.mark.parametrize("change", list(OwnerChange))
def test_a_copied_prefix_needs_an_answer(
    original: BucketRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: OwnerChange
) -> None:
    copy = copied(original, tmp_path)
    before = sorted(copy.keys())
    question = f"the store {copy.address} has the id .* and the objects of {original.address}: it was moved"
    with pytest.raises(Refused, match=question) as refused:
        taken(copy, None, monkeypatch)
    for word in OwnerChange:
        assert f"ledger serve --store {copy.address} --take-over {word}`" in str(refused.value)
    assert f"`ledger offload LEDGER --sweep --store {copy.address}`" in refused.value.hint
    with pytest.raises(Refused, match=question):  # a client that looks for the broker, and a reader without a broker
        named_broker(copy.bucket, REQUESTS)
    with pytest.raises(Refused, match=question):
        verify_home(copy.bucket, copy.bucket, None, lambda *_: None)
    assert sorted(copy.keys()) == before

    with closing(taken(copy, change, monkeypatch)) as opened:
        manifest, store_id = copy.manifest(), original.manifest().store_id
        if change is OwnerChange.COPIED:
            assert (manifest.former_ids, manifest.store_id != store_id) == ([store_id], True)
        else:
            assert (manifest.former_ids, manifest.store_id) == ([], store_id)
        record = opened.store.metadata.store_record()
        assert (record.store_id, list(record.former)) == (manifest.store_id, manifest.former_ids)
        assert payloads(opened) == numbered(5)
        positions = append(opened, numbered(4, 5), entries=3)
        offload(opened)
        # The original may have used the next ids for other rows, which a checkpoint has read.
        assert (positions[-1].ledger_id > SKIPPED_IDS) is (change is not OwnerChange.BROKER)
    assert payloads(original.opened[0]) == numbered(5)
    again = taken(copy, None, monkeypatch)
    assert copy.manifest().store_id == manifest.store_id
    assert payloads(again) == numbered(9)
    with closing(open_object_store(f"{copy.address}/segments", S3Options())) as segments:
        assert sum(verify_home(copy.bucket, segments, None, lambda *_: None).entries.values()) == 9


def test_a_deletion_in_a_copied_prefix_stays_there(
    original: BucketRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copied(original, tmp_path)
    opened, before = taken(copy, OwnerChange.COPIED, monkeypatch), set(original.keys("segments/"))
    attempts = [attempt for _, attempt in attempts_of(opened.store.metadata.segments.of(NAME))]
    assert {attempt.driver.properties["address"] for attempt in attempts} == {f"{copy.address}/segments"}
    opened.store.delete_ledger("log")
    opened.store.offloads.cleaner.sweep()
    assert (before <= set(original.keys("segments/")), copy.keys("segments/")) == (True, [])
    assert payloads(original.opened[0]) == numbered(5)


def test_objects_that_were_uploaded_after_a_backup_are_swept(
    original: BucketRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copy = copied(original, tmp_path)
    backed_up = set(copy.keys("segments/"))
    append(original.opened[0], numbered(4, 5), entries=3)
    offload(original.opened[0])
    shutil.copytree(tmp_path / "original/segments", tmp_path / "copy/segments", dirs_exist_ok=True)
    assert set(copy.keys("segments/")) > backed_up
    opened = taken(copy, OwnerChange.MOVED, monkeypatch)
    assert f"`ledger offload LEDGER --sweep --store {copy.address}`" in caplog.text
    opened.store.offloads.offload(OffloadPrefix("log", sweep=True))
    opened.store.offloads.cleaner.sweep()
    assert set(copy.keys("segments/")) == backed_up
    assert payloads(opened) == numbered(5)


def test_an_answer_that_is_given_again_gives_no_other_id(
    original: BucketRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, ids = copied(original, tmp_path), []
    for _ in range(2):
        taken(copy, OwnerChange.COPIED, monkeypatch).close()
        ids.append(copy.manifest().store_id)
    assert ids[0] == ids[1] != original.manifest().store_id


@pytest.mark.parametrize("step", ["finish", "replicate", "open"])
def test_a_crash_in_the_change_leaves_one_new_id(
    original: BucketRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The manifest with the new id is the first step. A crash before it changes nothing."""
    copy = copied(original, tmp_path)
    place = {
        "finish": "bucket_store.builder.Builder.finish",
        "replicate": "bucket_store.durability.BucketDurability.replicate",
        "open": "store.store.Store.open",
    }[step]

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"pyspark_ledger.ledger.{place}", killed)
        with pytest.raises(KeyboardInterrupt):
            taken(copy, OwnerChange.COPIED, patched)
    store_id = copy.manifest().store_id
    assert store_id != original.manifest().store_id
    for change in (OwnerChange.COPIED, None):
        with closing(taken(copy, change, monkeypatch, f"after {change}")) as opened:
            assert (opened.store.store_id, payloads(opened)) == (store_id, numbered(5))


def test_a_manifest_of_an_earlier_version_gets_its_home(
    original: BucketRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copied(original, tmp_path)
    earlier = msgspec.structs.replace(copy.manifest_of_any_home(), format=1, home=msgspec.UNSET, broker=None)
    copy.bucket.put(MANIFEST, encode_manifest(earlier))
    assert read_manifest(copy.bucket, REQUESTS).manifest == msgspec.structs.replace(earlier, format=2)
    taken(copy, None, monkeypatch).close()
    data = copy.bucket.get(MANIFEST, 1 << 16).data
    assert decode_manifest(data, "here").home == copy.address
    monkeypatch.setattr("pyspark_ledger.ledger.wal.manifest.FORMAT", 1)
    with pytest.raises(Unsupported, match="has format 2"):
        decode_manifest(data, "here")


def test_the_objects_of_a_copied_prefix_are_at_the_copy() -> None:
    given = {"bucket": "lake", "prefix": "original/segments", "region": "r", "stampTime": "7"}
    there = _driver_at(Driver("aws-s3", given), "s3://backup/copy").properties
    assert there == {"bucket": "backup", "prefix": "copy/segments", "region": "r", "stampTime": "7"}
    assert _driver_at(Driver("aws-s3", given), "s3://lake/original").properties == given
