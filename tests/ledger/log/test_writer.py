"""Goal: two groups in flight fail, move and answer in order. Method: a real log whose device is held and made to fail
while the next group is written; random faults under many appends.
"""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.database.epoch_file import EpochFile
from pyspark_ledger.ledger.errors import Fenced, LedgerError, Unavailable
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.store.store import Store
from tests.rigs.entry import entry
from tests.rigs.log import contents
from tests.rigs.store import commit, create, open_store


class HeldSync:
    """The sync of one log's open file waits until it is let go, and may then fail as often as `failures` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = disk.sync_data
        self._held = True
        self.entered, self.free = threading.Event(), threading.Event()
        self.failures = 0
        monkeypatch.setattr(disk, "sync_data", self)

    def __call__(self, fd: int) -> None:
        if self._held:
            self._held = False
            self.entered.set()
            assert self.free.wait(60)
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, "Input/output error")
        self._real(fd)


def in_flight(log: ManagedLedger, held: HeldSync) -> list[Future[Position]]:
    """Leave an append inside its sync, and a second one written behind it."""
    futures = [log.append([entry(b"a1"), entry(b"a2")])]
    assert held.entered.wait(60)
    futures.append(log.append([entry(b"b")]))
    log_file = log._writer._open
    until = time.monotonic() + 60
    while log_file.entries < 4:  # type: ignore[union-attr]
        assert time.monotonic() < until
        time.sleep(0.001)
    return futures


def test_room_of_a_full_segment_is_that_of_the_next(store: Store) -> None:
    log = create(store, "full", entries=4)
    found = []
    for number in range(5):
        log.append([entry(b"%d" % number)]).result(60)
        found.append(log._writer.room().entries)
    assert found == [3, 2, 1, 4, 3]


def test_both_groups_move_to_the_next_ledger_in_order_when_a_sync_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = create(store, entries=100)
    before = log.append([entry(b"before")]).result(60)
    held = HeldSync(monkeypatch)
    held.failures = 1
    futures = in_flight(log, held)
    assert contents(log) == [b"before"], "written is not acknowledged"
    held.free.set()
    positions = [future.result(60) for future in futures]
    moved = positions[0].ledger_id
    assert moved > before.ledger_id
    assert positions == [Position(moved, 0), Position(moved, 2)]
    assert contents(log) == [b"before", b"a1", b"a2", b"b"]
    assert [segment.entries for segment in log.describe().segments] == [1, 3]


def test_append_reported_as_failed_never_appears_with_a_later_sync(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch cannot be read after the first sync: its entries are in the file, below those of the second group."""
    log = create(store, entries=100)
    log.append([entry(b"before")]).result(60)
    held = HeldSync(monkeypatch)
    futures = in_flight(log, held)
    asked: list[EpochFile] = []

    def unreadable(file: EpochFile) -> bool:
        asked.append(file)
        if len(asked) == 1:
            raise Unavailable("metadata.sqlite cannot be read")
        return True

    monkeypatch.setattr(EpochFile, "is_current", unreadable)
    held.free.set()
    with pytest.raises(Unavailable, match="cannot be read"):
        futures[0].result(60)
    futures[1].result(60)
    assert contents(log) == [b"before", b"b"]


def test_a_taken_over_broker_acknowledges_neither_of_two_groups_in_flight(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = open_store(store_path)
    log = create(old, entries=100)
    log.append([entry(b"before")]).result(60)
    held = HeldSync(monkeypatch)
    futures = in_flight(log, held)
    new = open_store(store_path, take_over=True)
    new.ledger("log").append([entry(b"new")]).result(60)
    found = contents(new.ledger("log"))
    held.free.set()
    for future in futures:
        with pytest.raises(Fenced):
            future.result(60)
    old.close()
    assert contents(new.ledger("log")) == found
    new.close()


def test_run_waits_for_earlier_groups_and_later_appends_wait_for_the_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = create(store, entries=100)
    log.append([entry(b"before")]).result(60)
    held = HeldSync(monkeypatch)
    futures = [log.append([entry(b"a")])]
    assert held.entered.wait(60)
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(commit(store, 0, [b"r1", b"r2"], run=5)))
    thread.start()
    held.free.set()
    thread.join(60)
    futures.append(log.append([entry(b"z")]))
    for future in futures:
        future.result(60)
    assert contents(log) == [b"before", b"a", b"r1", b"r2", b"z"]


def raises(*_: object, **_named: object) -> None:
    raise RuntimeError("bit flip")


