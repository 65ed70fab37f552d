"""Goal: while many ledgers are synced, an append is acknowledged in order, and only after the sync of its own ledger. A
fault of one ledger's file harms no other ledger.

Method: one store whose syncs are held, fail at random or fail in an odd way; a process that is killed while it appends.
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.segment import file_syncs
from pyspark_ledger.ledger.segment.file_syncs import Ended, FileSyncs
from pyspark_ledger.ledger.store.store import Store
from tests.rigs.entry import entry
from tests.rigs.log import contents
from tests.rigs.store import create, open_store

WAIT, LEDGERS = 60, 24


@pytest.fixture
def store(store_path: Path) -> Iterator[Store]:
    store = open_store(store_path)
    yield store
    store.close()


def ledgers(store: Store, entries: int = 100) -> list[ManagedLedger]:
    return [create(store, f"log-{number}", entries) for number in range(LEDGERS)]


def fd_of(log: ManagedLedger) -> int:
    opened = log._writer.opened
    assert opened is not None
    return opened._fd


class HeldFile:
    """The sync of one file waits until `free`, and then raises `error` if it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fd: int, error: Exception | None) -> None:
        self.free = threading.Event()
        self._real, self._fd, self._error = disk.sync_data, fd, error
        monkeypatch.setattr(disk, "sync_data", self)

    def __call__(self, fd: int) -> None:
        if fd == self._fd:
            assert self.free.wait(WAIT)
            self._fd = -1
            if self._error is not None:
                raise self._error
        self._real(fd)


