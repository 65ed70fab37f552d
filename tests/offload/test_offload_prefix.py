"""Goal: a prefix of a log is offloaded, read and deleted by PIP-17's rules. Method: Pulsar's cases, one test each.

Most tests use a directory. The tests of the object stores cover S3, and faults have a file of their own.
"""

from __future__ import annotations

import threading
import uuid

import pytest

from pyspark_ledger.ledger.errors import NotFound, Refused, Unavailable
from pyspark_ledger.ledger.metadata.offload_records import Driver, OffloadAttempt
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.tiering.offloaded_segment import OffloadedSegment
from pyspark_ledger.ledger.tiering.offloader import NoOffloader
from tests.rigs.offload import HOUR, Failing, OffloadRig, offload_prefix


# testNullOffloader
def test_without_an_offloader_every_use_is_refused(rig: OffloadRig) -> None:
    payloads = rig.fill(2)
    rig.offloader = NoOffloader()
    with pytest.raises(Refused, match="no offloader is configured"):
        rig.offload()
    assert rig.contents() == payloads
    assert rig.attempts() == {}
    driver, attempt = Driver("aws-s3"), uuid.uuid4()
    for use in (
        lambda: NoOffloader().driver,
        lambda: NoOffloader().read_offloaded(1, attempt, driver),
        lambda: NoOffloader().delete_offloaded(1, attempt, driver),
    ):
        with pytest.raises(Refused, match="no offloader is configured"):
            use()


# testOffload
def test_sealed_ledgers_before_the_end_are_offloaded(rig: OffloadRig) -> None:
    payloads = rig.fill(2, 10)
    status = rig.offload()
    first, second, last = rig.ids()
    assert rig.complete() == [first, second]
    assert (status.state, status.done, status.first_left) == ("done", [first, second], Position(last, 0))
    assert rig.contents() == payloads
    assert len(rig.stored()) == 6


# testPositionOutOfRange
@pytest.mark.parametrize("position", [EARLIEST, LATEST, Position(-1, 0)])
def test_a_position_of_no_log_is_refused(rig: OffloadRig, position: Position) -> None:
    rig.fill(2)
    with pytest.raises(Refused, match="cannot be offloaded up to"):
        rig.offload(position)
    assert rig.stored() == []


# testPositionOnEdgeOfLedger
def test_a_ledger_goes_only_when_it_lies_before_the_position_wholly(rig: OffloadRig) -> None:
    rig.fill(3)
    first, second, _, _ = rig.ids()
    assert rig.offload(Position(second, 2)).first_left == Position(second, 0)
    assert rig.complete() == [first]
    rig.offload(Position(second, 3))
    assert rig.complete() == [first, second]


# testPositionOnLastEmptyLedger
def test_a_position_in_the_open_ledger_takes_all_sealed_ones(rig: OffloadRig) -> None:
    rig.fill(2)
    *sealed, last = rig.ids()
    assert rig.offload(Position(last, 0)).first_left == Position(last, 0)
    assert rig.complete() == sealed


# testTrimOccursDuringOffload
def test_a_trim_while_another_ledger_is_offloaded_changes_nothing_for_it(rig: OffloadRig) -> None:
    rig.fill(3)
    failing = Failing(rig)
    first, second, third, last = rig.ids()
    rig.cursor_at(Position(second, 0))
    rig.policy(retentionTimeInMinutes=0, retentionSizeInMB=0)
    failing.before = lambda ledger_id: rig.store.ledger("log").trim() if ledger_id == second else None
    assert rig.offload().state == "done"
    assert rig.ids() == [second, third, last]
    assert rig.complete() == [second, third]
    rig.store.offloads.cleaner.sweep()
    assert not [key for key in rig.stored() if ObjectKey.parse(key) and f"ledger-{first}" in key]


# testTrimOccursDuringOffloadLedgerDeletedBeforeOffload
def test_a_ledger_that_was_trimmed_before_its_turn_is_no_failure(rig: OffloadRig) -> None:
    rig.fill(3)
    failing = Failing(rig)
    last = rig.ids()[-1]
    rig.policy(retentionTimeInMinutes=0, retentionSizeInMB=0)
    failing.before = lambda _: rig.store.ledger("log").trim()
    status = rig.offload()
    assert (status.state, status.failure) == ("done", "")
    assert rig.ids() == [last]
    rig.store.offloads.cleaner.sweep()
    assert rig.stored() == []


# testOffloadClosedManagedLedger
def test_a_log_of_a_store_that_is_leaving_is_not_offloaded(rig: OffloadRig) -> None:
    rig.fill(1)
    rig.store.settle()
    with pytest.raises(Unavailable, match="is shutting down"):
        rig.store.offloads.offload(OffloadPrefix("log"))


