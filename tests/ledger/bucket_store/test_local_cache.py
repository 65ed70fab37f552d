"""Goal: the local directory stays below its limit, and appends never fail while the bucket takes uploads.

Method: a store in a bucket with small segments and a small limit.
"""

from __future__ import annotations

import shutil

import pytest

from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.bucket_store.local_cache import CacheUse, LocalCache, cache_use
from pyspark_ledger.ledger.errors import Unavailable
from tests.rigs.bucket_store import BucketRig, append, log, offload, payloads
from tests.rigs.deadline import wait_until

BODIES = [bytes([number]) * 3_000 for number in range(80)]
AUTOMATIC = {"managedLedgerOffloadAutoTriggerSizeThresholdBytes": 0}


def use(opened: BucketStore, limit: int = 1) -> CacheUse:
    return cache_use(opened.store.path / "ledgers", limit)


def limited(opened: BucketStore, limit: int, patience_ms: int = 0) -> LocalCache:

    def roll_over(ledger_id: int) -> None:
        opened._roll_over(f"ledgers/{ledger_id}.ledger")

    return LocalCache(
        opened.store, "s3://tests", limit, written=lambda: 0, roll_over=roll_over, patience_ms=patience_ms
    )


def test_uploaded_segments_go_oldest_first_and_are_still_read(rig: BucketRig) -> None:
    opened = rig.host("a")
    append(opened, BODIES[:24], entries=4)
    offload(opened)
    before = use(opened)
    limited(opened, before.used).round()
    left = use(opened)
    assert left.used <= before.used * 8 // 10
    assert left.files.keys() == {*sorted(before.files)[-len(left.files) :]}, "the newest segments stay"
    assert payloads(opened) == BODIES[:24]
    limited(opened, left.used * 2).round()
    assert use(opened) == left, "below the limit nothing is deleted"


def test_appends_of_many_times_the_limit_succeed(rig: BucketRig) -> None:
    limit = 96 * 1024
    opened = rig.host("a", cache_bytes=limit, **AUTOMATIC)
    log(opened, entries=1_000)
    for part in (opened.store.upkeep, opened.store.offloads, opened.cache):
        part.start()
    highest = 0
    for body in BODIES:
        append(opened, [body], entries=1_000)
        highest = max(highest, use(opened).used)
    assert sum(map(len, BODIES)) > 2 * limit
    wait_until(lambda: use(opened).used <= limit, "the directory is below its limit")
    assert payloads(opened) == BODIES
    assert any(not segment.local for segment in opened.store.ledger("log").describe().segments)


def test_without_uploads_the_append_names_the_setting(rig: BucketRig) -> None:
    opened = rig.host("a")
    append(opened, BODIES[:8], entries=4)
    cache = limited(opened, 4096)
    cache.wait_for_room()
    cache.round()
    opened._durability.room = cache.wait_for_room
    with pytest.raises(Unavailable, match=r"its limit bucketCacheBytes is 4096, .*Raise bucketCacheBytes or free"):
        append(opened, [b"x"], entries=4)
    offload(opened)
    cache.round()
    append(opened, [b"x"], entries=4)
    assert payloads(opened) == [*BODIES[:8], b"x"]


def test_limit_is_a_share_of_the_disk(rig: BucketRig) -> None:
    opened = rig.host("a")
    append(opened, BODIES[:8], entries=4)
    found = use(opened, 0)
    disk = shutil.disk_usage(rig.directory)
    assert found.used < found.limit < disk.total
    assert use(opened, 5).limit == 5
    assert use(opened, 1 << 60).limit < disk.total, "a setting above the share of the disk"


def test_a_disk_that_another_program_fills_makes_the_cache_smaller(
    rig: BucketRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = rig.host("a")
    append(opened, BODIES[:24], entries=4)
    offload(opened)
    before = use(opened)
    free = shutil.disk_usage(rig.directory).free
    disk = shutil.disk_usage(rig.directory)._replace
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk(free=free))
    cache = limited(opened, 1 << 60)
    cache.start()
    wait_until(lambda: cache._measured_at >= 0, "the first measurement")
    assert use(opened) == before
    free = 0
    wait_until(lambda: use(opened).used <= before.used * 8 // 10, "copies are deleted, although the log has not grown")
    cache.stop()
    assert payloads(opened) == BODIES[:24]
