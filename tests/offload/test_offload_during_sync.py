"""Goal: the record of an offload waits for no append, and hides no acknowledged append.

Method: a sync that waits until the test lets it go on.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.log.segments.segment_list import SegmentList
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.position import Position
from tests.rigs.entry import entry
from tests.rigs.offload import OffloadRig


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch, rig: OffloadRig) -> Iterator[Callable[[], None]]:
    """Let no sync end before the fixture is called. Two segments are sealed, and one is open."""
    rig.append(*(b"%d" % number for number in range(5)), entries=2)
    free, real = threading.Event(), disk.sync_data

    def wait_and_sync(fd: int) -> None:
        assert free.wait(60)
        real(fd)

    monkeypatch.setattr(disk, "sync_data", wait_and_sync)
    yield free.set
    free.set()


def offload(rig: OffloadRig) -> None:
    log, attempt = rig.store.ledger("log"), OffloadAttempt(uuid.uuid4(), rig.copies.driver)
    assert log.prepare_offload(rig.ids()[0], attempt) is not None
    log.complete_offload(rig.ids()[0], attempt.attempt)


def test_an_offload_is_recorded_while_an_append_is_synced(rig: OffloadRig, release: Callable[[], None]) -> None:
    waiting: Future[Position] = rig.store.ledger("log").append([entry(b"5")])
    offload(rig)
    assert not waiting.done()
    assert rig.store.ledger("log").snapshot.segments[0].offloaded is not None
    release()
    assert waiting.result(60).entry_id == 1


def test_an_append_that_is_acknowledged_meanwhile_stays_visible(
    rig: OffloadRig, release: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = rig.store.ledger("log")
    waiting, computed = log.append([entry(b"5")]), SegmentList.snapshot

    def slowly(segments: SegmentList, opened: object) -> object:
        found = computed(segments, opened)  # type: ignore[arg-type]
        monkeypatch.setattr(SegmentList, "snapshot", computed)
        release()
        time.sleep(0.5)  # the sync ends, and its snapshot must not come before the older snapshot
        return found

    monkeypatch.setattr(SegmentList, "snapshot", slowly)
    offload(rig)
    position = waiting.result(60)
    assert log.snapshot.end == Position(position.ledger_id, position.entry_id + 1)
    assert log.snapshot.segments[0].offloaded is not None
