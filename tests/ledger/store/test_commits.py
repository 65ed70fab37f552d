"""Goal: each way of a commit asks the same question about a repeated batch, and remembers the answer after a crash.

Method: the same batches as small parts, as parts that become segments, and over several ledgers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.commits import (
    BatchOrigin,
    CommitRun,
    CommitRuns,
    CommittedRun,
    CommittedRuns,
    LedgerParts,
)
from pyspark_ledger.ledger.store.store import Store
from tests.rigs.promotion import BLOCK_BYTES, payload, stage
from tests.rigs.store import open_store


class Way(Protocol):
    """Way of a commit: sends one batch with one row."""

    def __call__(self, store: Store, batch: int, name: str, origin: BatchOrigin) -> CommittedRun | CommittedRuns: ...


def _as_entries(store: Store, batch: int, name: str, origin: BatchOrigin) -> CommittedRun:
    part = stage(store, batch, [payload(name, 10)])
    return store.commits.commit(CommitRun("log", "q", batch, 7, batch, [part], False, origin))


def _as_segments(store: Store, batch: int, name: str, origin: BatchOrigin) -> CommittedRun:
    part = stage(store, batch, [payload(name) for _ in range(80)])
    return store.commits.commit(CommitRun("log", "q", batch, 7, batch, [part], False, origin))


def _over_ledgers(store: Store, batch: int, name: str, origin: BatchOrigin) -> CommittedRuns:
    part = stage(store, batch, [payload(name, 10)])
    request = CommitRuns("q", batch, 7, batch, [LedgerParts("log", [part])], False, origin)
    return store.commits.commit_several(request)


class Rig:
    """Store that can be opened again as after a crash."""

    def __init__(self, path: Path, way: Way) -> None:
        self.path, self.way, self.opened = path, way, list[Store]()
        self.open()

    def open(self) -> None:
        self.opened.append(open_store(self.path, take_over=True))
        self.store.create_ledger(CreateLedger("log", exist_ok=True, block_bytes=BLOCK_BYTES))

    @property
    def store(self) -> Store:
        return self.opened[-1]

    def commit(self, batch: int, name: str, known: dict[int, str], **more: object) -> CommittedRun | CommittedRuns:
        return self.way(self.store, batch, name, BatchOrigin(known, **more))  # type: ignore[arg-type]

    def rows(self) -> int:
        return self.store.ledger("log").snapshot.rows


@pytest.fixture(params=[_as_entries, _as_segments, _over_ledgers], ids=["entries", "segments", "several"])
def rig(store_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig(store_path, request.param)
    yield rig
    for store in reversed(rig.opened):
        store.close()


def test_a_batch_is_compared_with_the_newest_one_also_after_a_crash(rig: Rig) -> None:
    for batch in (1, 2):
        assert not rig.commit(batch, f"b{batch}", {batch: f"o{batch}", batch - 1: f"o{batch - 1}"}).repeated
    rows = rig.rows()
    for _ in range(2):
        assert rig.commit(2, "other", {2: "o2", 1: "o1"}).repeated
        for batch, known in ((2, {2: "x", 1: "o1"}), (1, {1: "o1"}), (3, {3: "o3", 2: "x"})):
            with pytest.raises(Refused, match=f"batch {batch} of query 'q'"):
                rig.commit(batch, "other", known)
        asked = rig.commit(5, "b5", {5: "o5", 4: "o4"})
        assert (asked.repeated, asked.asked) == (False, 2)
        assert rig.rows() == rows
        rig.open()
    assert not rig.commit(5, "b5", {5: "o5", 4: "o4", 2: "o2"}).repeated
    assert rig.rows() == rows * 3 // 2


def test_an_appended_batch_is_the_newest_one_also_after_a_crash(rig: Rig) -> None:
    for batch in (1, 2, 3):
        rig.commit(batch, f"b{batch}", {batch: f"o{batch}", batch - 1: f"o{batch - 1}"})
    appended = rig.commit(2, "a2", {2: "p2", 1: "o1"}, repeated="append")
    assert "batch 2 of query 'q' is below batch 3" in appended.warning
    for _ in range(2):
        assert rig.commit(2, "a2", {2: "p2", 1: "o1"}, repeated="append").repeated
        rig.open()
    rows = rig.rows()
    assert not rig.commit(3, "a3", {3: "p3", 2: "p2"}).repeated
    assert rig.rows() == rows * 5 // 4
    with pytest.raises(Refused, match="batch 2 of query 'q' is below batch 3"):
        rig.commit(2, "a2", {2: "p2", 1: "o1"})
    skipped = rig.commit(2, "a2", {2: "p2", 1: "o1"}, repeated="skip")
    assert skipped.repeated
    assert "its rows are skipped" in skipped.warning


def test_a_ledger_that_was_created_again_names_both_incarnations(rig: Rig) -> None:
    rig.commit(1, "b1", {1: "o1"})
    before = rig.store.ledger("log").incarnation
    # This broker has not opened the log, and the marker of the run is only in the log.
    rig.opened.append(open_store(rig.path, take_over=True))
    rig.store.delete_ledger("log")
    rig.open()
    after = rig.store.ledger("log").incarnation
    with pytest.raises(Refused, match=f"up to 1 to incarnation {before} of .* as incarnation {after}"):
        rig.commit(2, "b2", {2: "o2", 1: "o1"})
    assert not rig.commit(2, "b2", {2: "o2", 1: "o1"}, repeated="append").repeated
    assert not rig.commit(3, "b3", {3: "o3", 2: "o2"}).repeated


def test_deleted_ledgers_leave_a_bounded_number_of_records(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_ledger.ledger.metadata.manifest_records._DELETED_MAX", 2)
    names = [f"public/default/persistent/l{number}" for number in range(4)]
    for name in names:
        store.create_ledger(CreateLedger(name, block_bytes=BLOCK_BYTES))
        store.commits.commit(CommitRun(name, "q", 1, 7, 1, [stage(store, 1, [payload("x", 10)])]))
        store.delete_ledger(name)
    found = [store.metadata.manifests.deleted_run(name, "q") for name in names]
    assert sum(run is not None for run in found) == 2


def test_a_version_without_rows_is_newest_also_after_a_crash(store_path: Path) -> None:
    rig = Rig(store_path, _as_entries)
    rig.commit(1, "b1", {}, named=True)
    first = rig.store.commits.commit(CommitRun("log", "q", 2, 7, 2, [], False, BatchOrigin(named=True)))
    assert (first.repeated, first.first, first.rows) == (False, first.end, 0)
    for _ in range(2):
        assert rig.commit(2, "late", {}, named=True).repeated
        assert rig.commit(1, "late", {}, named=True).repeated
        rig.open()
    assert rig.rows() == 1
    assert not rig.commit(3, "b3", {}, named=True).repeated
    for store in reversed(rig.opened):
        store.close()
