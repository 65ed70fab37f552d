"""Goal: a ledger's background work is done whether the ledger is open or not. Its cost is that of the due work.
Method: stores whose broker was killed, and the counted look-ups of a round.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.clock import DueTimes, system_clock_ms
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy
from tests.rigs import bucket_store
from tests.rigs.bucket_store import BucketRig
from tests.rigs.log import MINUTE, NOW, LogRig
from tests.rigs.offload import OffloadRig

ROLLOVER = {"managedLedgerMaxLedgerRolloverTimeMinutes": 10}
OFFLOAD = {"managedLedgerOffloadThresholdInSeconds": 0}


@pytest.fixture
def rig(store_path: Path) -> Iterator[LogRig]:
    rig = LogRig(store_path)
    yield rig
    rig.store.close()


def test_each_name_is_taken_once_at_its_earliest_time() -> None:
    due = DueTimes()
    for name, due_ms in (("a", 5), ("b", 3), ("a", 2), ("a", 9), ("c", 7)):
        due.put(name, due_ms)
    assert due.take(1) == []
    assert due.first() == 2
    assert due.take(5) == ["a", "b"]
    assert due.first() == 7
    due.put("a", 6)
    assert due.take(10) == ["a", "c"]
    assert due.take(100) == []
    assert due.first() is None


def test_a_round_looks_up_only_the_ledgers_that_are_due(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"log{number}" for number in range(20)]
    for name in names:
        rig.append(b"a", name=name, entries=100)
    rig.retain(30, -1, "public/default", namespace=True)
    rig.policy("public/default", namespace=True, **ROLLOVER)
    rig.store.upkeep.round()
    looked_up: list[str] = []
    original = rig.store.metadata.segments.of
    monkeypatch.setattr(rig.store.metadata.segments, "of", lambda name: looked_up.append(name) or original(name))
    monkeypatch.setattr(rig.store.metadata, "names", lambda: pytest.fail("a round lists all ledgers"))
    for _ in range(3):
        rig.store.upkeep.round()
    assert looked_up == [], "no ledger is due"
    rig.now += 11 * MINUTE
    rig.store.upkeep.round()
    assert {name.rsplit("/", 1)[1] for name in looked_up} == set(names), "all are rolled over"
    looked_up.clear()
    rig.store.upkeep.round()
    assert looked_up == []
    rig.now += 31 * MINUTE
    rig.store.upkeep.round()
    assert all(not rig.ids(name) for name in names), "all segments are trimmed"


def test_a_ledger_that_nobody_opens_is_rolled_over_and_trimmed(rig: LogRig) -> None:
    rig.append(b"a", entries=100)
    rig.retain(30, -1)
    rig.policy(**ROLLOVER)
    dead = rig.crash()
    rig.store.upkeep.round()
    assert rig.store.opened() == []
    rig.now = NOW + 11 * MINUTE
    rig.store.upkeep.round()
    (segment,) = rig.store.ledger("log").snapshot.segments
    assert segment.close_ms == rig.now
    rig.now += 31 * MINUTE
    rig.store.upkeep.round()
    assert rig.ids() == []
    dead.close()


def test_a_ledger_that_nobody_opens_is_offloaded(store_path: Path, tmp_path: Path) -> None:
    rig = OffloadRig(store_path, (tmp_path / "bucket").as_uri())
    rig.append(b"a", entries=100)
    rig.policy(**ROLLOVER, **OFFLOAD, managedLedgerOffloadDeletionLagInMillis=5 * MINUTE)
    killed = rig.store
    rig.crash()
    rig.upkeep()
    assert rig.store.opened() == []
    rig.now += 11 * MINUTE
    rig.upkeep()
    assert (rig.complete(), rig.local()) == ([0], {0})
    rig.upkeep()
    rig.now += 6 * MINUTE
    rig.upkeep()
    assert rig.local() == set(), "the local copy is due, though nothing else happened"
    killed.close()
    rig.close()


def test_a_ledger_in_a_bucket_that_nobody_opens_is_offloaded(tmp_path: Path) -> None:
    rig = BucketRig(tmp_path, (tmp_path / "bucket").as_uri(), S3Options())
    first = rig.host("a")
    bucket_store.append(first, [b"a"])
    first.store.policies.change(ChangePolicy("log", values={**ROLLOVER, **OFFLOAD}))
    ahead = [0]
    second = rig.host("b", clock=lambda: system_clock_ms() + ahead[0])
    second.store.upkeep.round()
    assert second.store.opened() == []
    ahead[0] = 11 * MINUTE
    second.store.upkeep.round()
    second.store.offloads.round()
    (segment,) = second.store.ledger("log").snapshot.segments
    assert segment.close_ms > 0
    assert segment.offloaded is not None
    rig.close()


def test_a_cursor_that_moves_lets_the_next_round_trim(rig: LogRig) -> None:
    rig.append(b"0", b"1", b"2", b"3")
    rig.retain(1, -1)
    rig.cursor("c")
    rig.now += 2 * MINUTE
    rig.store.upkeep.round()
    assert len(rig.contents()) == 4
    rig.acknowledge("c", Position(1, 0))
    rig.store.upkeep.round()
    assert rig.contents() == [b"3"]


def test_a_clock_that_was_ahead_does_not_delay_the_rollover(rig: LogRig) -> None:
    rig.now = NOW + 1_000 * MINUTE
    log = rig.log(entries=100)
    rig.append(b"a", entries=100)
    rig.policy(**ROLLOVER)
    rig.store.upkeep.round()
    rig.now = NOW
    rig.store.upkeep.round()
    rig.now += 11 * MINUTE
    rig.store.upkeep.round()
    assert log.snapshot.segments[-1].close_ms == rig.now
