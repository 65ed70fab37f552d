"""Goal: `ledger repair` says what is wrong and changes nothing without `--yes`; `verify` leads to it.

Method: the command itself, on a store whose metadata are older than its ledgers.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ledger.store.test_repair import lose_one
from tests.rigs.broker_process import end_all
from tests.rigs.command import run
from tests.rigs.log import LogRig


def test_a_store_is_looked_at_accepted_and_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = LogRig(tmp_path / "store")
    path = lose_one(rig)
    monkeypatch.setenv("LEDGER_STORE", str(rig.path))
    said = run("repair")
    assert "metadata.commit states" in said
    assert (
        f"segment {path.stem} ({path.stem}.index, {path.stem}.ledger): can be added to log again: 1 entries, 1 rows"
        in said
    )
    assert "--accept-metadata" in run("repair", "--yes", status=1)
    found = json.loads(run("repair", "--output", "json"))
    assert [one["ledger_id"] for one in found["unknown"]] == [int(path.stem)]
    assert f"segment {path.stem}: 1 rows are in log again" in run("repair", "--accept-metadata", "--yes")
    assert "every file has a record, and no commit is missing" in run("repair")
    assert "no segment was added" in run("repair", "--yes")
    assert "there is no store" in run("repair", "--store", str(tmp_path / "none"), status=1)


def test_verify_names_what_no_record_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = LogRig(tmp_path / "store")
    rig.append(b"a", name="log")
    given = rig.store.metadata.allocate_ledger_id()
    rig.store.metadata.unwanted_files.remove([given])
    rig.store.close()
    (rig.path / "ledgers" / f"{given}.ledger").write_bytes(b"nobody knows")
    monkeypatch.setenv("LEDGER_STORE", str(rig.path))
    said = run("verify", status=1)
    assert "1 entry verified" in said
    assert f"segment {given} has no record ({given}.ledger in" in said
    end_all(rig.path)