# testOffloadSamePositionTwice
def test_the_same_position_twice_makes_no_second_copy(rig: OffloadRig) -> None:
    rig.fill(2)
    rig.offload()
    keys, attempts = rig.stored(), rig.attempts()
    assert rig.offload().done == []
    assert (rig.stored(), rig.attempts()) == (keys, attempts)


# testOffloadThreeFirstFails, …SecondFails, …ThirdFails
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_one_ledger_that_fails_does_not_keep_the_others(rig: OffloadRig, bad: int) -> None:
    payloads = rig.fill(3)
    *sealed, _ = rig.ids()
    Failing(rig, sealed[bad])
    status = rig.offload()
    assert status.state == "failed"
    assert f"ledger {sealed[bad]} cannot be copied today" in status.failure
    assert status.first_left == Position(sealed[bad], 0)
    assert rig.complete() == [ledger_id for ledger_id in sealed if ledger_id != sealed[bad]]
    assert rig.contents() == payloads


def test_offload_prefix_raises_the_first_failure_after_trying_all(rig: OffloadRig) -> None:
    rig.fill(3)
    first, second, third, last = rig.ids()
    Failing(rig, first, second)
    with pytest.raises(Unavailable, match=f"ledger {first} "):
        offload_prefix(rig.store.offloads, "log", Position(last, 0))
    assert rig.complete() == [third]
    rig.offloader = rig.copies
    assert offload_prefix(rig.store.offloads, "log", Position(third, 0)) == Position(last, 0)
    assert rig.complete() == [first, second, third]


# testOffloadNewML
def test_a_log_without_a_sealed_ledger_has_nothing_to_offload(rig: OffloadRig) -> None:
    rig.append(b"x")
    assert (rig.offload().state, rig.stored()) == ("done", [])
    assert rig.log("empty").name.endswith("empty")
    assert rig.offload(name="empty").done == []


# testOffloadConflict
def test_a_retry_has_a_new_uuid_and_the_old_attempt_is_cleaned(rig: OffloadRig) -> None:
    rig.fill(1)
    (sealed, _) = rig.ids()
    failing = Failing(rig, sealed)
    rig.offload()
    old = rig.attempts()[sealed]
    assert not old.complete
    failing.ledgers = ()
    rig.offload()
    new = rig.attempts()[sealed]
    assert new.complete
    assert new.attempt != old.attempt
    assert old.attempt in failing.deleted
    assert all(key.startswith(str(new.attempt)) for key in rig.stored())
    assert rig.store.metadata.unwanted.all() == []


def test_an_attempt_that_another_one_replaced_is_not_completed(rig: OffloadRig) -> None:
    rig.fill(1)
    (sealed, _) = rig.ids()
    failing = Failing(rig)
    log = rig.store.ledger("log")
    failing.before = lambda _: log.prepare_offload(sealed, OffloadAttempt(uuid.uuid4(), rig.copies.driver))
    status = rig.offload()
    assert "was completed" in status.failure
    assert rig.complete() == []
    assert rig.stored() == []


# testOffloadDelete
def test_retention_deletes_offloaded_objects_with_their_ledgers(rig: OffloadRig) -> None:
    rig.fill(2)
    rig.offload()
    rig.policy(retentionTimeInMinutes=0, retentionSizeInMB=0)
    first, second, last = rig.ids()
    assert rig.store.ledger("log").trim().ledgers == [first, second]
    assert len(rig.store.metadata.unwanted.all()) == 2
    assert rig.store.offloads.cleaner.sweep() == 2
    assert rig.stored() == []
    assert rig.ids() == [last]


def test_deleting_a_log_deletes_its_objects(rig: OffloadRig) -> None:
    rig.fill(2)
    rig.offload()
    rig.store.delete_ledger("log")
    rig.crash()
    rig.store.offloads.cleaner.sweep()
    assert rig.stored() == []
    assert rig.store.metadata.unwanted.all() == []


# testOffloadDeleteIncomplete
def test_what_an_incomplete_attempt_left_goes_with_the_ledger(rig: OffloadRig) -> None:
    rig.fill(1)
    (sealed, _) = rig.ids()
    failing = Failing(rig, sealed)
    rig.offload()
    left = ObjectKey(rig.attempts()[sealed].attempt, sealed)
    rig.objects.put(left.data_name, b"left by a crash")
    rig.policy(retentionTimeInMinutes=0, retentionSizeInMB=0)
    rig.store.ledger("log").trim()
    rig.store.offloads.cleaner.sweep()
    assert rig.stored() == []
    assert left.attempt in failing.deleted


