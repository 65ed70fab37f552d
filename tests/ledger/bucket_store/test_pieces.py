"""Goal: one ledger keeps several objects of the log in flight, and loses and repeats nothing.

Method: a bucket in a directory. The test holds the puts of the log until the entries of several objects are written.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.bucket_store.durability import BucketDurability
from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.log.writer import LogWriter
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.segment.index import IndexFile
from tests.rigs.bucket_store import BucketRig, append, log, payloads
from tests.rigs.deadline import wait_until
from tests.rigs.entry import entry
from tests.rigs.faulty_bucket import FaultyBucket

COUNT, OBJECTS = 60, 3


class HeldPuts:
    """Puts of the log that wait for `release`."""

    def __init__(self) -> None:
        self.waiting = 0
        self.released = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, call: Callable[[], Any]) -> Any:
        with self._lock:
            self.waiting += 1
        assert self.released.wait(60)
        return call()


@pytest.fixture
def faults() -> FaultyBucket:
    return FaultyBucket()


@pytest.fixture
def rig(tmp_path: Path, faults: FaultyBucket) -> Iterator[BucketRig]:
    rig = BucketRig(tmp_path, (tmp_path / "bucket").as_uri(), S3Options(), wrap=faults.before)
    yield rig
    rig.close()


def content(number: int) -> bytes:
    return b"%04d" % number + bytes(1_000)


def append_held(opened: BucketStore, faults: FaultyBucket) -> tuple[HeldPuts, list[Future[Position]]]:
    """Append entries of several objects while no put of the log succeeds."""
    append(opened, [content(0)])
    held = HeldPuts()
    faults.on("put", "wal/", held, times=100)
    ledger = log(opened)
    futures = [ledger.append([entry(content(number))]) for number in range(1, COUNT)]
    wait_until(lambda: held.waiting >= OBJECTS)
    return held, futures


def test_one_ledger_has_several_objects_in_flight(rig: BucketRig, faults: FaultyBucket) -> None:
    first = rig.host("a")
    held, futures = append_held(first, faults)
    assert not any(future.done() for future in futures)
    held.released.set()
    positions = [future.result(60) for future in futures]
    assert [position.entry_id for position in positions] == list(range(1, COUNT))
    assert payloads(first) == [content(number) for number in range(COUNT)]
    append(first, [content(COUNT)])
    assert payloads(rig.host("b")) == [content(number) for number in range(COUNT + 1)]


def test_a_rollover_waits_for_all_objects_in_flight(rig: BucketRig, faults: FaultyBucket) -> None:
    first = rig.host("a")
    held, futures = append_held(first, faults)
    rolled = threading.Thread(target=first.store.ledger("log").roll_over)
    rolled.start()
    held.released.set()
    rolled.join(60)
    assert all(future.done() for future in futures)
    append(first, [content(COUNT)])
    assert len(first.store.ledger("log").snapshot.segments) == 2
    assert payloads(rig.host("b")) == [content(number) for number in range(COUNT + 1)]


def test_a_failed_device_repeats_no_entry_of_objects_in_flight(
    rig: BucketRig, faults: FaultyBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rig.host("a")
    held, futures = append_held(first, faults)
    real, met = IndexFile.append, list[int]()

    def failing(*values: Any) -> None:
        if not met:
            met.append(1)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(*values)

    monkeypatch.setattr(IndexFile, "append", failing)
    held.released.set()
    for future in futures:
        future.result(60)
    assert met
    assert not rig.lost, "the broker goes on"
    assert payloads(first) == [content(number) for number in range(COUNT)]
    assert payloads(rig.host("b")) == [content(number) for number in range(COUNT)]


def test_an_unexpected_error_with_objects_in_flight_stops_one_ledger_alone(
    rig: BucketRig, faults: FaultyBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rig.host("a")
    held, futures = append_held(first, faults)
    real = LogWriter.settle

    def failing(writer: LogWriter, *values: Any) -> Any:
        if writer.name.endswith("/log"):
            raise ZeroDivisionError
        return real(writer, *values)

    monkeypatch.setattr(LogWriter, "settle", failing)
    held.released.set()
    for future in futures:
        with pytest.raises(Unavailable, match="it is unknown"):
            future.result(60)
    append(first, [b"0", b"1"], "other")
    monkeypatch.undo()
    second = rig.host("b")
    assert payloads(second, "other") == [b"0", b"1"]
    found = payloads(second)
    assert found == [content(number) for number in range(len(found))], "a prefix of the entries"
    assert len(found) >= 1


def test_a_rollover_takes_two_transactions(rig: BucketRig, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, made = rig.host("a"), []
    ledger = opened.store.create_ledger(CreateLedger("full", max_entries_per_ledger=4))
    for number in range(4):
        ledger.append([entry(content(number))]).result(60)
    replicate = BucketDurability.replicate

    def counted(durability: BucketDurability, rows: bytes) -> None:
        made.append(rows)
        replicate(durability, rows)

    monkeypatch.setattr(BucketDurability, "replicate", counted)
    before, after = (ledger.append([entry(content(number))]).result(60) for number in (4, 5))
    assert (before.entry_id, after.entry_id) == (0, 1)
    assert len(made) == 2
