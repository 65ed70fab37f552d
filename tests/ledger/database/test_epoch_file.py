"""Goal: a broker that lost its store learns it from eight bytes, and is never told that it owns one when it does not.

Method: two files of one name, and everything that can be done to a file; then two openings of one metadata file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_ledger.ledger.database.database import MetadataFile
from pyspark_ledger.ledger.database.epoch_file import EpochFile
from pyspark_ledger.ledger.database.record_tables import RecordTable
from pyspark_ledger.ledger.errors import Fenced


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.epoch"


def test_a_successor_is_seen_at_once(path: Path) -> None:
    old = EpochFile(path, 1, pytest.fail)
    assert old.is_current()
    new = EpochFile(path, 2, pytest.fail)
    assert (old.is_current(), new.is_current()) == (False, True)
    old.close()
    assert new.is_current()
    new.close()
    assert not new.is_current()


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.unlink(),
        lambda path: path.rename(path.with_suffix(".old")),
        lambda path: os.truncate(path, 0),
        lambda path: os.truncate(path, 7),
        lambda path: path.write_bytes(b"\x01" + bytes(8)),
        lambda path: (path.unlink(), path.write_bytes((1).to_bytes(8, "little"))),
    ],
    ids=["removed", "renamed", "emptied", "cut", "longer", "replaced"],
)
def test_a_file_that_was_touched_vouches_for_nothing(path: Path, harm: Callable[[Path], object]) -> None:
    file = EpochFile(path, 1, pytest.fail)
    harm(path)
    assert not file.is_current()
    file.close()


def test_a_time_that_tells_nothing_is_not_taken_for_a_successor(path: Path) -> None:
    file = EpochFile(path, 1, pytest.fail)
    os.utime(path)
    assert file.is_current()
    os.pwrite(file._fd, (2).to_bytes(8, "little"), 0)
    assert not file.is_current()
    file.close()


def test_who_writes_at_the_same_moment_is_seen_though_no_clock_moved(path: Path) -> None:
    file = EpochFile(path, 1, pytest.fail)
    before = path.stat()
    with path.open("r+b") as other:
        other.write((2).to_bytes(8, "little"))
    assert path.stat().st_size == before.st_size
    assert not file.is_current()
    file.close()


TABLES = (RecordTable("store", ("epoch INTEGER NOT NULL", "commits INTEGER NOT NULL"), rowid=True, counted=False),)


def test_the_metadata_decides_where_the_file_is_silent(tmp_path: Path) -> None:
    old = MetadataFile.create(
        tmp_path / "metadata.sqlite", TABLES, lambda c: c.execute("INSERT INTO store_row VALUES (0, 0)")
    )
    mine = old.bump_epoch()
    old.require_epoch(mine)
    os.truncate(tmp_path / "metadata.epoch", 0)
    old.require_epoch(mine)
    new = MetadataFile.open(tmp_path / "metadata.sqlite", TABLES)
    theirs = new.bump_epoch()
    for _ in range(2):
        with pytest.raises(Fenced, match=rf"has epoch {theirs}, this broker has {mine}"):
            old.require_epoch(mine)
        (tmp_path / "metadata.epoch").unlink(missing_ok=True)
    new.require_epoch(theirs)
    old.close()
    new.close()
