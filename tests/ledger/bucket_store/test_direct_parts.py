"""Goal: a batch whose tasks put their parts into the bucket is in the log once, in order, and nothing else stays.

Method: tasks without Spark, one store in a directory that acts as the bucket, kills between all steps.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused
from pyspark_ledger.ledger.metadata.manifest_records import Manifest, ManifestRun
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.protocol.commits import AbortRun, BatchOrigin, CommitRuns
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from tests.rigs.bucket_store import BucketRig, append, log, numbered, payloads
from tests.rigs.direct_sink import of_ledger, put, request, stage
from tests.rigs.promotion import equal_offsets

SAME = equal_offsets(1)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[BucketRig]:
    rig = BucketRig(tmp_path, (tmp_path / "bucket").as_uri(), S3Options())
    yield rig
    rig.close()


@pytest.fixture
def opened(rig: BucketRig) -> BucketStore:
    broker = rig.host(stagedPartPromotionMinBytes=0)
    log(broker)
    return broker


def objects(rig: BucketRig) -> set[int]:
    """Return the segment ids of the data objects."""
    found = (ObjectKey.parse(key.removeprefix("segments/")) for key in rig.keys("segments/"))
    return {key.ledger_id for key, is_index in filter(None, found) if not is_index}


def segments(opened: BucketStore, name: str = "log") -> list[int]:
    return [row.ledger_id for row in opened.store.metadata.segments.of(opened.store.ledger(name).name)]


def ids(*parts: object) -> list[int]:
    return [part.object.ledger_id for part in parts]  # type: ignore[attr-defined]


def test_objects_become_segments_under_their_keys_in_the_order_of_tasks(rig: BucketRig, opened: BucketStore) -> None:
    append(opened, [b"before"])
    later, earlier = put(opened, 1, 2, numbered(30, 30)), put(opened, 1, 0, numbered(30))
    committed = opened.store.commits.commit(request(1, [earlier, later]))
    assert (committed.entries, committed.rows, committed.repeated) == (60, 60, False)
    assert segments(opened)[1:] == ids(earlier, later)
    assert payloads(opened) == [b"before", *numbered(60)]
    for row in opened.store.metadata.segments.of(opened.store.ledger("log").name)[1:]:
        attempt = OffloadAttempt.of(row.listed())
        assert attempt is not None
        assert attempt.complete
        assert attempt.local_deleted
    append(opened, [b"after"])
    assert payloads(opened) == [b"before", *numbered(60), b"after"]


def test_a_repeated_commit_changes_nothing_and_deletes_no_listed_object(rig: BucketRig, opened: BucketStore) -> None:
    part = put(opened, 1, 0, numbered(9))
    opened.store.commits.commit(request(1, [part]))
    assert opened.store.commits.commit(request(1, [part])).repeated
    opened.store.commits.abort(AbortRun("q", 1, []))
    opened.store.offloads.cleaner.sweep()
    assert payloads(opened) == numbered(9)


def test_a_committed_batch_that_runs_again_with_other_rows_changes_nothing(rig: BucketRig, opened: BucketStore) -> None:
    first = put(opened, 1, 0, numbered(9))
    opened.store.commits.commit(request(1, [first]))
    again = [put(opened, 1, task, [b"other rows"] * 5) for task in range(3)]
    repeated = opened.store.commits.commit(request(1, [*again, stage(opened, 1, [b"a small part"])]))
    assert (repeated.repeated, repeated.entries) == (True, 9)
    assert payloads(opened) == numbered(9)
    opened.store.commits.commit(request(2, [put(opened, 2, 0, numbered(3, 9))]))
    opened.store.offloads.cleaner.sweep()
    assert payloads(opened) == numbered(12)
    assert objects(rig) == set(segments(opened)), "the objects of the second run are deleted"


def test_a_direct_batch_of_another_history_is_refused(rig: BucketRig, opened: BucketStore) -> None:
    for batch in (1, 2):
        opened.store.commits.commit(request(batch, [put(opened, batch, 0, numbered(9))]))
    for host in (None, "b"):  # the second broker has taken over
        broker = opened if host is None else rig.host(host, stagedPartPromotionMinBytes=0)
        for batch, known in ((1, {1: "same"}), (2, {2: "other"}), (3, {3: "same", 2: "other"})):
            other = request(batch, [put(broker, batch, 0, numbered(3))])
            with pytest.raises(Refused, match=f"batch {batch} of query 'q'"):
                broker.store.commits.commit(msgspec.structs.replace(other, origin=BatchOrigin(known)))
        assert payloads(broker) == numbered(9) * 2


def test_a_batch_that_runs_again_for_other_ledgers_changes_nothing(rig: BucketRig, opened: BucketStore) -> None:
    log(opened, "other")
    opened.store.commits.commit_several(
        CommitRuns("q", 1, 7, 1, [of_ledger("log", put(opened, 1, 0, numbered(9)))], origin=SAME)
    )
    moved = put(opened, 1, 0, [b"other rows"], ledger="other")
    assert opened.store.commits.commit_several(
        CommitRuns("q", 1, 7, 1, [of_ledger("other", moved)], origin=SAME)
    ).repeated
    assert payloads(opened) == numbered(9)
    assert payloads(opened, "other") == []


def test_small_parts_between_large_ones_are_joined_in_order(rig: BucketRig, opened: BucketStore) -> None:
    parts = [
        stage(opened, 1, numbered(3)),
        put(opened, 1, 1, numbered(5, 3)),
        stage(opened, 1, numbered(2, 8)),
        stage(opened, 1, numbered(2, 10)),
        put(opened, 1, 4, numbered(4, 12)),
        stage(opened, 1, numbered(4, 16)),
    ]
    committed = opened.store.commits.commit(request(1, parts))
    assert committed.entries == 20
    assert payloads(opened) == numbered(20)
    assert len(segments(opened)) == 5
    assert not list((rig.directory / "a" / "staging").rglob("*.part"))


def test_a_batch_of_small_parts_goes_into_the_open_segment(rig: BucketRig, opened: BucketStore) -> None:
    append(opened, [b"a"])
    opened.store.commits.commit(request(1, [stage(opened, 1, [b"b"]), stage(opened, 1, [b"c"])]))
    assert payloads(opened) == [b"a", b"b", b"c"]
    assert len(segments(opened)) == 1


def test_a_rollover_since_the_reservation_copies_the_objects_under_new_ids(rig: BucketRig, opened: BucketStore) -> None:
    parts = [put(opened, 1, 0, numbered(9)), put(opened, 1, 1, numbered(9, 9))]
    append(opened, [b"between"])
    opened.store.commits.commit(request(1, parts))
    assert payloads(opened) == [b"between", *numbered(18)]
    assert segments(opened) == sorted(segments(opened))
    assert not set(ids(*parts)) & set(segments(opened))
    opened.store.offloads.cleaner.sweep()
    assert objects(rig) == set(segments(opened)[1:]), "the objects that were copied are deleted"


def test_another_query_commits_first(rig: BucketRig, opened: BucketStore) -> None:
    first, second = put(opened, 1, 0, numbered(9), query="a"), put(opened, 1, 0, numbered(9, 9), query="b")
    opened.store.commits.commit(request(1, [second], query="b"))
    opened.store.commits.commit(request(1, [first], query="a"))
    assert payloads(opened) == [*numbered(9, 9), *numbered(9)]
    assert segments(opened) == sorted(segments(opened))


def test_attempts_that_lost_and_earlier_batches_are_deleted_after_a_commit(rig: BucketRig, opened: BucketStore) -> None:
    put(opened, 1, 0, [b"an earlier run of the batch failed"])
    lost, won = put(opened, 2, 0, [b"rows of a lost attempt"]), put(opened, 2, 0, numbered(9))
    opened.store.commits.commit(request(2, [won]))
    opened.store.offloads.cleaner.sweep()
    assert payloads(opened) == numbered(9)
    found = [key for key in rig.keys("segments/") if lost.part in key]
    assert not found
    assert objects(rig) == set(ids(won))


def test_a_missing_object_fails_the_batch_and_a_rerun_works(rig: BucketRig, opened: BucketStore) -> None:
    part = put(opened, 1, 0, numbered(9))
    rig.bucket.delete([f"segments/{part.part}"])
    with pytest.raises(NotFound, match="is missing in"):
        opened.store.commits.commit(request(1, [part]))
    assert payloads(opened) == []
    opened.store.commits.commit(request(1, [put(opened, 1, 0, numbered(7))]))
    assert payloads(opened) == numbered(7)


def test_an_object_of_another_size_is_refused(rig: BucketRig, opened: BucketStore) -> None:
    part = put(opened, 1, 0, numbered(9))
    rig.bucket.put(f"segments/{part.part}", b"short")
    with pytest.raises(Corrupt, match=f"has 5 bytes, its task reported {part.length}"):
        opened.store.commits.commit(request(1, [part]))


def test_a_restarted_broker_commits_the_parts_of_the_one_before(rig: BucketRig, opened: BucketStore) -> None:
    parts = [put(opened, 1, 0, numbered(9)), put(opened, 1, 1, numbered(9, 9))]
    second = rig.host("b", stagedPartPromotionMinBytes=0)
    committed = second.store.commits.commit(request(1, parts))
    assert not committed.repeated
    assert payloads(second) == numbered(18)
    third = rig.host("c", stagedPartPromotionMinBytes=0)
    assert third.store.commits.commit(request(1, parts)).repeated
    assert payloads(third) == numbered(18)


def test_a_batch_for_several_ledgers_is_rolled_forward(rig: BucketRig, opened: BucketStore) -> None:
    log(opened, "other")
    one, two = put(opened, 1, 0, numbered(9)), put(opened, 1, 0, numbered(9, 9), ledger="other")
    small = stage(opened, 1, [b"small"])
    runs = CommitRuns("q", 1, 7, 1, [of_ledger("log", one, small), of_ledger("other", two)])
    committed = opened.store.commits.commit_several(runs)
    assert [run.entries for run in committed.runs.values()] == [10, 9]
    assert payloads(opened) == [*numbered(9), b"small"]
    assert payloads(opened, "other") == numbered(9, 9)
    assert opened.store.commits.commit_several(runs).repeated


def test_a_store_without_promotion_gives_no_keys(rig: BucketRig) -> None:
    opened = rig.host(stagedPartPromotionMinBytes=-1)
    log(opened)
    assert opened.store.describe("log").upload_from == -1
    with pytest.raises(AssertionError):
        put(opened, 1, 0, numbered(9))


@pytest.mark.thorough
def test_a_thousand_parts_are_listed_in_order(rig: BucketRig, opened: BucketStore) -> None:
    parts = [put(opened, 1, task, [b"%d" % task]) for task in range(1_000)]
    committed = opened.store.commits.commit(request(1, parts))
    assert (committed.entries, committed.rows) == (1_000, 1_000)
    assert segments(opened) == ids(*parts), "no object is copied"
    assert payloads(opened) == numbered(1_000)


def test_an_old_object_is_refused(rig: BucketRig, opened: BucketStore) -> None:
    part = put(opened, 1, 0, numbered(9))
    opened.store.direct._clock = lambda: 2**42  # the clock of the broker runs years later
    with pytest.raises(Refused, match="Run the batch again"):
        opened.store.commits.commit(request(1, [part]))


def test_old_objects_that_no_segment_needs_are_deleted(rig: BucketRig, opened: BucketStore) -> None:
    won = put(opened, 1, 0, numbered(9))
    opened.store.commits.commit(request(1, [won]))
    put(opened, 2, 0, numbered(9), query="failed")
    unfinished = put(opened, 1, 0, numbered(9), query="pending")
    opened.store.metadata.manifests.put(
        Manifest("pending", 1, 7, 1, [ManifestRun(opened.store.ledger("log").name, "gone", [unfinished])])
    )
    place = open_object_store(f"{rig.address}/segments")
    place.begin_upload(ObjectKey(uuid.uuid4(), 70_000).data_name)
    opened.store.commits._unfinished.add("pending")
    opened.store.direct.list_unneeded(opened.store.offloads._recorded)
    assert opened.store.offloads.cleaner.sweep() == 0, "the objects are young"
    opened.store.direct._clock = lambda: system_clock_ms() + 8 * 24 * 3600 * 1000
    opened.store.direct.list_unneeded(opened.store.offloads._recorded)
    assert opened.store.offloads.cleaner.sweep() == 2
    assert objects(rig) == set(ids(won, unfinished))
    assert list(place.uploads()) == []
    assert payloads(opened) == numbered(9)
