"""Goal: the index objects of direct segments appear in order, and none stays. Method: steps of others between the puts.

A store in a directory that acts as the bucket. A put of index objects lets the other step run first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from tests.rigs.bucket_store import BucketRig, append, log, numbered
from tests.rigs.direct_sink import put, request, with_first


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


def segments(opened: BucketStore) -> list[int]:
    return [row.ledger_id for row in opened.store.metadata.segments.of(opened.store.ledger("log").name)]


def indexed(rig: BucketRig) -> set[int]:
    """Return the segments with a block index in the bucket."""
    found = (ObjectKey.parse(key.removeprefix("segments/")) for key in rig.keys("segments/"))
    return {key.ledger_id for key, is_index in filter(None, found) if is_index}


def test_index_objects_wait_for_the_offload_of_earlier_segments(rig: BucketRig) -> None:
    """Otherwise a reader of the objects alone would pass the rows of the earlier segment."""
    opened = rig.host(stagedPartPromotionMinBytes=0, managedLedgerOffloadAutoTriggerSizeThresholdBytes=0)
    append(opened, [b"before"])
    opened.store.commits.commit(request(1, [put(opened, 1, 0, numbered(9))]))
    opened.store.offloads.round()
    assert indexed(rig) == set()
    with pytest.raises(Unavailable, match=f"segment {segments(opened)[1] + 1} .* waits"):
        opened.store.ledger("log").require_indexes(segments(opened)[1] + 1)
    opened.store.offloads.consider(opened.store.ledger("log").name)
    opened.store.offloads.round()
    assert indexed(rig) == set(segments(opened))
    assert not opened.store.ledger("log").lacks_indexes


def test_a_commit_while_index_objects_are_put_gets_its_own(
    rig: BucketRig, opened: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.store.commits.commit(request(1, [put(opened, 1, 0, numbered(9))]))
    second = request(2, [put(opened, 2, 0, numbered(9, 9))])
    with_first(monkeypatch, ObjectStoreOffloader, "put_indexes", lambda: opened.store.commits.commit(second))
    opened.store.offloads.round()
    opened.store.offloads.round()
    assert indexed(rig) == set(segments(opened))
    assert len(segments(opened)) == 2


def test_a_sweep_while_index_objects_are_put_leaves_none(
    rig: BucketRig, opened: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened.store.commits.commit(request(1, [put(opened, 1, 0, numbered(9))]))
    sweeps: list[Thread] = []

    def delete() -> None:
        opened.store.delete_ledger("log")
        sweeps.append(Thread(target=opened.store.offloads.cleaner.sweep))
        sweeps[0].start()
        sweeps[0].join(0.5)

    with_first(monkeypatch, ObjectStoreOffloader, "put_indexes", delete)
    opened.store.offloads.direct.put_waiting()
    sweeps[0].join()
    assert rig.keys("segments/") == []
