"""Goal: log objects of format 1 and 2 are read, alone and mixed. Method: copies of `tests/fixtures/bucket`."""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.wal.bucket import log_key, number_of
from pyspark_ledger.offload.home_verification import verify_home
from pyspark_ledger.offload.home_view import open_home_view
from tests.rigs.bucket_store import BucketRig, append, numbered, payloads

ARCHIVE = Path(__file__).parents[2] / "fixtures" / "bucket" / "stores.tar.xz"
STORES = {"format-1": 12, "mixed": 24}
"""Each store with the number of its payloads in `log`."""


@pytest.fixture(params=STORES)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BucketRig]:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    rig = BucketRig(tmp_path, (tmp_path / request.param).as_uri(), S3Options())
    yield rig
    rig.close()


def count_of(rig: BucketRig) -> int:
    return STORES[rig.address.rpartition("/")[2]]


def formats(rig: BucketRig) -> dict[str, int]:
    return {key: rig.bucket.get(key, 1 << 20).data[5] for key in rig.keys("wal/")}


def verified(rig: BucketRig) -> int:
    found = verify_home(rig.bucket, rig.bucket, None, lambda *_: None)
    return found.entries["public/default/persistent/log"]


def test_a_store_is_read_and_continued(rig: BucketRig) -> None:
    count = count_of(rig)
    assert verified(rig) == count
    open_home_view(rig.address, rig.options).close()
    taker = rig.host("a")
    assert payloads(taker) == numbered(count)
    assert payloads(taker, "other") == [*numbered(3), *(numbered(3, 12) if count == 24 else [])]
    append(taker, numbered(2, count))
    assert verified(rig) == count + 2
    assert payloads(rig.host("b")) == numbered(count + 2)
    assert set(Counter(formats(rig).values())) == {1, 2}


def test_a_lost_object_of_either_format_is_named_by_a_later_object(rig: BucketRig) -> None:
    taker = rig.host("a")
    append(taker, numbered(1, count_of(rig)))
    numbers = [number_of(key) for key in rig.keys("wal/")]
    newest = {kind: key for key, kind in formats(rig).items() if number_of(key) < numbers[-1]}
    assert set(newest) == {1, 2}
    for key in newest.values():
        data = rig.bucket.get(key, 1 << 20).data
        rig.bucket.delete([key])
        with pytest.raises(Corrupt, match=f"{key} of .* is missing, and (wal/.*|manifest) states"):
            verified(rig)
        rig.bucket.put(key, data)


def test_a_snapshot_of_format_1_states_the_log_up_to_its_records(rig: BucketRig) -> None:
    end = rig.manifest().snapshot.records_from
    for key in rig.keys("wal/"):
        if number_of(key) >= end - 1:
            rig.bucket.delete([key])
    with pytest.raises(Corrupt, match=f"{log_key(end - 1)} of .* is missing, and manifest states"):
        verified(rig)
