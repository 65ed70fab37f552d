"""Goal: a default store is never made in a directory that Spark deletes.

Method: the working directories and variables that Spark gives to the processes it starts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.location import store_location

UUID = "0a1b2c3d-0000-4000-8000-0123456789ab"


@pytest.fixture(autouse=True)
def _no_store_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LEDGER_STORE", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "place",
    [
        f"spark-{UUID}/{UUID}",
        f"userFiles-{UUID}",
        f"artifacts-{UUID}",
        f"blockmgr-{UUID}/0f",
        "work/app-20261127100000-0001/0",
    ],
)
def test_default_store_in_a_directory_of_spark_is_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / place
    directory.mkdir(parents=True)
    monkeypatch.chdir(directory)
    with pytest.raises(Refused, match="no store is named") as refused:
        store_location()
    assert str(directory / "ledger-store") in refused.value.message
    with pytest.raises(Refused, match="store 'ledgers' is relative") as refused:
        store_location("ledgers")
    assert str(directory / "ledgers") in refused.value.message
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SPARK_JOB_ARTIFACT_UUID", UUID),
        ("SPARK_YARN_STAGING_DIR", "hdfs://nn/staging"),
        ("SPARK_EXECUTOR_ID", "3"),
        ("SPARK_DRIVER_BIND_ADDRESS", "10.0.0.7"),
    ],
)
def test_default_store_of_a_process_of_spark_is_refused_until_named(
    variable: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(Refused, match=text if variable.endswith("UUID") else variable):
        store_location()
    assert store_location(tmp_path / "named") == str(tmp_path / "named")
    monkeypatch.setenv("LEDGER_STORE", str(tmp_path / "set"))
    assert store_location() == str(tmp_path / "set")


def test_default_store_of_a_process_of_the_user_is_below_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", "default")
    assert store_location() == str(tmp_path / "ledger-store")
    assert store_location("ledgers") == str(tmp_path / "ledgers")
