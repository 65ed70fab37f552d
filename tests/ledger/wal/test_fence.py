"""Goal: no interleaving of brokers loses an acknowledged entry. Method: a model that runs the real decisions."""

from __future__ import annotations

import uuid

import pytest

from pyspark_ledger.ledger.errors import Fenced
from pyspark_ledger.ledger.wal.fence import (
    Slot,
    acknowledged_to,
    first_live,
    is_void,
    may_sweep,
    require_epoch,
    slot_content,
    taken_over,
)
from pyspark_ledger.ledger.wal.log_object import Header
from pyspark_ledger.ledger.wal.manifest import StoreManifest
from tests.rigs.wal_model import CLAIMED, FOUND, Broker, Decisions, Model, changed, first_state

STORE = uuid.UUID(int=1)


def taker(
    name: str = "new", puts: int = 1, collections: int = 1, crashes: int = 0, window: int = 1, sweeps: int = 0
) -> Broker:
    return Broker(name, "idle", puts=puts, collections=collections, crashes=crashes, window=window, sweeps=sweeps)


@pytest.mark.thorough
@pytest.mark.parametrize("window", [1, 2, 3])
def test_no_interleaving_of_a_taker_and_its_collector_loses_anything(window: int) -> None:
    model = Model()
    assert model.explore(first_state(window, taker(window=window), puts=min(window + 1, 3), ghosts=window < 3)) == ""
    assert model.states > 1000


def test_no_interleaving_with_a_paused_collector_loses_anything() -> None:
    assert Model().explore(first_state(2, taker(window=2), puts=2, collections=1)) == ""


@pytest.mark.thorough
def test_no_interleaving_of_sweeps_deletes_a_snapshot_that_is_needed() -> None:
    assert Model().explore(first_state(1, taker(sweeps=1, crashes=1), collections=1, sweeps=1)) == ""


@pytest.mark.thorough
@pytest.mark.parametrize("window", [1, 2])
def test_no_interleaving_of_two_takers_and_a_collector_loses_anything(window: int) -> None:
    """No claim or put of a suspended taker takes a slot of the owner either: the owner would end."""
    first, second = taker("n1", window=window), taker("n2", collections=0, window=window)
    assert Model().explore(first_state(window, first, second, puts=1)) == ""


@pytest.mark.thorough
def test_no_interleaving_of_three_takers_and_a_collector_loses_anything() -> None:
    late = [taker(name, puts=0, collections=0) for name in ("n2", "n3")]
    assert Model().explore(first_state(1, taker("n1"), *late, puts=0)) == ""


@pytest.mark.thorough
def test_no_interleaving_of_two_takers_and_a_crash_loses_anything() -> None:
    first, second = taker("n1", puts=1, collections=0, crashes=1, window=2), taker("n2", collections=0, window=1)
    assert Model().explore(first_state(2, first, second, puts=2)) == ""


LOSING = {
    "no look": (Decisions(looks=False), first_state(1, taker())),
    "a look for what is stored later": (Decisions(looks_late=False), first_state(2, taker(window=2))),
    "acknowledged out of order": (Decisions(in_order=False), first_state(2, taker(window=2))),
    "one claim for a window of two": (
        Decisions(claimed_slots=lambda first, _: range(first, first + 1)),
        first_state(2, taker(window=2)),
    ),
    "a window that shrinks": (
        Decisions(taken_over=lambda before, nonce, window: changed(taken_over(before, nonce, window), window=window)),
        first_state(3, taker("n1", 0, 0, 1), taker("n2"), puts=3),
    ),
    "no object is void": (Decisions(is_void=lambda *_: False), first_state(2, taker(window=2))),
    "every 412 is a lost slot": (
        Decisions(slot_content=lambda *_: Slot.LOST),
        first_state(1, taker()),
    ),
    "a sweep of every epoch": (Decisions(may_sweep=lambda *_: True), first_state(1, taker(), sweeps=1)),
    "no look before a claim": (
        Decisions(checks_before=(CLAIMED,)),
        first_state(1, taker("n1"), taker("n2", collections=0), puts=1),
    ),
    "no look before the first put": (
        Decisions(checks_before=(FOUND,)),
        first_state(1, taker("n1"), taker("n2", collections=0), puts=1),
    ),
    "deleted before the manifest says so": (Decisions(deletes_after_manifest=False), first_state(1, taker())),
}


@pytest.mark.parametrize("variant", LOSING)
def test_the_model_finds_the_loss_of_a_wrong_decision(variant: str) -> None:
    decisions, state = LOSING[variant]
    assert Model(decisions).explore(state) != ""


def test_slot_content_compares_nonce_epoch_and_number() -> None:
    mine = Header(STORE, 3, 7, uuid.UUID(int=9), 0)
    assert slot_content(None, mine) is Slot.FREE
    assert slot_content(mine._replace(time_ms=5), mine) is Slot.MINE
    for other in (mine._replace(epoch=4), mine._replace(nonce=uuid.UUID(int=8)), mine._replace(number=8)):
        assert slot_content(other, mine) is Slot.LOST


def test_acknowledged_to_stops_at_the_first_gap() -> None:
    assert acknowledged_to(3, [3, 4, 6]) == 5
    assert acknowledged_to(3, [4]) == 3


def test_require_epoch_names_both_epochs() -> None:
    manifest = StoreManifest(str(STORE), "n", epoch=4)
    require_epoch(manifest, 4, "s3://lake/store")
    with pytest.raises(Fenced, match="s3://lake/store has epoch 4, this broker has 3"):
        require_epoch(manifest, 3, "s3://lake/store")


def test_a_taker_keeps_what_later_brokers_need() -> None:
    before = StoreManifest(str(STORE), "n", epoch=4, revision=9, first=7, window=8, settings={"logFormat": "json"})
    taken = taken_over(before, uuid.UUID(int=5), 4)
    assert (taken.epoch, taken.revision, taken.first, taken.window, taken.broker) == (5, 10, 7, 8, None)
    assert taken.settings == before.settings


def test_first_live_spares_slow_segments_and_unfinished_batches() -> None:
    assert first_live(20, [], None, 30) == 20
    assert first_live(20, [25, 12], None, 30) == 12
    assert first_live(20, [25], 11, 30) == 11
    assert first_live(40, [], None, 30) == 30


def test_sweep_takes_only_old_objects_of_lower_epochs() -> None:
    assert may_sweep(2, 3, 61, 60)
    assert not may_sweep(3, 3, 61, 60)
    assert not may_sweep(4, 3, 61, 60)
    assert not may_sweep(2, 3, 60, 60)


def test_an_object_is_void_behind_a_higher_epoch() -> None:
    assert is_void(2, 3)
    assert not is_void(3, 3)
    assert not is_void(4, 3)
