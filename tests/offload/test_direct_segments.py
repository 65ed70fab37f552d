"""Goal: every reader of direct segments gets what it would get if the log had appended the entries.

Method: random histories of appends, batches, seals, offloads and crashes. The batches of one store are direct segments,
those of the other store are appended. Both stores have the same clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ledger.ledger.broker.reads.cached_reads import CachedReads
from pyspark_ledger.ledger.broker.reads.offloaded_reads import ReaderId
from pyspark_ledger.ledger.message.entry import BrokerStamp, is_marker, parse_entry
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.segment.reader import iter_frames
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.transport.part_writer import PartWriter
from pyspark_ledger.offload.bucket.fetch import read_heads, read_part
from pyspark_ledger.offload.bucket.listing import read_catalogue
from pyspark_ledger.offload.bucket.topic_log import BucketLog
from tests.rigs.direct import arrow_entry, commit_direct, direct_part
from tests.rigs.entry import parsed
from tests.rigs.offload import BLOCK, HOUR, NOW, Failing, OffloadRig
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
            with PartWriter.to_file(store.commits.open_part("q", self.batch), part_run(self.batch)) as part:
                for value in group:
                    part.write([arrow_entry(value, rows, self.batch)], rows)
                staged.append(part.close())
        store.commits.commit(request(self.batch, staged))

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


@pytest.mark.thorough
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


@pytest.mark.parametrize("copy", [0, 1])
def test_the_cache_of_a_broker_has_real_stamps_and_reads_once(rig: OffloadRig, tmp_path: Path, copy: int) -> None:
    log = rig.log(entries=4)
    rig.append(b"first", entries=4)
    settings = Settings.of(
        {"managedLedgerCacheEvictionTimeThresholdMillis": 10**6, "managedLedgerCacheCopyEntries": copy}
    )
    reads = CachedReads(settings, lambda: 0, lambda _: log.snapshot)
    for name in "ab":
        reads.follow(log.name, name, log.snapshot.end, 10**6)
    before = log.snapshot
    commit_direct(rig.store, rig.copies, 1, [direct_part(tmp_path, 1, [b"x" * 100] * 9, BLOCK, rows=2)])
    reads.moved(before, log.snapshot)
    assert reads.metrics().entries == 0
    found = []
    for name in "ab":
        for block in log.blocks(PositionRange(before.end, log.snapshot.end), 700):
            frames = reads.read(block, ReaderId(log.name, name))
            each = iter_frames(frames, block.ledger_id, block.first_entry, block.entries)
            found += [parse_entry(data, str(number)).stamp for number, data in each]
    assert found == [BrokerStamp(NOW, row) for row in (*range(3, 20, 2), 19)] * 2
    assert (reads.metrics().object_misses, reads.metrics().memory_hits) == (10, 10)


def test_a_log_opens_without_a_request_for_a_direct_segment(rig: OffloadRig, tmp_path: Path) -> None:
    rig.log(entries=4)
    commit_direct(rig.store, rig.copies, 1, [direct_part(tmp_path, 1, [b"x" * 100] * 9, BLOCK, rows=2)])
    rig.store.offloads.round()
    (rig.path / "ledgers" / f"{rig.ids()[-1]}.index").unlink(missing_ok=True)
    Failing(rig).read_offloaded = refuse  # type: ignore[method-assign]
    rig.now -= HOUR
    rig.crash()
    rig.append(b"later", entries=4)
    assert rig.store.ledger("log").snapshot.last_timestamp_ms() == NOW


def refuse(*_: object) -> object:
    raise AssertionError("an object was requested")


@pytest.mark.thorough
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
