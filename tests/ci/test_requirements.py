"""Goal: the locks say what pyproject.toml says, and nothing about where from. Method: compare the files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pyspark_ledger.connector.doctor import tested_versions

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))


def locked(name: str) -> dict[str, str]:
    """Version of each package of a lock."""
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", text, re.MULTILINE))


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def lower_bounds(python: str = "3.11") -> dict[str, str]:
    """The lowest version promised for each dependency of the wheel, and of Spark, on a version of Python."""
    other = "<" if python == "3.13" else ">="
    promised = [*project()["dependencies"], *project()["optional-dependencies"]["spark"]]
    here = [text for text in promised if f"python_version{other}'3.13'" not in text]
    return dict(re.match(r"([a-z0-9-]+)>=([0-9.]+)", text).groups() for text in here)


def release(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in version.split(".")]
    while numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_names_no_host_and_hashes_everything(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text
    assert "index-url" not in text
    entries = re.split(r"^(?=[a-z0-9-]+==)", text, flags=re.MULTILINE)[1:]
    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)


@pytest.mark.parametrize(("python", "lock"), [("3.11", "lowest.lock"), ("3.13", "lowest313.lock")])
def test_what_is_promised_lowest_is_what_is_tried_lowest(python: str, lock: str) -> None:
    tried, promised = locked(lock), lower_bounds(python)
    assert promised.keys() == lower_bounds().keys()
    assert {name: release(tried[name]) for name in promised} == {
        name: release(version) for name, version in promised.items()
    }


def test_every_dependency_is_locked_for_work_and_for_the_wheel() -> None:
    for lock in ("dev.lock", "wheel.lock"):
        assert set(lower_bounds()) <= set(locked(lock)), f"{lock} is stale: make lock"


def test_spark_is_promised_and_locked_as_it_is_tested() -> None:
    extras = project()["optional-dependencies"]
    (oldest, newest) = tested_versions.OLDEST, tested_versions.NEWEST
    assert extras["spark"] == [f"pyspark>={oldest[0]}.{oldest[1]},<{newest[0]}.{newest[1] + 1}"]
    deltas = tested_versions.delta_versions()
    newest_with_delta = [spark for spark, delta in tested_versions.PAIRS.items() if delta][-1]
    assert extras["delta"] == [f"delta-spark>={deltas[0]},<={deltas[-1]}", f"pyspark<={newest_with_delta}"]
    locks = [locked(lock.name) for lock in LOCKS]
    tried = {lock["pyspark"]: lock.get("delta-spark") for lock in locks if "pyspark" in lock}
    assert tried | {locked("dev.lock")["pyspark"]: deltas[-1]} == tested_versions.PAIRS
    assert locked("dev.lock")["delta-spark"] == deltas[-1]
    assert locked("wheel.lock")["pyspark"] == list(tested_versions.PAIRS)[-1]


def test_every_other_spark_has_its_turn() -> None:
    (turns,) = re.findall(r"^SPARKS \?= (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(turns.split()) == sorted(path.stem for path in (ROOT / "requirements").glob("spark*.in"))


def test_pandas_is_only_in_locks_with_spark_connects_client() -> None:
    with_client = [lock.name for lock in LOCKS if "grpcio" in locked(lock.name)]
    assert [lock.name for lock in LOCKS if "pandas" in locked(lock.name)] == with_client
    assert not {"dev.lock", "wheel.lock", "lowest.lock"} & set(with_client)