# testDontOffloadEmpty
def test_an_empty_ledger_is_never_offloaded(rig: OffloadRig) -> None:
    rig.fill(1)
    rig.crash()  # seals the open segment; nothing is appended afterwards
    assert rig.offload().state == "done"
    assert rig.complete() == rig.ids()


# manualTriggerWhileAutoInProgress, autoTriggerWhileManualInProgress, multipleAutoTriggers
def test_one_run_at_a_time(rig: OffloadRig) -> None:
    rig.fill(2)
    failing = Failing(rig)
    inside, go_on = threading.Event(), threading.Event()

    def hold(_: int) -> None:
        inside.set()
        assert go_on.wait(30)

    failing.before = hold
    rig.store.offloads.start()
    rig.store.offloads.offload(OffloadPrefix("log"))
    assert inside.wait(30)
    with pytest.raises(Refused, match="is being offloaded already"):
        rig.store.offloads.offload(OffloadPrefix("log"))
    rig.policy(managedLedgerOffloadThresholdInBytes=0)
    rig.store.offloads.consider(rig.store.ledger("log").name)
    rig.store.offloads.consider(rig.store.ledger("log").name)
    assert not rig.store.offloads._waiting
    go_on.set()
    with rig.store.offloads._arrival:
        rig.store.offloads._arrival.wait_for(lambda: not rig.store.offloads._runs[rig.log().name].active, 30)
    assert len(failing.attempts) == 2
    assert rig.complete() == rig.ids()[:2]


# testFailByZk
def test_a_failed_metadata_write_never_completes_and_keeps_the_objects(
    rig: OffloadRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = rig.fill(1)
    (sealed, _) = rig.ids()
    real = rig.store.metadata.update_ledger

    def fail(record: object, info: object, **rest: object) -> object:
        if any(row.listed().offloadContext.complete for row in rest.get("put", ())):  # type: ignore[attr-defined]
            raise Unavailable("the metadata cannot be written now")
        return real(record, info, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(rig.store.metadata, "update_ledger", fail)
    assert "cannot be written now" in rig.offload().failure
    assert rig.complete() == []
    assert len(rig.stored()) == 3, "it is unknown whether the record was written, so the objects stay"
    rig.now += 100 * HOUR
    rig.store.ledger("log").trim()
    assert sealed in rig.local()
    monkeypatch.undo()
    rig.offload()
    assert rig.complete() == [sealed]
    assert len(rig.stored()) == 3, "the objects of the first attempt are deleted"
    assert rig.contents() == payloads


def test_a_run_is_cancelled_between_ledgers_and_inside_of_one(rig: OffloadRig) -> None:
    rig.fill(3)
    failing = Failing(rig)
    failing.before = lambda _: rig.store.offloads.offload(OffloadPrefix("log", cancel=True))
    status = rig.offload()
    assert status.state == "cancelled"
    assert rig.complete() == []
    assert rig.stored() == []
    failing.before = lambda _: None
    assert rig.offload().state == "done"


def test_a_ledger_that_is_gone_is_not_prepared(rig: OffloadRig) -> None:
    rig.fill(1)
    with pytest.raises(NotFound, match="has no segment 99"):
        rig.store.ledger("log").prepare_offload(99, OffloadAttempt(uuid.uuid4(), rig.copies.driver))
    with pytest.raises(Refused, match="is open"):
        rig.store.ledger("log").prepare_offload(rig.ids()[-1], OffloadAttempt(uuid.uuid4(), rig.copies.driver))


# OffloadPrefixReadTest.testOffloadRead
def test_each_ledger_is_opened_once_however_often_it_is_read(rig: OffloadRig) -> None:
    payloads = rig.fill(3)
    rig.offload()
    rig.now += 5 * HOUR
    rig.store.ledger("log").trim()
    opened: list[int] = []
    real = rig.copies.read_offloaded

    def counted(ledger_id: int, *rest: object) -> object:
        opened.append(ledger_id)
        return real(ledger_id, *rest)  # type: ignore[arg-type]

    rig.copies.read_offloaded = counted  # type: ignore[method-assign, assignment]
    assert rig.contents() == rig.contents() == payloads
    assert opened == rig.ids()[:3]


def test_a_handle_is_made_anew_when_the_offloader_is_another(rig: OffloadRig) -> None:
    rig.fill(1)
    rig.offload()
    segment = rig.store.ledger("log").snapshot.segments[0].offloaded
    assert isinstance(segment, OffloadedSegment)
    first = segment._opened()
    assert segment._opened() is first
    other = NoOffloader()
    segment._offloader = lambda: other
    with pytest.raises(Refused, match="cannot be read"):
        segment.read(0, 1)
