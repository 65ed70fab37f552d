"""Goal: a batch over several ledgers is in them once and whole, after any kill, as its first commit routed it.

Method: a child commits and kills itself at every step. The parent opens the store and runs the batch again with its
rows routed differently.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import NotFound, Refused, Terminated
from pyspark_ledger.ledger.ownership import OwnerChange
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.actions import AskEnd, CreateLedger, StopBroker
from pyspark_ledger.ledger.protocol.commits import AbortRun, CommitRun, CommitRuns, LedgerParts
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from tests.rigs import log as log_rig
from tests.rigs.entry import entry
from tests.rigs.promotion import equal_offsets
from tests.rigs.store import create, open_store, stage

NAMES = ("a", "b", "c")

# Commits batch 7 as the parent has staged it, and kills itself at step sys.argv[2]; says what it was told.
COMMIT = """
import os, signal, sys
from pathlib import Path
import msgspec
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.metadata.manifest_records import ManifestRecords
from pyspark_ledger.ledger.ownership import OwnerChange
from pyspark_ledger.ledger.protocol.commits import (CommitRuns)
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.log.staging.area import StagingArea
from pyspark_ledger.ledger.store.store import Store

last, count = int(sys.argv[2]), 0

def step():
    global count
    count += 1
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)

def watched(kind, name):
    real = getattr(kind, name)
    def call(*arguments):
        step()
        answer = real(*arguments)
        if name == "commit_run":
            answer.result()
        step()
        return answer
    setattr(kind, name, call)

for kind, name in ((StagingArea, "sync"), (ManifestRecords, "put"), (ManagedLedger, "commit_run"),
                   (ManifestRecords, "finish"), (StagingArea, "remove"), (StagingArea, "sweep_before")):
    watched(kind, name)
