"""Goal: an object is due when its batches need not wait for others. Method: times and sizes, without a bucket."""

from __future__ import annotations

from pyspark_ledger.ledger.wal.flush import FlushSchedule
from pyspark_ledger.ledger.wal.packing import MetadataRows, Packer

INTERVAL_MS, OBJECT_BYTES, IDLE_MS = 100, 8, 5_000


def packer(*sizes: int) -> Packer:
    found = Packer()
    for size in sizes:
        found.put([MetadataRows(bytes(size))])
    return found


def flushed(files: int = 2) -> FlushSchedule:
    """Return a schedule whose last object was packed at 1,000 ms."""
    schedule = FlushSchedule(INTERVAL_MS, OBJECT_BYTES, IDLE_MS)
    schedule.flushed(1_000, files)
    return schedule


def test_the_first_object_and_a_full_one_are_due_at_once() -> None:
    assert FlushSchedule(INTERVAL_MS, OBJECT_BYTES, IDLE_MS).due_ms(7, packer(1, 1), []) == 7
    assert flushed().due_ms(1_001, packer(4, 4), [8, 8, 8]) == 1_001


def test_an_idle_log_gets_one_object_and_then_none() -> None:
    assert FlushSchedule(INTERVAL_MS, OBJECT_BYTES, IDLE_MS).due_ms(9_000, packer(), []) is None
    assert flushed().due_ms(1_001, packer(), [1]) is None
    assert flushed().due_ms(1_001, packer(), []) == 6_000
    assert flushed(files=0).due_ms(90_000, packer(), []) is None


def test_a_lone_batch_does_not_wait_for_the_object_of_an_idle_log() -> None:
    assert flushed(files=0).due_ms(1_001, packer(1), [0]) == 1_001


def test_a_lone_batch_is_due_at_once_and_others_after_the_interval() -> None:
    assert flushed(files=1).due_ms(1_001, packer(1), []) == 1_001
    assert flushed(files=2).due_ms(1_001, packer(1), []) == 1_100
    assert flushed(files=1).due_ms(1_001, packer(1), [1]) == 1_100
    assert flushed(files=1).due_ms(1_001, packer(1, 1), []) == 1_100


def test_only_a_full_object_is_due_while_two_are_in_flight() -> None:
    assert flushed().due_ms(2_000, packer(7), [8, 7]) == 1_100
    assert flushed().due_ms(2_000, packer(7), [8, 8]) is None
    assert flushed().due_ms(2_000, packer(7), [4, 4, 4, 4]) is None