@pytest.mark.parametrize("error", [None, OSError(errno.EIO, "Input/output error"), RuntimeError("bit flip")], ids=repr)
def test_a_held_file_keeps_its_own_appends_waiting_and_fails_alone(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    monkeypatch.setattr(file_syncs, "_CALLS", {})  # so that threads sync the files, through `disk.sync_data`
    store = open_store(store_path)
    logs = ledgers(store)
    for log in logs:
        log.append([entry(b"before")]).result(WAIT)
    held, others = logs[7], logs[:7] + logs[8:]
    first = [log.snapshot.end.ledger_id for log in logs]
    file = HeldFile(monkeypatch, fd_of(held), error)
    waiting = [log.append([entry(b"a")]) for log in logs]
    waiting[7:8] = [waiting[7], held.append([entry(b"b")])]
    for log in others:
        log.append([entry(b"b")]).result(WAIT)
    assert all(contents(log) == [b"before", b"a", b"b"] for log in others)
    assert [future.done() for future in waiting[7:9]] == [False, False]
    assert contents(held) == [b"before"], "written is not acknowledged"
    file.free.set()
    positions = [future.result(WAIT) for future in waiting]
    assert positions[7] < positions[8]
    assert all(contents(log) == [b"before", b"a", b"b"] for log in logs)
    moved = [log.snapshot.end.ledger_id != ledger_id for log, ledger_id in zip(logs, first, strict=True)]
    assert moved == [log is held and error is not None for log in logs]
    store.close()
    again = open_store(store_path)
    assert all(contents(again.ledger(log.name)) == [b"before", b"a", b"b"] for log in logs)
    again.close()


def test_a_lost_result_of_all_syncs_moves_every_ledger_and_loses_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have reported the error of a file in a result that was lost, so no file is synced again."""
    logs, lost, real = ledgers(store), [], FileSyncs.ended

    def ended(self: FileSyncs) -> Ended:
        if len(self._submitted) > 5 and not lost:
            lost.extend(self._submitted)
            raise MemoryError
        return real(self)

    monkeypatch.setattr(FileSyncs, "ended", ended)
    for number in range(20):
        for future in [log.append([entry(b"%d" % number)]) for log in logs]:
            future.result(WAIT)
        if lost:
            break
    assert lost or not FileSyncs(-1).by_kernel
    assert all(contents(log) == [b"%d" % i for i in range(number + 1)] for log in logs)
    assert sum(len(log.describe().segments) > 1 for log in logs) == len(lost)
    assert not store.given_up()


@pytest.mark.thorough
@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_random_faults_of_many_ledgers_lose_nothing_and_keep_each_order(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, kernel: bool
) -> None:
    dice, lock = random.Random(seed), threading.Lock()
    if not kernel:
        monkeypatch.setattr(file_syncs, "_CALLS", {})
    store = open_store(store_path)
    logs = ledgers(store, entries=10)

    def bad(chance: float) -> bool:
        with lock:
            return dice.random() < chance

    def spoiled(real: Callable[..., object], chance: float) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if bad(chance):
                raise OSError(errno.EIO, "Input/output error")
            return real(*arguments)

        return call

    def ended(self: FileSyncs, real: Callable[[FileSyncs], Ended] = FileSyncs.ended) -> Ended:
        return [(number, OSError(errno.EIO, "bad") if bad(0.1) else error) for number, error in real(self)]

    with monkeypatch.context() as patch:
        for name, chance in (("sync_data", 0.05), ("write_all", 0.02)):
            patch.setattr(disk, name, spoiled(getattr(disk, name), chance))
        patch.setattr(FileSyncs, "ended", ended)
        futures = [[log.append([entry(b"%d" % i), entry(b"%d+" % i)]) for log in logs] for i in range(20)]
        errors = [[future.exception(WAIT) for future in group] for group in futures]
    assert all(isinstance(error, LedgerError) for group in errors for error in group if error is not None)
    expected = []
    for number, log in enumerate(logs):
        kept = [i for i, group in enumerate(errors) if group[number] is None]
        positions = [futures[i][number].result() for i in kept]
        assert positions == sorted(set(positions))
        expected.append([payload for i in kept for payload in (b"%d" % i, b"%d+" % i)])
        assert contents(log) == expected[-1]
    store.close()
    again = open_store(store_path)
    assert [contents(again.ledger(log.name)) for log in logs] == expected
    again.close()


def test_a_fence_is_told_to_every_ledger_in_flight(store_path: Path) -> None:
    old = open_store(store_path)
    logs = ledgers(old)
    for log in logs:
        log.append([entry(b"before")]).result(WAIT)
    new = open_store(store_path, take_over=True)
    for future in [log.append([entry(b"late")]) for log in logs]:
        with pytest.raises(LedgerError):
            future.result(WAIT)
    old.close()
    assert all(contents(new.ledger(log.name)) == [b"before"] for log in logs)
    new.close()


_APPENDING = """
import sys
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from tests.rigs.entry import entry
from tests.rigs.store import create, open_store

store = open_store(Path(sys.argv[1]), take_over=True)
logs = [create(store, f"log-{number}", 100) for number in range(int(sys.argv[2]))]
answered = SimpleQueue()
sent = [log.snapshot.rows for log in logs]

def send(number):
    payload, sent[number] = sent[number], sent[number] + 1
    future = logs[number].append([entry(b"%d" % payload)])
    future.add_done_callback(lambda done: answered.put((number, payload, done)))

for number in range(len(logs)):
    for _ in range(3):
        send(number)
while True:
    number, payload, future = answered.get()
    future.result()
    print(number, payload, flush=True)
    send(number)
"""


@pytest.mark.fault
def test_killed_process_keeps_the_acknowledged_appends_of_many_ledgers(store_path: Path) -> None:
    dice = random.Random(7)
    for _ in range(8):
        command = [sys.executable, "-c", _APPENDING, str(store_path), str(LEDGERS)]
        acknowledged = [-1] * LEDGERS
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."}
        ) as child:
            assert child.stdout is not None
            for _ in range(dice.randrange(1, 2000)):
                number, payload = map(int, child.stdout.readline().split())
                assert payload > acknowledged[number], "acknowledged in order"
                acknowledged[number] = payload
            child.kill()
            for line in child.stdout:
                if line.endswith("\n"):
                    number, payload = map(int, line.split())
                    acknowledged[number] = payload
        store = open_store(store_path, take_over=True)
        for number in range(LEDGERS):
            found = contents(store.ledger(f"log-{number}"))
            assert found == [b"%d" % i for i in range(len(found))]
            assert len(found) > acknowledged[number]
        store.close()
