"""Goal: no order of steps loses acknowledged entries. Method: a bucket in a directory, steps at chosen requests."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.bucket_store.live_files import LiveFile
from pyspark_ledger.ledger.bucket_store.verification import verify_store
from pyspark_ledger.ledger.cursor.cursor_acknowledgements import Acknowledgements
from pyspark_ledger.ledger.errors import Fenced, LedgerError, Unavailable
from pyspark_ledger.ledger.log.writer import LogWriter
from pyspark_ledger.ledger.message.entry import BrokerStamp
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecords
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.cursors import DescribeCursor
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix
from pyspark_ledger.ledger.segment.index import IndexFile
from pyspark_ledger.ledger.segment.writer import SegmentWriter, StampedEntry
from pyspark_ledger.ledger.wal.bucket import log_key
from pyspark_ledger.ledger.wal.manifest import BrokerAddress
from pyspark_ledger.ledger.wal.scan import LogScan
from tests.rigs.bucket_store import REQUESTS, SMALL, BucketRig, append, cursor, log, numbered, offload, payloads
from tests.rigs.cursors import given
from tests.rigs.entry import entry
from tests.rigs.faulty_bucket import FaultyBucket, lost, refused, unavailable

CARRYING = dataclasses.replace(SMALL, objects_max=3)


@pytest.fixture
def faults() -> FaultyBucket:
    return FaultyBucket()


@pytest.fixture
def rig(tmp_path: Path, faults: FaultyBucket) -> Iterator[BucketRig]:
    rig = BucketRig(tmp_path, (tmp_path / "bucket").as_uri(), S3Options(), wrap=faults.before)
    yield rig
    rig.close()


def fill(opened: BucketStore, count: int = 12) -> None:
    """Let the log grow beside the slow files."""
    append(opened, numbered(count), "busy", entries=4)
    offload(opened, "busy")


def carrying(opened: BucketStore, before: Callable[[str], None]) -> None:
    """Run `before` between the choice of a file to carry and the carry."""
    collector = opened.collector
    real = collector._log.carry

    def carry(files: Mapping[str, LiveFile]) -> Mapping[str, int]:
        for name in files:
            before(name)
        return real(files)

    collector._log = dataclasses.replace(collector._log, carry=carry)


def test_an_append_between_the_choice_and_the_carry_of_a_file_is_kept(rig: BucketRig) -> None:
    first = rig.host("a", limits=CARRYING)
    append(first, numbered(3), "slow")
    fill(first)
    appended: list[int] = []

    def append_more(name: str) -> None:
        if name == "ledgers/0.ledger" and not appended:
            appended.append(3)
            append(first, numbered(4, 3), "slow")
            log(first, "new")  # records behind these entries: the next snapshot needs no earlier object

    carrying(first, append_more)
    end = first.wal.end
    first.collector.collect()
    assert appended
    assert rig.manifest().first > end, "the objects of the new entries are behind those that were carried"
    assert payloads(rig.host("b"), "slow") == numbered(7)


def test_a_changed_local_file_is_not_carried_and_ends_the_broker(rig: BucketRig, tmp_path: Path) -> None:
    first = rig.host("a", limits=CARRYING)
    append(first, numbered(3), "slow")
    fill(first)
    path = tmp_path / "a" / "ledgers" / "0.ledger"
    data = bytearray(path.read_bytes())
    data[first.collector._files.length("ledgers/0.ledger") - 1] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    with pytest.raises(LedgerError, match=r"0\.ledger"):
        first.collector.collect()
    assert "differs from the log" in str(rig.lost[0])
    assert payloads(rig.host("b"), "slow") == numbered(3)


def test_a_truncated_local_file_never_becomes_an_object(rig: BucketRig, tmp_path: Path) -> None:
    first = rig.host("a")
    append(first, numbered(3))
    paused, path = threading.Event(), tmp_path / "a" / "ledgers" / "0.ledger"
    pack = first.wal._packer.pack

    def truncated(bytes_max: int) -> Any:
        os.truncate(path, 100)
        paused.set()
        return pack(bytes_max)

    first.wal._packer.pack = truncated  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="the file was changed"):
        append(first, [b"3"])
    assert paused.is_set()
    assert payloads(rig.host("b")) == numbered(3)


def test_a_cursor_that_gets_its_ledger_during_a_round_keeps_it(rig: BucketRig, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rig.host("a")
    segment = append(first, numbered(6))[0].ledger_id
    cursor(first)
    written, go_on = threading.Event(), threading.Event()
    flush, ledger_ids = Acknowledgements.flush, CursorRecords.ledger_ids

    def flushed(acks: Acknowledgements, position: Position) -> bool:
        done = flush(acks, position)
        written.set()  # the ledger of the cursor is in the log, and no record names it yet
        assert go_on.wait(30)
        return done

    def read(records: CursorRecords) -> set[int]:
        found = ledger_ids(records)
        go_on.set()
        acknowledging.join()  # a record names it, after this list was read
        return found

    monkeypatch.setattr(Acknowledgements, "flush", flushed)
    positions = given((segment, 1), (segment, 3))
    acknowledging = threading.Thread(target=first.store.cursors.acknowledge, args=("log", "c", positions))
    acknowledging.start()
    assert written.wait(30)
    monkeypatch.setattr(CursorRecords, "ledger_ids", read)
    first.collector.collect()
    monkeypatch.undo()
    first.store.ledger("log").roll_over()
    offload(first)
    append(first, numbered(3), "other")
    first.collector.collect()
    second = rig.host("b")
    second.store.cursors.acknowledge("log", "c", given((segment, 0), (segment, 2)))
    assert second.store.cursors.describe(DescribeCursor("log", "c")).next_position.entry_id == 4


@pytest.mark.thorough
def test_a_lost_change_of_the_manifest_is_not_taken_for_the_next(rig: BucketRig, faults: FaultyBucket) -> None:
    first = rig.host("a")
    append(first, numbered(8), entries=4)
    offload(first)
    faults.on("put", "manifest", lost)
    faults.on("put", "manifest", refused, times=100)
    with pytest.raises(LedgerError, match="403"):
        first.collector.collect()
    assert faults.met > 2
    faults.heal()
    stored = rig.manifest()
    append(first, numbered(8, 8), entries=4)
    offload(first)
    first.collector.collect()
    after = rig.manifest()
    assert after.revision == stored.revision + 1
    assert after.first > stored.first
    assert rig.keys("snapshot/") == [after.snapshot.key]
    assert payloads(rig.host("b")) == numbered(16)


def test_a_sealed_segment_with_bytes_that_nobody_acknowledged_is_built(
    rig: BucketRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rig.host("a")
    append(first, numbered(3))
    real, met = IndexFile.append, list[int]()

    def full(*_: Any) -> None:
        met.append(1)
        disk.raise_if_full(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "the sidecar")

    monkeypatch.setattr(IndexFile, "append", full)
    with pytest.raises(Unavailable, match="the sidecar"):
        append(first, [b"not acknowledged"])
    monkeypatch.setattr(IndexFile, "append", real)
    append(first, numbered(3, 3))
    assert met
    assert len(first.store.ledger("log").snapshot.segments) == 2, "the first segment was sealed at its third entry"
    second = rig.host("b", limits=CARRYING)
    assert payloads(second) == numbered(6)
    fill(second)
    second.collector.collect()
    third = rig.host("c")
    assert payloads(third) == numbered(6), "carried, and built again"
    offload(third)
    assert payloads(rig.host("d")) == numbered(6)


def test_a_failed_device_repeats_no_entry(rig: BucketRig, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rig.host("a")
    append(first, numbered(3))
    real, met = IndexFile.append, list[int]()

    def failing(*values: Any) -> None:
        if not met:
            met.append(1)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(*values)

    monkeypatch.setattr(IndexFile, "append", failing)
    append(first, numbered(3, 3))
    assert met
    assert payloads(first) == numbered(6)
    assert payloads(rig.host("b")) == numbered(6), "the log has entry 3 in two segments, one of them behind the seal"


def test_an_unexpected_error_of_a_write_stops_one_ledger_alone(rig: BucketRig, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rig.host("a")
    append(first, numbered(2))
    real = LogWriter.settle

    def failing(writer: LogWriter, *values: Any) -> Any:
        if writer.name.endswith("/log"):
            raise ZeroDivisionError
        return real(writer, *values)

    monkeypatch.setattr(LogWriter, "settle", failing)
    with pytest.raises(Unavailable, match="it is unknown"):
        append(first, [b"2"])
    assert first.store.given_up()
    append(first, numbered(5), "other", entries=2)
    monkeypatch.undo()
    assert payloads(rig.host("b"), "other") == numbered(5)
    assert payloads(rig.opened[-1]) in (numbered(2), numbered(3))


def test_a_ledger_that_cannot_be_sealed_does_not_hold_up_the_collector(rig: BucketRig) -> None:
    first = rig.host("a", limits=dataclasses.replace(CARRYING, carry_bytes=1))
    append(first, numbered(3), "slow")
    fill(first)
    first.store.ledger("slow")._queue.close("closed for a test")
    before = rig.manifest()
    first.collector.collect()
    assert rig.manifest().revision > before.revision
    assert payloads(rig.host("b"), "slow") == numbered(3)


def test_a_large_ledger_of_a_cursor_is_carried(rig: BucketRig) -> None:
    first = rig.host("a", limits=dataclasses.replace(CARRYING, carry_bytes=1))
    segment = append(first, numbered(6), entries=3)[0].ledger_id
    cursor(first)
    first.store.cursors.acknowledge("log", "c", given((segment, 1)))
    offload(first)
    first.store.ledger("log").roll_over()
    offload(first)
    fill(first)
    first.store.ledger("busy").roll_over()
    offload(first, "busy")
    before = first.wal.end
    first.collector.collect()
    assert rig.manifest().first >= before
    second = rig.host("b")
    second.store.cursors.acknowledge("log", "c", given((segment, 0)))
    assert second.store.cursors.describe(DescribeCursor("log", "c")).next_position.entry_id == 2


def test_what_a_round_could_not_delete_is_deleted_later(rig: BucketRig, faults: FaultyBucket) -> None:
    first = rig.host("a")
    append(first, numbered(12), entries=4)
    offload(first)
    old = rig.manifest().snapshot.key
    faults.on("delete", "", unavailable, times=1_000)
    first.collector._requests = dataclasses.replace(first.collector._requests, deadline_ms=10)
    with pytest.raises(Unavailable):
        first.collector.collect()
    assert faults.met
    faults.heal()
    first.collector.delete_old()
    manifest = rig.manifest()
    assert min(rig.keys("wal/")) >= log_key(manifest.first)
    assert old not in rig.keys("snapshot/")


@pytest.mark.thorough
def test_short_lives_of_brokers_are_collected_too(rig: BucketRig) -> None:
    limits = dataclasses.replace(SMALL, snapshot_bytes=1 << 40, objects_max=30)
    due = 0
    for turn in range(8):
        opened = rig.host(f"h{turn}", limits=limits)
        append(opened, numbered(2, 2 * turn), entries=2)
        offload(opened)
        if opened.collector.is_due:
            due += 1
            opened.collector.collect()
        opened.close()
    assert due >= 2
    assert len(rig.keys("wal/")) < 60
    assert payloads(rig.host("last")) == numbered(16)


def test_a_fenced_broker_that_closes_reports_the_loss(rig: BucketRig) -> None:
    first = rig.host("a")
    first.begin(BrokerAddress("grpc+unix:///a.sock", "a/1/1"))
    rig.host("b")
    first.close()
    assert isinstance(rig.lost[0], Fenced)


def test_a_batch_larger_than_the_memory_of_the_reader_is_built(rig: BucketRig, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rig.host("a")
    batch = [entry(b"%04d" % number + bytes(1_000)) for number in range(60)]
    log(first).append(batch).result(30)
    monkeypatch.setattr(LogScan.__init__, "__defaults__", (0, 10_000))
    second = rig.host("b")
    assert [found[:4] for found in payloads(second)] == [b"%04d" % number for number in range(60)]


def test_a_segment_whose_seal_failed_is_sealed_at_its_acknowledged_end(
    rig: BucketRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rig.host("a")
    append(first, numbered(3))
    real, met = SegmentWriter.forget_unacknowledged, list[int]()
    writer = first.store.ledger("log")._writer

    def failing(segment: SegmentWriter) -> None:
        if met:
            real(segment)
            return
        met.append(1)
        segment.write([StampedEntry(BrokerStamp(writer._stamp.timestamp_ms, 4), *_buffers(b"unsynced"))])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(SegmentWriter, "forget_unacknowledged", failing)
    with pytest.raises(Unavailable, match="cannot be sealed"):
        first.store.ledger("log").roll_over()
    append(first, numbered(3, 3))
    assert met
    assert payloads(first) == numbered(6)
    assert payloads(rig.host("b")) == numbered(6), "the log of the store never had the unsynced entry"


@pytest.mark.parametrize("step", ["listing", "record", "deletion"])
def test_a_sweep_suspended_over_a_take_over_spares_the_successor(
    rig: BucketRig, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    first = rig.host("a")
    append(first, numbered(4), entries=4)
    place, orphan = rig.offloaders[0], f"{uuid.uuid4()}-ledger-7"
    place.store.put(orphan, b"x", {"pulsarClusterName": first.store.store_id})
    records = first.store.metadata.unwanted
    where = {"listing": (place.store, "objects"), "record": (records, "put"), "deletion": (place, "delete_offloaded")}
    owner, name = where[step]
    real, successors = getattr(owner, name), list[BucketStore]()

    def suspended(*values: Any, **named: Any) -> Any:
        monkeypatch.undo()
        successors.append(rig.host("b"))
        append(successors[0], numbered(4, 4), entries=4)
        offload(successors[0])
        return real(*values, **named)

    monkeypatch.setattr(owner, name, suspended)
    with pytest.raises(Fenced):
        first.store.offloads.offload(OffloadPrefix("log", sweep=True))
    found = rig.keys("segments/")
    assert (f"segments/{orphan}" in found) == (step != "deletion")
    assert len([key for key in found if orphan not in key]) >= 3, "the successor has uploaded segments"
    verify_store(rig.bucket, rig.directory / "scratch", REQUESTS)
    assert payloads(rig.host("c")) == numbered(8)


def _buffers(payload: bytes) -> tuple[int, list[bytes]]:
    data = bytes(entry(payload))
    return len(data), [data]