def test_a_log_whose_answer_raises_is_sealed_where_it_was_acknowledged(
    store: Store, store_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log, other = create(store, entries=100), create(store, "other", entries=100)
    log.append([entry(b"before")]).result(60)
    held = HeldSync(monkeypatch)
    futures = in_flight(log, held)
    monkeypatch.setattr(log._writer, "settle", raises)
    held.free.set()
    for future in futures:
        with pytest.raises(Unavailable, match=r"log' accepts no append .*bit flip.* is unknown"):
            future.result(60)
    for change in (lambda: log.append([entry(b"late")]).result(60), log.roll_over, log.terminate):
        with pytest.raises(Unavailable, match=r"log' accepts no append until its broker is restarted: .*bit flip"):
            change()
    deadline = time.monotonic() + 60
    while log._writer.given_up is None or log._queue._syncing:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert contents(log) == [b"before"]
    (segment,) = log.describe().segments
    assert (segment.entries, segment.close_ms > 0) == (1, True), "sealed"
    assert "is closed for appends because of an unexpected error" in caplog.text
    assert list(store.given_up()) == [log.name]
    other.append([entry(b"other")]).result(60)
    store.close()
    again = open_store(store_path)
    assert contents(again.ledger("log")) == [b"before"]
    again.ledger("log").append([entry(b"after")]).result(60)
    assert contents(again.ledger("log")) == [b"before", b"after"]
    assert not again.given_up()
    again.close()


def test_a_sync_that_fails_in_an_odd_way_moves_the_log_to_a_new_ledger(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = create(store, entries=100)
    log.append([entry(b"before")]).result(60)
    errors, real = [RuntimeError("bit flip")], disk.sync_data

    def once(fd: int) -> None:
        if errors:
            raise errors.pop()
        real(fd)

    monkeypatch.setattr(disk, "sync_data", once)
    for number in range(2):
        log.append([entry(b"after%d" % number)]).result(60)
    assert contents(log) == [b"before", b"after0", b"after1"]
    assert [segment.entries for segment in log.describe().segments] == [1, 2]


def test_an_append_whose_epoch_cannot_be_checked_is_unknown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    log = create(store, entries=100)
    log.append([entry(b"before")]).result(60)
    with monkeypatch.context() as patch:
        patch.setattr(store._sync_pool, "_check_fenced", raises)
        with pytest.raises(Unavailable, match=r"bit flip.* is unknown whether the append is in the log"):
            log.append([entry(b"unknown")]).result(60)
    log.append([entry(b"after")]).result(60)
    assert contents(log) == [b"before", b"after"]
    assert [segment.entries for segment in log.describe().segments] == [1, 1]


def test_a_log_that_an_odd_error_kept_from_its_seal_is_recovered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would have two open ledgers in its record, and could never be opened again."""
    log = create(store, entries=100)
    log.append([entry(b"before")]).result(60)
    with monkeypatch.context() as patch:
        patch.setattr(log._writer.list, "seal", raises)
        with pytest.raises(Unavailable, match="bit flip"):
            log.roll_over()
    log.append([entry(b"after")]).result(60)
    assert contents(log) == [b"before", b"after"]


def test_a_log_that_cannot_be_sealed_at_its_close_keeps_no_other_open(
    store: Store, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, other = create(store, entries=100), create(store, "other", entries=100)
    for one in (log, other):
        one.append([entry(b"before")]).result(60)
    monkeypatch.setattr(log._writer.list, "seal", raises)
    store.close()
    again = open_store(store_path)
    assert [contents(again.ledger(name)) for name in ("log", "other")] == [[b"before"]] * 2
    again.close()


@pytest.mark.parametrize("seed", range(12))
def test_random_faults_lose_nothing_double_nothing_and_keep_the_order(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Every third call of the device fails or so: what was acknowledged is there once, in the order of the calls."""
    dice = random.Random(seed)
    store = open_store(store_path)
    log = create(store, entries=dice.choice([3, 10, 100]))
    lock = threading.Lock()

    def spoiled(real: Callable[..., object], chance: float) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            with lock:
                bad = dice.random() < chance
            if bad:
                raise OSError(errno.EIO, "Input/output error")
            return real(*arguments, **named)

        return call

    with monkeypatch.context() as patch:
        for name, chance in (("sync_data", 0.2), ("write_all", 0.1), ("preallocate", 0.1)):
            patch.setattr(disk, name, spoiled(getattr(disk, name), chance))
        futures = [log.append([entry(b"%d" % i), entry(b"%d+" % i)]) for i in range(60)]
        errors = [future.exception(30) for future in futures]
    kept = [i for i, error in enumerate(errors) if error is None]
    assert all(isinstance(error, LedgerError) for error in errors if error is not None)
    positions = [futures[i].result() for i in kept]
    assert positions == sorted(set(positions))
    expected = [payload for i in kept for payload in (b"%d" % i, b"%d+" % i)]
    assert contents(log) == expected
    log.append([entry(b"after")]).result(60)
    store.close()
    again = open_store(store_path)
    assert contents(again.ledger("log")) == [*expected, b"after"]
    again.close()
