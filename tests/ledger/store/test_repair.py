"""Goal: what the metadata lost is put back whole, or refused with a reason, and nothing is overwritten or deleted.

Method: a store whose metadata are set back to an older copy while its ledgers go on, as a damaged log leaves it.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import Corrupt, NotFound, Refused
from pyspark_ledger.ledger.store.repair import find, repair
from tests.rigs.log import NOW, LogRig


def values(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


class OlderMetadata:
    """Copy of the metadata at this moment; `restore` puts the copy back over later changes."""

    def __init__(self, rig: LogRig) -> None:
        rig.store.metadata._file._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.path, self.copy = rig.path / "metadata.sqlite", rig.path.with_name("older.sqlite")
        shutil.copyfile(self.path, self.copy)

    def restore(self, rig: LogRig) -> None:
        rig.store.close()
        shutil.copyfile(self.copy, self.path)


def files(path: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in path.rglob("*") if one.is_file() and "-shm" not in one.name}


def data(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in (path / "ledgers").glob("*.ledger")}


def fix(rig: LogRig, **rest: object) -> list[int]:
    return [found.ledger_id for found in repair(rig.path, lambda: NOW, **rest)]  # type: ignore[arg-type]


def test_lost_ledgers_are_put_back_in_order(rig: LogRig) -> None:
    rig.append(*values(0, 4))
    rig.append(*values(0, 2), name="other")
    older = OlderMetadata(rig)
    rig.append(*values(4, 12))
    rig.append(*values(2, 5), name="other")
    older.restore(rig)
    before = files(rig.path)
    with pytest.raises(Corrupt, match=r"metadata\.sqlite-wal end with commit"):
        rig.store = rig._open()
    found = find(rig.path)
    assert files(rig.path) == before, "looking changes nothing"
    assert "metadata.commit states" in found.behind
    assert [one.ledger_id for one in found.places()] == [one.ledger_id for one in found.unknown]
    assert {one.ledger.rpartition("/")[2] for one in found.places()} == {"log", "other"}
    with pytest.raises(Corrupt, match=r"metadata\.commit"):
        fix(rig)
    assert fix(rig, accept=True) == [one.ledger_id for one in found.places()]
    rig.store = rig._open()
    assert rig.contents() == values(0, 12)
    assert rig.contents("other") == values(0, 5)
    assert find(rig.path).unknown == []
    rig.append(*values(12, 14))
    assert rig.contents() == values(0, 14), "no id and no row is given twice"
    (aside,) = rig.path.glob("metadata.before-repair-*")
    assert (aside / "metadata.sqlite").read_bytes() == older.copy.read_bytes()


def test_what_has_no_place_is_kept_with_a_reason(rig: LogRig) -> None:
    rig.append(*values(0, 3))
    older = OlderMetadata(rig)
    rig.append(*values(3, 5))
    older.restore(rig)
    fix(rig, accept=True, only=[999])  # accepted, and not put back
    rig.store = rig._open()
    rig.append(b"new")
    rig.store.close()
    before = data(rig.path)
    (found,) = find(rig.path).unknown
    assert "later segment" in found.refusal
    assert fix(rig) == []
    assert data(rig.path) == before
    rig.store = rig._open()
    assert rig.contents() == [*values(0, 3), b"new"]


def lose_one(rig: LogRig) -> Path:
    """Three rows that the metadata know, and one behind them that they have lost; the file that holds it."""
    rig.append(*values(0, 3))
    older = OlderMetadata(rig)
    (position,) = rig.append(b"lost")
    older.restore(rig)
    return rig.path / "ledgers" / f"{position.ledger_id}.ledger"


@pytest.mark.parametrize("kind", ["data", "sidecar", "other store", "terminated"])
def test_what_does_not_hold_is_refused_and_left_alone(rig: LogRig, kind: str, tmp_path: Path) -> None:
    path = lose_one(rig)
    index, said = path.with_suffix(".index"), "is terminated"
    if kind == "data":
        path.write_bytes(path.read_bytes()[:140] + b"\xff" + path.read_bytes()[141:])
        said = "entries up to .* were acknowledged"
    elif kind == "sidecar":
        index.write_bytes(b"\0" + index.read_bytes()[1:])
        said = "starts with 00494458, expected"
    elif kind == "other store":
        other = LogRig(tmp_path / "other")
        theirs = lose_one(other)
        for suffix in (".ledger", ".index"):
            shutil.copyfile(theirs.with_suffix(suffix), path.with_suffix(suffix))
        said = "belongs to store .*, this is"
        other.store.close()
    fix(rig, accept=True, only=[999])
    if kind == "terminated":
        rig.store = rig._open()
        rig.store.ledger("log").terminate()
        rig.store.close()
    before = data(rig.path)
    (found,) = find(rig.path).unknown
    assert re.search(said, found.refusal), found.refusal
    assert fix(rig) == []
    assert data(rig.path) == before
    rig.store = rig._open()
    assert rig.contents() == values(0, 3)


def test_a_person_names_the_ledger_where_the_file_does_not(rig: LogRig) -> None:
    path = lose_one(rig)
    index = path.with_suffix(".index")
    index.write_bytes(index.read_bytes()[:128] + bytes(68) + index.read_bytes()[196:])
    assert fix(rig, accept=True) == []
    assert "name one with --ledger" in find(rig.path).unknown[0].refusal
    with pytest.raises(NotFound, match="there is no ledger"):
        find(rig.path, "nobody")
    assert fix(rig, into="log") == [int(path.stem)]
    rig.store = rig._open()
    assert rig.contents() == [*values(0, 3), b"lost"]


def test_a_store_that_is_served_is_looked_at_and_not_repaired(rig: LogRig) -> None:
    rig.append(*values(0, 4))
    assert find(rig.path).unknown == []
    with pytest.raises(Refused, match="is in use by the broker"):
        fix(rig)


def test_what_was_accepted_and_swept_is_only_what_a_record_names(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older metadata know the id of a ledger that was listed later: nothing of it is unwanted."""
    rig.append(*values(0, 3))
    real = rig.store.metadata.update_ledger
    older: list[OlderMetadata] = []

    def listing(*given: object, **named: object) -> object:
        older.append(OlderMetadata(rig))
        return real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(rig.store.metadata, "update_ledger", listing)
    (position,) = rig.append(b"lost")
    monkeypatch.undo()
    older[0].restore(rig)
    assert fix(rig, accept=True) == [position.ledger_id]
    rig.store = rig._open()
    assert rig.contents() == [*values(0, 3), b"lost"]
