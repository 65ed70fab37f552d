"""Goal: segments that were staged parts are offloaded and read like all others, also from the bucket alone.

Method: batches of large parts are committed, offloaded, and deleted on the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark_ledger.ledger.message.entry import is_marker
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.position import PositionRange
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.offload.bucket.fetch import read_heads, read_part
from pyspark_ledger.offload.bucket.listing import read_catalogue
from pyspark_ledger.offload.bucket.topic_log import BucketLog
from tests.rigs.offload import HOUR, NOW, OffloadRig
from tests.rigs.promotion import BLOCK_BYTES, LARGE, payload, request, stage


def test_promoted_segments_are_read_from_object_storage(make_rig: Callable[..., OffloadRig], tmp_path: Path) -> None:
    rig = make_rig(stagedPartPromotionMinBytes=3 * LARGE, window_bytes=LARGE, cache_bytes=8 * LARGE)
    rig.store.create_ledger(CreateLedger("log", block_bytes=BLOCK_BYTES))
    groups = [[payload(f"{part}.{number}") for number in range(5)] for part in range(3)]
    rows = [row for group in groups for row in group]
    rig.store.commits.commit(request(1, [stage(rig.store, 1, group) for group in groups]))
    rig.offload()
    assert rig.complete() == rig.ids()
    assert len(rig.ids()) == 3
    rig.policy(managedLedgerOffloadDeletionLagInMillis=0)
    rig.now += HOUR
    rig.upkeep()
    assert rig.local() == set()
    assert rig.contents() == rows

    # The bucket alone: no file and no record of the store.
    store = open_object_store(tmp_path / "objects")
    (topic,) = read_catalogue(store).find("log")
    log = BucketLog(topic, read_heads(store, topic.segments))
    found = [
        entry for part in log.parts(PositionRange(log.start, log.end), 10**6) for _, entry in read_part(store, part)
    ]
    assert [bytes(entry.payload) for entry in found if not is_marker(entry.metadata)] == rows
    assert [entry.stamp for entry in found if entry.stamp and not is_marker(entry.metadata)] == [
        (NOW, row) for row in range(1, 16)
    ]
