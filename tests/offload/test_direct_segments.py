"""Goal: every reader of direct segments gets what it would get if the log had appended the entries.

Method: random histories of appends, batches, seals, offloads and crashes. The batches of one store are direct segments,
those of the other store are appended. Both stores have the same clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ledger.ledger.message.entry import BrokerStamp, is_marker
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.transport.part_file import PartFile
from pyspark_ledger.offload.bucket.fetch import read_heads, read_part
from pyspark_ledger.offload.bucket.listing import read_catalogue
from pyspark_ledger.offload.bucket.topic_log import BucketLog
from tests.rigs.direct import arrow_entry, commit_direct, direct_part
from tests.rigs.entry import parsed
from tests.rigs.offload import BLOCK, NOW, OffloadRig
from tests.rigs.promotion import part_run, request

Found = tuple[BrokerStamp | None, bytes]
STEPS = 30


class Histories:
    """Store with direct segments, and store in which the same batches are appended."""

    def __init__(self, make_rig: Callable[..., OffloadRig], scratch: Path, seed: int) -> None:
        settings = {"window_bytes": 300, "cache_bytes": 3_000}
        self.direct = make_rig(str(scratch / "direct-objects"), **settings)
        self.appended = make_rig(str(scratch / "appended-objects"), **settings)
        self.both = (self.direct, self.appended)
        self.scratch, self.dice, self.batch = scratch, random.Random(seed), 0
        for rig in self.both:
            rig.log(entries=4)
            rig.policy(managedLedgerOffloadDeletionLagInMillis=0)

    def append(self) -> None:
        values = [self.dice.randbytes(self.dice.randrange(1, 200)) for _ in range(self.dice.randrange(1, 4))]
        for rig in self.both:
            rig.append(*values, entries=4)

    def commit(self) -> None:
        self.batch += 1
        groups = [
            [self.dice.randbytes(self.dice.randrange(1, 200)) for _ in range(self.dice.randrange(1, 9))]
            for _ in range(self.dice.randrange(1, 4))
        ]
        rows = self.dice.randrange(1, 5)
        parts = [direct_part(self.scratch, self.batch, group, BLOCK, rows=rows) for group in groups]
        commit_direct(self.direct.store, self.direct.copies, self.batch, parts)
        if self.dice.random() < 0.7:
            self.direct.store.offloads.put_indexes("log")
        staged, store = [], self.appended.store
        for group in groups:
            with PartFile(store.open_part("q", self.batch), part_run(self.batch)) as part:
                for value in group:
                    part.write([arrow_entry(value, rows, self.batch)], rows)
                staged.append(part.close())
        store.commit(request(self.batch, staged))

    def step(self) -> None:
        kind = self.dice.choice(["append", "append", "commit", "commit", "seal", "offload", "upkeep", "crash", "clock"])
        if kind in ("append", "commit"):
            getattr(self, kind)()
        elif kind == "clock":
            for rig in self.both:
                rig.now += 1_000
        else:
            for rig in self.both:
                if kind == "seal":
                    rig.store.ledger("log").roll_over()
                elif kind == "offload":
                    rig.offload()
                elif kind == "upkeep":
                    rig.upkeep()
                else:
                    rig.crash()


@pytest.fixture(params=range(6))
def histories(request: pytest.FixtureRequest, make_rig: Callable[..., OffloadRig], tmp_path: Path) -> Histories:
    return Histories(make_rig, tmp_path, request.param)


def places(rig: OffloadRig) -> list[tuple[Position, Found]]:
    """Return each entry that a reader of the log gets, except for markers."""
    log = rig.store.ledger("log")
    blocks = log.blocks(PositionRange(log.snapshot.start, log.snapshot.end), 700)
    found = [(block.ledger_id, position, each) for block in blocks for position, each in parsed(block)]
    return [
        (Position(ledger_id, int(position.rpartition(":")[2])), (each.stamp, bytes(each.payload)))
        for ledger_id, position, each in found
        if not is_marker(each.metadata)
    ]


def entries(rig: OffloadRig) -> list[Found]:
    return [found for _, found in places(rig)]


def by_objects(rig: OffloadRig, target_bytes: int, *, scan: bool) -> list[Found]:
    """Return each entry that a reader of the objects alone gets."""
    (topic,) = read_catalogue(rig.objects).find("log")
    log = BucketLog(topic, read_heads(rig.objects, topic.segments) if scan else None)
    log.require_whole(PositionRange(log.start, log.end))
    parts = log.parts(PositionRange(log.start, log.end), target_bytes)
    return [(each.stamp, bytes(each.payload)) for part in parts for _, each in read_part(rig.objects, part)]


def test_a_random_history_of_direct_segments_reads_as_appended(histories: Histories) -> None:
    for number in range(STEPS):
        histories.step()
        if number % 5 == 4:
            assert entries(histories.direct) == entries(histories.appended)
    for rig in histories.both:
        rig.crash()
        rig.store.offloads.direct.add_marked()
        rig.store.ledger("log").roll_over()
        rig.offload()
        rig.upkeep()
    everything = entries(histories.appended)
    assert entries(histories.direct) == everything
    for target in (1, 300, 10**6):
        assert by_objects(histories.direct, target, scan=True) == everything
        assert by_objects(histories.direct, target, scan=False) == everything


def test_a_time_finds_the_same_entry_in_direct_segments(histories: Histories) -> None:
    for _ in range(STEPS):
        histories.step()
    for rig in histories.both:
        rig.store.offloads.direct.add_marked()
        rig.store.ledger("log").roll_over()
        rig.offload()
    ours, theirs = (places(rig) for rig in histories.both)
    last = histories.direct.now + 2_000
    for time_ms in range(NOW - 1_000, last, 500):
        numbers = []
        for rig, found in zip(histories.both, (ours, theirs), strict=True):
            position = rig.store.ledger("log").snapshot.seek_time(time_ms)
            numbers.append(sum(place < position for place, _ in found))
        (topic,) = read_catalogue(histories.direct.objects).find("log")
        by_object = BucketLog(topic, read_heads(histories.direct.objects, topic.segments)).find_time(time_ms)
        numbers.append(sum(place < by_object for place, _ in ours))
        assert len(set(numbers)) == 1, time_ms
