"""Goal: readers apply the same batches in the same order. Method: small logs, object by object."""

from __future__ import annotations

import uuid

import pytest

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.wal.log_object import Header, LogObject, WalPart
from pyspark_ledger.ledger.wal.scan import LogScan, PayloadPlace


def logged(number: int, epoch: int, *parts: tuple[bytes, bool]) -> LogObject:
    header = Header(uuid.UUID(int=1), epoch, number, uuid.UUID(int=epoch), 0, claim=not parts)
    return LogObject(header, [(WalPart("bytes", len(data), 0, last), memoryview(data)) for data, last in parts])


def texts(scan: LogScan, *objects: LogObject) -> list[bytes]:
    batches = [batch for found in objects for batch in scan.feed(found, "the log")]
    return [b"".join(payload for _, payload in batch.parts) for batch in batches]


def test_a_batch_is_applied_with_its_last_part() -> None:
    scan = LogScan(0)
    assert texts(scan, logged(0, 1, (b"a", True), (b"b", False))) == [b"a"]
    assert texts(scan, logged(1, 1, (b"c", False))) == []
    assert texts(scan, logged(2, 1, (b"d", True), (b"e", True))) == [b"bcd", b"e"]


def test_a_batch_without_its_last_part_is_dropped_by_a_claim() -> None:
    scan = LogScan(0)
    assert texts(scan, logged(0, 1, (b"a", False)), logged(1, 2), logged(2, 2, (b"b", True))) == [b"b"]


def test_an_object_behind_a_claim_of_a_higher_epoch_is_void() -> None:
    scan = LogScan(4)
    found = texts(
        scan, logged(4, 1, (b"a", True)), logged(5, 2), logged(6, 1, (b"b", True)), logged(7, 2, (b"c", True))
    )
    assert found == [b"a", b"c"]
    assert (scan.next, scan.epoch) == (8, 2)


def test_payloads_of_a_batch_larger_than_the_memory_are_named_by_place() -> None:
    scan = LogScan(0, held_max=3)
    assert texts(scan, logged(0, 1, (b"x", True), (b"ab", False))._replace(start=100)) == [b"x"]
    (batch,) = scan.feed(logged(1, 1, (b"c", False), (b"de", False), (b"f", True), (b"g", False)), "the log")
    assert [payload for _, payload in batch.parts] == [b"ab", b"c", PayloadPlace(1, 1), PayloadPlace(1, 3)]
    assert texts(scan, logged(2, 1, (b"h", True))) == [b"gh"], "counted anew for each batch"


def test_an_object_of_another_number_is_refused() -> None:
    with pytest.raises(Corrupt, match="states number 3, expected 2"):
        texts(LogScan(2), logged(3, 1, (b"a", True)))
