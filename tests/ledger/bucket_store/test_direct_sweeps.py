"""Goal: a part in the bucket that is swept while its task writes loses no batch. Method: a real S3 server.

A sweep after the retention of staged parts, and the commit of a later batch, abort uploads of slow tasks.
"""

from __future__ import annotations

import pytest

from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import NotFound
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.settings.broker import Settings
from tests.rigs.bucket_store import BucketRig, log, numbered, payloads
from tests.rigs.direct_sink import begin, put, request
from tests.rigs.entry import entry

RETENTION_MS = Settings().stagingRetentionSeconds * 1000


@pytest.fixture
def opened(rig: BucketRig) -> BucketStore:
    broker = rig.host(stagedPartPromotionMinBytes=0)
    log(broker)
    return broker


def sweep_later(opened: BucketStore) -> int:
    """Sweep as a broker does after the retention of staged parts. Return the number of deleted parts."""
    opened.store.direct._clock = lambda: system_clock_ms() + RETENTION_MS + 60_000
    opened.store.direct.list_unneeded(opened.store.offloads._recorded)
    opened.store.direct._clock = system_clock_ms
    return opened.store.offloads.cleaner.sweep()


def data_objects(rig: BucketRig) -> set[str]:
    names = (key.removeprefix("segments/") for key in rig.keys("segments/"))
    return {name for name in names if (parsed := ObjectKey.parse(name)) is not None and not parsed[1]}


def test_an_upload_that_is_swept_while_its_task_writes_fails_the_task(rig: BucketRig, opened: BucketStore) -> None:
    upload = begin(opened, 1, 0, options=rig.options)
    upload.write([entry(b"a", run=1)], 1)
    assert sweep_later(opened) == 1
    upload.write([entry(b"b", run=1)], 1)
    with pytest.raises(NotFound, match=r"is gone before its end: .*Run the batch again"):
        upload.close()
    upload.abort()
    again = put(opened, 1, 0, numbered(9), options=rig.options)
    assert not opened.store.commits.commit(request(1, [again])).repeated
    assert payloads(opened) == numbered(9)
    assert data_objects(rig) == {again.part}


def test_a_part_that_is_swept_before_its_commit_fails_the_batch(rig: BucketRig, opened: BucketStore) -> None:
    parts = [put(opened, 1, task, numbered(9, 9 * task), options=rig.options) for task in range(2)]
    assert sweep_later(opened) == 2
    with pytest.raises(NotFound, match="Run the batch again"):
        opened.store.commits.commit(request(1, parts))
    assert payloads(opened) == []
    again = [put(opened, 1, task, numbered(9, 9 * task), options=rig.options) for task in range(2)]
    assert not opened.store.commits.commit(request(1, again)).repeated
    sweep_later(opened)
    assert data_objects(rig) == {part.part for part in again}
    assert payloads(opened) == numbered(18)


def test_a_slow_task_of_an_earlier_batch_commits_nothing(rig: BucketRig, opened: BucketStore) -> None:
    """The task was started twice. The other attempt was committed, and so was the next batch."""
    slow = begin(opened, 1, 0, options=rig.options)
    slow.write([entry(b"slow", run=1)], 1)
    for batch in (1, 2):
        part = put(opened, batch, 0, numbered(9, 9 * batch), options=rig.options)
        opened.store.commits.commit(request(batch, [part]))
    opened.store.offloads.cleaner.sweep()
    with pytest.raises(NotFound, match="is gone before its end"):
        slow.close()
    slow.abort()
    assert payloads(opened) == numbered(18, 9)
