"""Goal: a copy of a store reads the objects that its original wrote, and never deletes them.

Method: two stores with one bucket.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from pyspark_ledger.ledger.bucket_store.home import BucketLimits
from pyspark_ledger.ledger.errors import DataLoss, Refused
from pyspark_ledger.ledger.metadata.owner import SKIPPED_IDS
from pyspark_ledger.ledger.metadata.segment_records import attempts_of
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.ownership import OwnerChange
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix
from pyspark_ledger.offload.bucket.catalogue import TopicSegments
from pyspark_ledger.offload.bucket.histories import require_one_history
from pyspark_ledger.offload.bucket.listing import read_catalogue
from pyspark_ledger.offload.move.into_bucket import IntoBucket
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from tests.rigs.bucket_store import REQUESTS, BucketRig, payloads
from tests.rigs.log import contents
from tests.rigs.offload import HOUR, OffloadRig

Pair = tuple[OffloadRig, OffloadRig]


class CopiedRig(OffloadRig):
    """Copy of a store, which a person took over."""

    change = OwnerChange.COPIED

    def _open(self, *, take_over: OwnerChange | None = None) -> object:
        return super()._open(take_over=take_over or self.change)


def names(rig: OffloadRig) -> set[str]:
    return {found.key for found in rig.objects.objects()}


def copy_of(rig: OffloadRig, kind: type[OffloadRig] = CopiedRig) -> OffloadRig:
    rig.store.close()
    shutil.copytree(rig.path, rig.path.with_name("copy"))
    copy = kind(rig.path.with_name("copy"), rig.address)
    copy.now = rig.now
    rig.store = rig._open()
    return copy


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """A store with two segments in the bucket alone, one segment there and here, and an attempt that was cut off.

    And its copy, with an id of its own.
    """
    rig = OffloadRig(tmp_path / "store", (tmp_path / "bucket").as_uri(), managedLedgerOffloadDeletionLagMs=HOUR)
    rig.fill(2)
    rig.offload()
    rig.now += 2 * HOUR
    rig.store.upkeep.round()
    rig.append(b"x", b"y", b"z")
    rig.offload()
    rig.append(b"later")
    return rig, copy_of(rig)


def test_a_copy_reads_the_objects_of_its_original(pair: Pair) -> None:
    rig, copy = pair
    assert contents(copy.log()) == contents(rig.log())
    record = copy.store.metadata.store_record()
    assert (record.former, rig.store.store_id) == ((rig.store.store_id,), record.former[0])
    attempts = dict(attempts_of(copy.store.metadata.segments.of("public/default/persistent/log")))
    assert {attempt.owner for attempt in attempts.values()} == {rig.store.store_id}
    assert all(attempt.local_deleted for attempt in attempts.values()), "a segment with a file is offloaded again"
    assert copy.store.offloads.status("log").foreign == len(attempts) > 0


@pytest.mark.parametrize("how", ["delete", "retention", "sweep", "crash"])
def test_no_deletion_in_a_copy_reaches_its_original(pair: Pair, how: str) -> None:
    rig, copy = pair
    rig.append(*(b"more" for _ in range(4)))
    rig.offload()
    before, rows = names(rig), contents(rig.log())
    if how == "delete":
        copy.store.delete_ledger("log")
    elif how == "retention":
        copy.policy(retentionTimeInMinutes=0, retentionSizeInMB=0)
        copy.now += 9 * HOUR
        copy.log().trim()
    elif how == "crash":
        copy.store.offloads.cleaner.sweep_left()
    copy.upkeep()
    copy.store.offloads.cleaner.sweep()
    if how == "sweep":
        copy.store.offloads.offload(OffloadPrefix("log", sweep=True))
    assert before <= names(rig)
    assert contents(rig.log()) == rows


def test_a_copy_deletes_what_it_wrote_itself(pair: Pair) -> None:
    rig, copy = pair
    before = names(rig)
    copy.append(*(b"mine" for _ in range(4)))
    copy.offload()
    assert len(names(rig)) > len(before)
    copy.store.delete_ledger("log")
    copy.store.offloads.cleaner.sweep()
    assert names(rig) == before


def test_adopted_objects_are_deleted_with_their_ledger(pair: Pair) -> None:
    rig, copy = pair
    before = names(rig)
    assert copy.store.offloads.offload(OffloadPrefix("log", adopt=True)).foreign == 0
    assert contents(copy.log()) == contents(rig.log())
    copy.store.delete_ledger("log")
    copy.store.offloads.cleaner.sweep()
    assert names(rig) < before


def test_the_offloader_refuses_to_delete_the_objects_of_an_original(pair: Pair) -> None:
    rig, copy = pair
    ((ledger_id, attempt), *_) = attempts_of(copy.store.metadata.segments.of("public/default/persistent/log"))
    with pytest.raises(Refused, match=f"belong to store {rig.store.store_id}.*ledger offload NAME --adopt"):
        copy.copies.delete_offloaded(ledger_id, attempt.attempt, attempt.driver)


def test_an_object_that_the_original_deleted_is_an_error_with_its_owner(pair: Pair) -> None:
    rig, copy = pair
    rig.store.delete_ledger("log")
    rig.store.offloads.cleaner.sweep()
    with pytest.raises(DataLoss, match=f"store {rig.store.store_id}, the original of this copy, .*--adopt"):
        contents(copy.log())


def test_the_ledgers_of_both_in_one_bucket_are_told_apart(pair: Pair) -> None:
    rig, copy = pair
    for each in pair:
        each.append(*(b"theirs" for _ in range(5 if each is rig else 4)))
        each.offload()
    catalogue = read_catalogue(rig.objects)
    with pytest.raises(Refused, match=f"(?s)cluster.*{copy.store.store_id}.*offloadCluster") as refused:
        catalogue.find("log")
    assert rig.store.store_id in str(refused.value)
    assert catalogue.find("log", cluster=rig.store.store_id)


def test_a_restored_store_names_the_command_for_its_lost_history(tmp_path: Path) -> None:
    """A store that was restored keeps its id. The bucket has segments of the history after the backup."""
    rig = OffloadRig(tmp_path / "store", (tmp_path / "bucket").as_uri())
    rig.append(b"a")
    rig.store.close()
    shutil.copytree(rig.path, tmp_path / "backup")
    rig.store = rig._open()
    rig.append(*(b"lost%d" % number for number in range(7)))
    rig.offload()
    rig.store.close()
    shutil.rmtree(rig.path)
    (tmp_path / "backup").rename(rig.path)
    rig.store = rig._open(take_over=OwnerChange.MOVED)
    rig.append(*(b"a longer payload %d" % number for number in range(7)))
    rig.offload()

    joined = set[tuple[str, str]]()

    def found() -> TopicSegments:
        (topic,) = read_catalogue(rig.objects).find("log")
        require_one_history(rig.objects, topic, joined)
        return topic

    with pytest.raises(Refused, match=r"ends at row .* begins at row 1: .*ledger offload NAME --sweep"):
        found()
    rig.store.offloads.offload(OffloadPrefix("log", sweep=True))
    ids = [segment.ledger_id for segment in found().segments]
    assert (ids[0] < SKIPPED_IDS < ids[1]) is True
    assert len(joined) == 1, "the next listing does not read these two again"
    assert contents(rig.log())[:1] == [b"a"]


def test_a_copy_that_moves_into_a_bucket_owns_the_copied_objects(pair: Pair, tmp_path: Path) -> None:
    """The move copies the objects of the original, with the id of the original in them, and verifies them."""
    rig, copy = pair
    rows, before, former = contents(copy.log()), names(rig), (rig.store.store_id,)
    copy.store.close()
    address = (tmp_path / "home").as_uri()
    offloader = ObjectStoreOffloader(f"{address}/segments", S3Options())
    bucket = open_object_store(address, S3Options())
    IntoBucket(copy.path, bucket, offloader, BucketLimits(REQUESTS), probe=lambda _: None).run()
    offloader.close()
    home = BucketRig(tmp_path / "hosts", address, S3Options())
    with closing(home):
        opened = home.host()
        assert (payloads(opened), opened.store.metadata.store_record().former) == (rows, former)
        opened.store.delete_ledger("log")
        opened.store.offloads.cleaner.sweep()
        assert [key for key in home.keys("segments/") if "-ledger-" in key] == []
    assert names(rig) == before