store = Store.open(Path(sys.argv[1]), settings=Settings(), clock=lambda: 1, take_over=OwnerChange.BROKER)
request = msgspec.json.decode(sys.stdin.buffer.read(), type=CommitRuns)
answer = store.commits.commit_several(request)
print("committed", sorted(answer.runs), flush=True)
os._exit(0)
"""


def open_ledgers(path: Path) -> Store:
    store = open_store(path, take_over=True)
    for name in NAMES:
        create(store, name, entries=3)
    return store


@pytest.fixture
def store(store_path: Path) -> Iterator[Store]:
    store = open_ledgers(store_path)
    yield store
    store.close()


def staged(store: Store, batch: int, routed: dict[str, list[str]]) -> CommitRuns:
    runs = [
        LedgerParts(name, [stage(store, "q", batch, [payload.encode()], batch) for payload in rows])
        for name, rows in routed.items()
    ]
    return CommitRuns("q", batch, 7, batch, runs, origin=equal_offsets(batch))


def contents(store: Store) -> dict[str, list[str]]:
    return {name: [payload.decode() for payload in log_rig.contents(store.ledger(name))] for name in NAMES}


def parts_left(store: Store) -> list[Path]:
    return list((store.path / "staging").rglob("*.part"))


FIRST = {"a": ["1", "2"], "b": ["3"], "c": ["4"]}
AGAIN = {"b": ["1", "2", "3"], "c": [], "a": ["4"]}


@pytest.mark.parametrize("step", range(1, 19))
def test_killed_at_any_step_and_run_again_with_other_routes(store_path: Path, step: int) -> None:
    store = open_ledgers(store_path)
    store.commits.commit_several(staged(store, 6, {"a": ["before"]}))

    request = msgspec.json.encode(staged(store, 7, FIRST))
    store.close()
    command = [sys.executable, "-c", COMMIT, str(store_path), str(step)]
    done = subprocess.run(command, input=request, capture_output=True, timeout=120, check=False)
    if done.returncode == 0:
        assert step > 16, "a step is left out"
        assert b"committed" in done.stdout
    else:
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    store = open_ledgers(store_path)
    try:
        # A batch that is durable at the commit point is there before the next commit; before the point nothing is.
        held = contents(store)
        committed = held["b"] == ["3"]
        assert committed == (step > 3)
        assert held == ({"a": ["before", *FIRST["a"]], "b": ["3"], "c": ["4"]} if committed else _only("before"))
        answer = store.commits.commit_several(staged(store, 7, AGAIN))
        assert answer.repeated == committed
        wanted = FIRST if committed else {name: AGAIN.get(name, []) for name in NAMES}
        assert contents(store) == {**wanted, "a": ["before", *wanted["a"]]}
        assert store.commits.commit_several(staged(store, 7, FIRST)).repeated
        assert contents(store) == {**wanted, "a": ["before", *wanted["a"]]}
        store.commits.commit_several(staged(store, 8, {"b": ["after"]}))  # takes away what lost attempts had staged
        assert contents(store)["b"] == [*wanted["b"], "after"]
        assert not parts_left(store)
    finally:
        store.close()


def _only(text: str) -> dict[str, list[str]]:
    return {"a": [text], "b": [], "c": []}


def test_batches_come_once_and_in_order(store: Store) -> None:
    first = store.commits.commit_several(staged(store, 3, FIRST))
    assert (first.repeated, sorted(first.runs)) == (False, [f"public/default/persistent/{name}" for name in NAMES])
    again = store.commits.commit_several(staged(store, 3, {"c": ["9"]}))
    assert again.repeated
    assert {name: run.first for name, run in again.runs.items()} == {n: r.first for n, r in first.runs.items()}
    with pytest.raises(Refused, match="batch 2 of query 'q' is below batch 3"):
        store.commits.commit_several(staged(store, 2, {"c": ["9"]}))
    store.commits.commit_several(staged(store, 4, {"c": ["5"]}))
    assert contents(store) == {**FIRST, "c": ["4", "5"]}
    assert not parts_left(store)


def test_everything_is_refused_before_anything_is_committed(store: Store) -> None:
    good = LedgerParts("a", [stage(store, "q", 1, [b"1"], 1)])
    damaged = stage(store, "q", 1, [b"2"], 1)
    path = store.path / "staging" / damaged.part
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    gone = stage(store, "q", 1, [b"3"], 1)
    (store.path / "staging" / gone.part).unlink()
    store.ledger("c").terminate()
    for runs, error, said in (
        ([good, LedgerParts("nowhere", [])], NotFound, "there is no ledger 'nowhere'"),
        ([good, LedgerParts("b", [damaged])], Exception, "CRC32C"),
        ([good, LedgerParts("b", [gone])], NotFound, "is missing"),
        ([good, LedgerParts("b", [stage(store, "q", 1, [b"4"], 9)])], Refused, "belongs to run"),
        ([good, LedgerParts("a", [])], Refused, "is named twice"),
        ([good, LedgerParts("c", [])], Terminated, "was terminated"),
        ([], Refused, "names no ledger"),
    ):
        with pytest.raises(error, match=said):
            store.commits.commit_several(CommitRuns("q", 1, 7, 1, runs))
    assert contents(store) == {"a": [], "b": [], "c": []}
    store.commits.commit_several(CommitRuns("q", 1, 7, 1, [good]))
    assert contents(store)["a"] == ["1"]


def test_a_ledger_that_was_deleted_since_gets_nothing_and_the_others_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail_behind_the_commit_point(store, monkeypatch, staged(store, 1, FIRST))
    store.delete_ledger("b")
    store.create_ledger(CreateLedger("b", block_bytes=512))
    answer = store.commits.commit_several(staged(store, 1, AGAIN))
    assert answer.repeated
    assert contents(store) == {**FIRST, "b": []}


def test_what_a_commit_needs_is_neither_aborted_nor_overtaken(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    request = staged(store, 1, FIRST)
    _fail_behind_the_commit_point(store, monkeypatch, request)
    store.commits.abort(AbortRun("q", 1, [part.part for run in request.runs for part in run.parts]))
    # A later batch of the query, to one ledger, comes behind it.
    store.commits.commit(CommitRun("b", "q", 2, 7, 2, [stage(store, "q", 2, [b"5"], 2)]))
    assert contents(store) == {**FIRST, "b": ["3", "5"]}


def test_a_client_commits_to_several_ledgers(tmp_path: Path) -> None:
    client = connect(tmp_path / "store").client
    try:
        runs = []
        for number, name in enumerate(NAMES):
            client.ask(CreateLedger(name))
            writer = client.stage_part("q", 1)
            for _ in range(number):
                writer.write([entry(b"row", run=2**64 - 1)], 1)
            runs.append(LedgerParts(name, [writer.close()]))
        request = CommitRuns("q", 1, 7, 2**64 - 1, runs)
        first, again = client.ask(request), client.ask(request)
        assert (first.repeated, again.repeated) == (False, True)
        assert [client.ask(AskEnd(name, EARLIEST)).rows_since for name in NAMES] == [0, 1, 2]
    finally:
        client.ask(StopBroker())


def _fail_behind_the_commit_point(store: Store, monkeypatch: pytest.MonkeyPatch, request: CommitRuns) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(store.commits, "_roll_forward", _no_disk)
        with pytest.raises(OSError, match="no disk"):
            store.commits.commit_several(request)
    assert contents(store) == {"a": [], "b": [], "c": []}


def _no_disk(*_: object) -> None:
    raise OSError(5, "no disk")


def test_a_ledger_ends_before_the_commit_point_or_behind_the_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """In between, what is committed would have no place to go."""
    request = staged(store, 1, {"a": ["1"], "b": ["2"]})
    _fail_behind_the_commit_point(store, monkeypatch, request)
    with pytest.raises(Refused, match="batch 1 of query 'q' is committed and not written to it yet"):
        store.ledger("b").terminate()
    store.commits.finish("q")
    store.ledger("b").terminate()
    assert contents(store)["b"] == ["2"]
    manifest = store.metadata.manifests.newest("q")
    assert manifest is not None
    with pytest.raises(Terminated, match=r"persistent/b' was terminated"):
        store.metadata.manifests.put(msgspec.structs.replace(manifest, batch=2, done=False))
    with pytest.raises(Terminated):
        store.commits.commit_several(staged(store, 2, {"a": ["3"], "b": ["4"]}))
    assert contents(store)["a"] == ["1"]


def test_a_batch_without_another_is_forgotten_when_nothing_can_repeat_it(store_path: Path) -> None:
    store = open_ledgers(store_path)
    first = staged(store, 3, {"a": ["1"], "b": ["2"]})
    alone = msgspec.structs.replace(first, once=True)
    assert not store.commits.commit_several(alone).repeated
    assert store.commits.commit_several(alone).repeated
    other = [LedgerParts("c", [stage(store, "q", 4, [b"3"], 4)])]
    kept = CommitRuns("kept", 4, 7, 4, other)
    store.commits.commit_several(kept)
    store.close()
    # Still known after a restart, and forgotten by one that comes when staged parts are swept.
    weeks = Settings().stagingRetentionSeconds * 1000 + 1
    for later, known in ((0, True), (weeks, False)):
        store = Store.open(
            store_path, settings=Settings(), clock=lambda later=later: log_rig.NOW + later, take_over=OwnerChange.BROKER
        )
        if known:
            assert store.commits.commit_several(alone).repeated
        else:
            with pytest.raises(NotFound, match="missing"):
                store.commits.commit_several(alone)
        assert store.commits.commit_several(kept).repeated
        assert contents(store) == {"a": ["1"], "b": ["2"], "c": ["3"]}
        store.close()
