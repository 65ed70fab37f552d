"""Goal: the record of a direct segment keeps the time of its stamps and the mark of its index objects, at any place."""

from __future__ import annotations

import uuid

from pyspark_ledger.ledger.metadata.offload_records import Driver, OffloadAttempt
from pyspark_ledger.ledger.metadata.segment_records import LedgerInfo, SegmentRecord
from tests.rigs.log import LogRig, rig

__all__ = ["rig"]
PLACE = Driver("aws-s3", {"bucket": "here", "region": "r"})
ATTEMPT = uuid.UUID(int=7 << 100)


def stored(attempt: OffloadAttempt) -> OffloadAttempt | None:
    listed = LedgerInfo(ledgerId=3)
    attempt.put(listed)
    return OffloadAttempt.of(LedgerInfo.FromString(listed.SerializeToString()))


def test_direct_attempt_is_stored_with_time_and_mark() -> None:
    attempt = OffloadAttempt.direct(ATTEMPT, PLACE, 1_234)
    assert stored(attempt) == attempt
    assert (attempt.complete, attempt.local_deleted, attempt.stamp_time_ms, attempt.lacks_indexes) == (
        True,
        True,
        1_234,
        True,
    )
    done = attempt.with_indexes()
    assert stored(done) == done
    assert (done.stamp_time_ms, done.lacks_indexes, done.driver.properties) == (
        1_234,
        False,
        {**PLACE.properties, "stampTime": "1234"},
    )
    plain = OffloadAttempt(ATTEMPT, PLACE)
    assert (plain.stamp_time_ms, plain.lacks_indexes) == (None, False)


def test_direct_attempt_at_another_place_keeps_time_and_mark() -> None:
    there = Driver("filesystem", {"address": "file:///there"})
    moved = OffloadAttempt.direct(ATTEMPT, PLACE, 1_234).at(there)
    assert moved == OffloadAttempt.direct(ATTEMPT, there, 1_234)
    assert OffloadAttempt(ATTEMPT, PLACE).at(there) == OffloadAttempt(ATTEMPT, there)


def test_a_segment_listed_as_remote_has_no_unwanted_local_file(rig: LogRig) -> None:
    rig.append(b"one")
    metadata, name = rig.store.metadata, rig.store.ledger("log").name
    (ledger_id,) = metadata.allocate_ledger_ids(1)
    assert metadata.unwanted_files.all()[ledger_id] == "made"
    listed = LedgerInfo(ledgerId=ledger_id, entries=1, size=1, timestamp=1)
    OffloadAttempt.direct(ATTEMPT, PLACE, 1).put(listed)
    record = metadata.ledger(name)
    row = SegmentRecord(ledger_id, 512, 1, 1, 200, 1, 1, listed.SerializeToString())
    metadata.update_ledger(record, record.info, put=[row])
    assert ledger_id not in metadata.unwanted_files.all()
