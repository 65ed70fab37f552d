"""Goal: a bucket that fails costs the others nothing, and no needed object is deleted. Method: a scripted offloader."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import LedgerError, Refused, Unavailable
from pyspark_ledger.ledger.metadata.offload_records import Driver, OffloadAttempt
from pyspark_ledger.ledger.metadata.unwanted_files import UnwantedObjects
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.tiering.object_cleaner import ROUND_MS, ObjectCleaner
from tests.rigs.entry import entry

A, B = (Driver("aws-s3", {"bucket": name}) for name in "ab")
MINUTE = 60_000


class Buckets:
    """Offloader that records deletions. `effect` may raise an error, or let time pass."""

    def __init__(self, effect: Callable[[str], object] = lambda _: None) -> None:
        self.effect = effect
        self.asked: list[str] = []
        self.driver = B

    def delete_offloaded(self, ledger_id: int, attempt: uuid.UUID, driver: Driver) -> None:
        self.asked.append(driver.properties["bucket"])
        self.effect(driver.properties["bucket"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", settings=Settings(), clock=system_clock_ms, create=True)


def cleaner(store: Store, buckets: Any, running: Callable[[], Collection[uuid.UUID]] = set, now: Any = None) -> Any:
    clock = now or [0]
    return ObjectCleaner(
        store.metadata, lambda: buckets, running=running, order=nullcontext(), monotonic=lambda: clock[0]
    )


def put(store: Store, *drivers: Driver) -> None:
    store.metadata.unwanted.put(UnwantedObjects("log", number, uuid.uuid4(), at) for number, at in enumerate(drivers))


def failing(name: str, error: LedgerError | OSError) -> Callable[[str], None]:
    def effect(bucket: str) -> None:
        if bucket == name:
            raise error

    return effect


@pytest.mark.parametrize("error", [Unavailable("no answer"), OSError("not mounted")])
def test_bucket_that_fails_is_asked_once_and_rests_longer_each_time(store: Store, error: Any) -> None:
    put(store, A, A, A, B, B)
    now, buckets = [0], Buckets(failing("a", error))
    cleaning = cleaner(store, buckets, now=now)
    assert cleaning.sweep() == 2
    assert buckets.asked.count("a") == 1
    for rest_ms in (MINUTE, 2 * MINUTE, 4 * MINUTE):
        buckets.asked.clear()
        now[0] += rest_ms - 1
        assert (cleaning.sweep(), buckets.asked) == (0, [])
        now[0] += 1
        assert (cleaning.sweep(), buckets.asked) == (0, ["a"])
    now[0] += 8 * MINUTE
    buckets.effect = lambda _: None
    assert cleaning.sweep() == 3
    assert store.metadata.unwanted.all() == []


def test_request_of_a_user_does_not_wait_for_the_rest(store: Store) -> None:
    put(store, A)
    buckets = Buckets(failing("a", Unavailable("no answer")))
    cleaning = cleaner(store, buckets)
    cleaning.sweep()
    buckets.effect = lambda _: None
    assert cleaning.sweep() == 0
    assert cleaning.sweep(rested=False) == 1


def test_slow_bucket_gets_a_minute_of_each_round(store: Store) -> None:
    put(store, A, A, A, A, B)
    now = [0]

    def slow(bucket: str) -> None:
        now[0] += ROUND_MS // 2 if bucket == "a" else 0

    cleaning = cleaner(store, Buckets(slow), now=now)
    assert [cleaning.sweep() for _ in range(3)] == [3, 2, 0]


def test_refused_objects_do_not_keep_the_others_of_their_bucket(store: Store) -> None:
    put(store, A, A)
    buckets = Buckets()
    buckets.effect = lambda _: failing("a", Refused("of the original"))("a") if len(buckets.asked) == 1 else None
    assert cleaner(store, buckets).sweep() == 1


def test_attempt_that_completes_during_the_round_is_kept(store: Store) -> None:
    log = store.create_ledger(CreateLedger("log"))
    log.append([entry(b"x")]).result()
    sealed = log.snapshot.segments[0].ledger_id
    log.roll_over()
    attempt = uuid.uuid4()
    log.prepare_offload(sealed, OffloadAttempt(attempt, A))
    buckets = Buckets()

    def running() -> set[uuid.UUID]:
        log.complete_offload(sealed, attempt)  # the upload ended after the cleaner had read the records
        return set()

    cleaner(store, buckets, running).sweep_left()
    assert buckets.asked == []


def test_after_the_stop_nothing_is_deleted_or_recorded(store: Store) -> None:
    put(store, A, A)
    buckets = Buckets()
    cleaning = cleaner(store, buckets)
    buckets.effect = lambda _: cleaning.stop()
    assert (cleaning.sweep(), buckets.asked) == (0, ["a"])
    assert (cleaning.sweep(), len(store.metadata.unwanted.all())) == (0, 2)
