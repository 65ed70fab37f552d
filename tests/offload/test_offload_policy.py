"""Goal: due segments are offloaded automatically, and their local copies are deleted when due.

Method: a clock that is moved by hand, and rounds of the broker's background tasks.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy
from tests.rigs.offload import HOUR, Failing, OffloadRig


# testAutoTriggerOffload
def test_size_lets_the_oldest_ledgers_go_by_themselves(rig: OffloadRig) -> None:
    rig.fill(4, size=100)
    sizes = [part.size_bytes for part in rig.store.ledger("log").snapshot.segments]
    rig.policy(managedLedgerOffloadThresholdInBytes=sizes[3] + sizes[2])
    rig.upkeep()
    assert rig.complete() == rig.ids()[:2]


def test_age_lets_a_ledger_go_when_it_is_reached(rig: OffloadRig) -> None:
    rig.fill(2)
    rig.policy(offloadTimeInMinutes=10)
    rig.upkeep()
    assert rig.complete() == []
    rig.now += 10 * 60_000 - 1
    rig.upkeep()
    assert rig.complete() == []
    rig.now += 1
    rig.upkeep()
    assert rig.complete() == rig.ids()[:2]


# offloadAsSoonAsClosed
def test_a_threshold_of_nothing_offloads_at_the_seal(rig: OffloadRig) -> None:
    rig.append(b"x")
    rig.policy(managedLedgerOffloadThresholdInBytes=0)
    rig.append(b"y", b"z", b"1")
    rig.store.upkeep._maintain(rig.store.ledger("log").name)  # as the seal triggers it
    rig.store.offloads.round()
    assert rig.complete() == rig.ids()[:1]


# testBookkeeperFirstOffloadRead
def test_the_local_copy_is_read_until_it_is_deleted(rig: OffloadRig) -> None:
    payloads = rig.fill(2)
    rig.offload()
    assert rig.contents() == payloads
    assert rig.copies.windows.requests == 0
    rig.now += 5 * HOUR
    rig.store.ledger("log").trim()
    assert rig.contents() == payloads
    assert rig.copies.windows.requests > 0


def test_tiered_first_reads_the_objects_and_falls_back_on_the_local_copy(make_rig: Callable[..., OffloadRig]) -> None:
    rig = make_rig(managedLedgerDataReadPriority="tiered-storage-first")
    payloads = rig.fill(2)
    rig.offload()
    assert rig.contents() == payloads
    assert rig.copies.windows.requests > 0
    rig.objects.delete(rig.stored())
    rig.crash()
    assert rig.contents() == payloads


def test_the_local_copy_goes_after_the_lag_and_not_before(rig: OffloadRig) -> None:
    rig.fill(2)
    rig.offload()
    rig.now += 4 * HOUR - 1
    assert rig.store.ledger("log").trim().local == []
    rig.now += 1
    assert rig.store.ledger("log").trim().local == rig.ids()[:2]
    assert rig.local() == {rig.ids()[2]}
    assert rig.store.ledger("log").trim().local == []


def test_a_lag_of_minus_one_keeps_the_local_copy(rig: OffloadRig) -> None:
    rig.fill(1)
    rig.offload()
    rig.policy(managedLedgerOffloadDeletionLagInMillis=-1)
    rig.now += 1000 * HOUR
    assert rig.store.ledger("log").trim().local == []


def test_what_is_not_offloaded_keeps_its_local_copy_whatever_its_age(rig: OffloadRig) -> None:
    rig.fill(2)
    first, second, last = rig.ids()
    rig.offload(Position(second, 0))
    rig.now += 1000 * HOUR
    rig.store.ledger("log").trim()
    assert rig.local() == {second, last}
    assert first not in rig.local()


def test_retention_waits_for_the_offload_where_the_policy_says_so(rig: OffloadRig) -> None:
    rig.fill(2)
    first, second, last = rig.ids()
    Failing(rig, first)
    rig.policy(retentionTimeInMinutes=60, offloadTimeInMinutes=10, retentionWaitsForOffload=1)
    rig.now += 2 * HOUR
    rig.upkeep()
    assert rig.ids() == [first, second, last]
    rig.policy(retentionWaitsForOffload=0)
    rig.upkeep()
    assert rig.ids() == [last]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"retentionTimeInMinutes": 10, "offloadTimeInMinutes": 10}, "deleted before .* 600"),
        ({"retentionTimeInMinutes": 10, "managedLedgerOffloadThresholdInSeconds": 601}, "deleted before .* 601"),
        ({"retentionSizeInMB": 1, "offloadSizeInMB": 1}, "deleted before their offload: retentionSizeInMB is 1"),
        ({"retentionTimeInMinutes": 0, "retentionSizeInMB": 0, "offloadSizeInMB": 0}, "deleted before"),
        ({"offloadTimeInMinutes": 1, "managedLedgerOffloadThresholdInSeconds": 61}, "two values"),
        ({"offloadTimeInMinutes": -2}, "is -2, expected an integer from -1"),
    ],
)
def test_what_would_be_deleted_before_it_is_offloaded_is_refused(
    rig: OffloadRig, values: dict[str, int], message: str
) -> None:
    rig.fill(1)
    with pytest.raises(Refused, match=message):
        rig.policy(**values)
    assert rig.store.policies.change(ChangePolicy("log")).stated == {}


def test_the_seeds_names_are_kept_under_the_later_ones(rig: OffloadRig) -> None:
    rig.fill(1)
    found = rig.store.policies.change(ChangePolicy("log", values={"offloadTimeInMinutes": 2, "offloadSizeInMB": 3}))
    assert found.stated == {
        "managedLedgerOffloadThresholdInSeconds": 120,
        "managedLedgerOffloadThresholdInBytes": 3 * 1024 * 1024,
    }
    left = rig.store.policies.change(ChangePolicy("log", forget=["offloadTimeInMinutes"])).stated
    assert left == {"managedLedgerOffloadThresholdInBytes": 3 * 1024 * 1024}
