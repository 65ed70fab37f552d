"""Goal: a clock that goes back moves nothing back and stops nothing. Method: a log whose clock the test sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.log import LogRig

MINUTE, DAY = 60_000, 24 * 3600 * 1000


@pytest.fixture
def rig(store_path: Path) -> Iterator[LogRig]:
    rig = LogRig(store_path, managedLedgerMinLedgerRolloverTimeMinutes=10, managedLedgerMaxLedgerRolloverTimeMinutes=60)
    yield rig
    rig.store.close()


def stamps(rig: LogRig) -> list[int]:
    snapshot = rig.log().snapshot
    return [stamp for part in snapshot.segments for stamp in part.index().timestamps[: part.entries].tolist()]


@pytest.mark.parametrize("how", ["running", "closed", "killed"])
def test_stamps_stand_still_until_the_clock_has_caught_up(rig: LogRig, how: str) -> None:
    before = rig.now
    rig.append(b"a")
    rig.now -= DAY
    dead = None
    if how == "closed":
        rig.reopen()
    elif how == "killed":
        dead = rig.crash()
    rig.append(b"b")
    rig.now += DAY + 5
    rig.append(b"c")
    assert stamps(rig) == [before, before, before + 5]
    assert rig.contents() == [b"a", b"b", b"c"]
    assert rig.contents(start=rig.log().seek_time(before + 1)) == [b"c"]
    if dead is not None:
        dead.close()


def test_a_full_ledger_waits_no_longer_than_its_youngest_age(rig: LogRig) -> None:
    rig.append(b"a", b"b", entries=2)
    rig.now -= DAY
    rig.append(b"c", entries=2)
    assert len(rig.ids()) == 1, "full, and too young to be sealed"
    rig.now += 11 * MINUTE
    rig.append(b"d", entries=2)
    assert len(rig.ids()) == 2
    assert rig.contents() == [b"a", b"b", b"c", b"d"]


def test_age_counts_from_where_the_clock_went_back_to(rig: LogRig) -> None:
    rig.append(b"a")
    rig.now -= DAY
    rig.store.upkeep.round()
    rig.append(b"b")
    assert len(rig.ids()) == 1
    rig.now += 70 * MINUTE
    rig.append(b"c")
    assert len(rig.ids()) == 2, "an hour has gone by on this clock"


def test_age_seals_a_log_that_nobody_appends_to_any_more(rig: LogRig) -> None:
    rig.append(b"a")
    rig.now -= DAY
    rig.store.upkeep.round()
    rig.now += 70 * MINUTE
    rig.store.upkeep.round()
    assert rig.log().snapshot.segments[0].close_ms, "an hour has gone by on this clock"


def test_what_is_asked_to_be_sealed_is_sealed_by_a_clock_that_went_back(rig: LogRig) -> None:
    rig.append(b"a")
    rig.now -= DAY
    assert not rig.log().roll_over(older_than_ms=MINUTE)
    assert rig.log().roll_over()
    assert rig.log().snapshot.segments[0].close_ms


def test_nothing_expires_by_a_clock_that_went_back(rig: LogRig) -> None:
    rig.append(b"a")
    rig.retain(5, -1)
    rig.reopen()
    rig.now -= DAY
    rig.append(b"b")
    rig.store.upkeep.round()
    assert rig.contents() == [b"a", b"b"]
