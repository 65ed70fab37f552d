"""Goal: a name is durable before anything relies on it. Method: record the content of each directory at its last sync,
which is what a loss of power leaves.

At each change of the metadata, every file among the segments must be in that record, as the same file. After a rename
the old file would be left.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.database.database import MetadataFile
from pyspark_ledger.ledger.metadata.manifest_records import ManifestRecords
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.commits import CommitRuns, LedgerParts
from tests.rigs.store import fill, open_store, stage


class DurableNames:
    """The names that a loss of power would leave, and the file behind each."""

    def __init__(self) -> None:
        self._left: dict[Path, dict[str, int]] = {}

    def synced(self, directory: Path) -> None:
        with os.scandir(directory) as entries:
            self._left[directory] = {entry.name: entry.inode() for entry in entries}

    def lost(self, directory: Path) -> list[str]:
        """Return the names that exist now and would not exist after a loss of power."""
        left = self._left.get(directory, {})
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if left.get(entry.name) != entry.inode())


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> DurableNames:
    names, real = DurableNames(), disk.sync_directory

    def sync(directory: Path) -> None:
        real(directory)
        names.synced(directory)

    monkeypatch.setattr(disk, "sync_directory", sync)
    return names


@pytest.fixture
def changes(names: DurableNames, store_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Return what each change of the metadata would have lost."""
    lost, real = list[list[str]](), MetadataFile.change

    def change(self: MetadataFile, wanted: object) -> object:
        lost.append(names.lost(store_path / "ledgers"))
        return real(self, wanted)

    monkeypatch.setattr(MetadataFile, "change", change)
    yield lost
    assert lost
    assert not any(lost), "the metadata were changed before what they rely on was durable"


def test_a_store_and_all_directories_above_it(names: DurableNames, tmp_path: Path) -> None:
    path = tmp_path / "new" / "newer" / "store"
    (tmp_path / "new").mkdir()
    open_store(path).close()
    for name in (path, *path.parents[:3]):
        assert name.name not in names.lost(name.parent)
    assert not {"metadata.sqlite", "ledgers", "staging"} & set(names.lost(path))


def test_segments_and_sidecars_over_rollovers_a_take_over_and_recoveries(
    changes: list[list[str]], store_path: Path
) -> None:
    left = open_store(store_path)
    fill(left, "log", [b"x"] * 7)
    assert len(list((store_path / "ledgers").glob("*.ledger"))) == 3
    taker = open_store(store_path, take_over=True)  # the other holds its segment still: it is copied
    fill(taker, "log", [b"x"] * 2)
    taker.close()
    left.close()
    again = open_store(store_path)
    fill(again, "log", [b"x"] * 2)
    again.delete_ledger("log")
    again.close()


def test_a_sidecar_that_is_made_anew(names: DurableNames, store_path: Path) -> None:
    store = open_store(store_path)
    fill(store, "log", [b"x"] * 7)
    store.close()
    for sidecar in (store_path / "ledgers").glob("*.index"):
        sidecar.unlink()
    disk.sync_directory(store_path / "ledgers")
    again = open_store(store_path)
    assert len(list(again.ledger("log").blocks(PositionRange(EARLIEST, LATEST), 4096))) == 3
    assert len(list((store_path / "ledgers").glob("*.index"))) == 3
    assert names.lost(store_path / "ledgers") == []
    again.close()


def test_a_segment_that_its_writer_keeps_and_its_copy(
    names: DurableNames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of the segment comes last: after a crash before that all of it is done again."""
    data, beside, real = tmp_path / "a", tmp_path / "b", disk._replace_by_copy

    def replace(source: int, path: Path) -> None:
        assert path == beside or names.lost(tmp_path) == []
        real(source, path)

    monkeypatch.setattr(disk, "_replace_by_copy", replace)
    held = disk.create_file(data)
    disk.hold(held)
    beside.touch()
    disk.sync_directory(tmp_path)
    assert disk.take_from_writer(data, beside)
    os.close(held)
    assert names.lost(tmp_path) == []


def test_staged_parts_before_the_manifest_that_names_them(
    names: DurableNames, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(store_path)
    for name in ("a", "b"):
        store.create_ledger(CreateLedger(name))
    runs = [LedgerParts(name, [stage(store, "q", 1, [b"x"], 1)]) for name in ("a", "b")]
    lost, real = dict[Path, list[str]](), ManifestRecords.put
    staging = store_path / "staging"

    def put(self: ManifestRecords, *manifest: object) -> object:
        for folder in (staging, *(path for path in staging.rglob("*") if path.is_dir())):
            lost[folder] = names.lost(folder)
        return real(self, *manifest)

    monkeypatch.setattr(ManifestRecords, "put", put)
    store.commits.commit_several(CommitRuns("q", 1, 7, 1, runs))
    store.close()
    assert len(lost) == 3, "queries, batches and parts"
    assert not any(lost.values())
