"""Goal: each usual trap is found, said in words, and told how to get out of. Method: each trap is made: interpreters
without packages or of another version, files that shadow, sources that fail, brokers that are not there.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import app
from pyspark_ledger.connector.doctor import checks, tested_versions
from pyspark_ledger.connector.doctor.checks import (
    SparkEnvironment,
    check_delta_version,
    check_features,
    check_spark_version,
    examine,
)
from pyspark_ledger.connector.doctor.diagnosis import Diagnosis
from pyspark_ledger.connector.doctor.worker_start import WorkerStart, check_start, timed_start
from pyspark_ledger.connector.spark_features import SparkFeatures
from pyspark_ledger.ledger.api.store import connect

pytestmark = pytest.mark.thorough  # a check starts interpreters, and some start Spark
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def starts() -> dict[tuple, WorkerStart]:
    return {}


@pytest.fixture(autouse=True)
def one_start_for_each_environment(starts: dict[tuple, WorkerStart], monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a worker, a second of CPU, once for each interpreter and its variables. Files in its folder may count."""

    def started(python: str, directory: Path, environ: dict[str, str]) -> WorkerStart:
        if any(directory.iterdir()):
            return timed_start(python, directory, environ)
        key = python, *sorted(item for item in environ.items() if item[0] != "PYTEST_CURRENT_TEST")
        if key not in starts:
            starts[key] = timed_start(python, directory, environ)
        return starts[key]

    monkeypatch.setattr(checks, "timed_start", started)


def examined(directory: Path, store: str | None = None, conf: dict | None = None, **environ: str) -> list[Diagnosis]:
    given = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **environ}
    kept = {name: value for name, value in given.items() if value}
    return list(examine(SparkEnvironment(kept, directory, conf or {}, "0.1.0"), store))


def only_problem(found: list[Diagnosis], check: str | None = None) -> Diagnosis:
    (problem,) = [f for f in found if f.state == "problem" and check in (None, f.check)]
    assert problem.do
    return problem


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter of this version, with nothing installed."""
    directory = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    return str(directory / "bin" / "python")


def test_nothing_is_wrong_here(tmp_path: Path) -> None:
    found = examined(tmp_path)
    assert [f for f in found if f.state == "problem"] == []
    assert {"java", "spark", "jars", "the driver's python", "discovery", "connect"} <= {f.check for f in found}
    (start,) = [f for f in found if f.check == "start of a worker"]
    assert "Spark waits 10 s, then says 'Python worker failed to connect back'" in start.found


def test_a_worker_that_connects_late_is_told_apart_from_one_that_ends(tmp_path: Path, bare_python: str) -> None:
    (ready,) = check_start(WorkerStart(1.2, 1.0), {})
    assert (ready.state, ready.do) == ("ok", "")
    (slow,) = check_start(WorkerStart(8.3, 1.1), {})
    assert slow.state == "warning"
    assert "ready after 8.3 s, 1.1 s of them processor time" in slow.found
    assert "Leave a processor free" in slow.do
    ended = timed_start(bare_python, tmp_path, {})
    (problem,) = check_start(ended, {})
    assert (problem.state, "PYSPARK_PYTHON" in problem.do) == ("problem", True)
    assert "ends before it connects: ModuleNotFoundError: No module named 'pyspark'" in problem.found
    assert "Python worker failed to connect back" in problem.found


def test_workers_without_a_daemon_are_all_under_sparks_limit(tmp_path: Path) -> None:
    found = examined(tmp_path, conf={"spark.python.use.daemon": "false"})
    (warned,) = [f for f in found if "spark.python.use.daemon" in f.found]
    assert warned.state == "warning"
    assert "Unset it" in warned.do


def test_a_python_of_another_version(tmp_path: Path) -> None:
    other = next(
        (path for minor in (13, 12, 10, 9) for path in _pythons(minor) if f"3.{minor}" in _version(path)), None
    )
    if other is None:
        pytest.skip("this machine has no second Python")
    problem = only_problem(examined(tmp_path, PYSPARK_PYTHON=other), "the workers' python")
    assert _version(other).split()[1] in problem.found
    assert f"PYSPARK_PYTHON={sys.executable}" in problem.do


def _pythons(minor: int) -> list[str]:
    found = [*Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3"), shutil.which(f"python3.{minor}")]
    return [str(path) for path in found if path]


def _version(path: str) -> str:
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout


def test_a_python_without_packages(tmp_path: Path, bare_python: str) -> None:
    problem = only_problem(examined(tmp_path, PYSPARK_PYTHON=bare_python), "the workers' python")
    assert "pyarrow: ModuleNotFoundError" in problem.found
    assert "Python worker failed to connect back" in problem.found
    assert "pyspark:" not in problem.found, "Spark brings its own"
    named = only_problem(
        examined(tmp_path, conf={"spark.pyspark.python": bare_python}, PYSPARK_PYTHON=""), "the workers' python"
    )
    assert named.found == problem.found


def test_the_package_is_not_installed_there(tmp_path: Path, bare_python: str) -> None:
    found = examined(tmp_path, PYSPARK_PYTHON=bare_python, PYSPARK_DRIVER_PYTHON=bare_python, PYTHONPATH="")
    assert "has no module 'pyspark_ledger'" in only_problem(found, "modules of the driver's python").found
    assert "no module pyspark_ledger" in only_problem(found, "discovery").found


def test_a_driver_python_that_is_none_switches_discovery_off(tmp_path: Path) -> None:
    """As `PYSPARK_DRIVER_PYTHON=jupyter`, which makes a notebook of the pyspark shell."""
    found = examined(tmp_path, PYSPARK_DRIVER_PYTHON="true")
    problem = only_problem(found, "discovery")
    assert "Spark looks for sources with true" in problem.found
    assert "configure(spark)" in problem.do
    missing = only_problem(examined(tmp_path, PYSPARK_DRIVER_PYTHON="/no/such/python"), "discovery")
    assert "no such command" in missing.found


def test_another_source_that_fails_switches_discovery_off(tmp_path: Path) -> None:
    (tmp_path / "pyspark_broken.py").write_text("import no_such_module\n", encoding="utf-8")
    problem = only_problem(examined(tmp_path))
    assert problem.check == "discovery"
    assert "pyspark_broken fails (ModuleNotFoundError: No module named 'no_such_module')" in problem.found
    assert "uninstall pyspark_broken" in problem.do


@pytest.mark.parametrize("name", ["pyspark_ledger.py", "pyspark_ledger/__init__.py"])
def test_a_module_that_shadows_the_package(tmp_path: Path, name: str) -> None:
    shadow = tmp_path / name
    shadow.parent.mkdir(exist_ok=True)
    shadow.write_text("x = 1\n", encoding="utf-8")
    problem = only_problem(examined(tmp_path), "modules of the driver's python")
    assert f"finds {shadow}" in problem.found
    assert "Rename" in problem.do


def test_another_version_for_the_workers(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "pyspark_ledger", tmp_path / "pyspark_ledger")
    (tmp_path / "pyspark_ledger/ledger/version.py").write_text('__version__ = "0.0.9"\n', encoding="utf-8")
    problem = only_problem(examined(tmp_path))
    assert "pyspark-ledger is 0.0.9 there, 0.1.0 here" in problem.found


def test_a_spark_home_without_jars_or_of_another_spark(tmp_path: Path) -> None:
    assert "no spark-core" in only_problem(examined(tmp_path, SPARK_HOME=str(tmp_path)), "jars").found
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.1.jar").touch()
    problem = only_problem(examined(tmp_path, SPARK_HOME=str(tmp_path)), "jars")
    assert "are of Spark 3.5.1, pyspark is" in problem.found


def test_deltas_jar(tmp_path: Path) -> None:
    pytest.importorskip("delta")
    (found,) = [f for f in examined(tmp_path) if f.check == "delta jar"]
    assert found.state == "warning"
    conf = {"spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0"}
    (found,) = [f for f in examined(tmp_path, conf=conf) if f.check == "delta jar"]
    assert found.state == "ok"


@pytest.mark.parametrize("version", [*tested_versions.PAIRS, "4.0.1", "4.1.2"])
def test_a_tested_spark_is_in_order_and_the_tested_versions_are_named(version: str) -> None:
    found = check_spark_version(version)
    assert (found.state, found.do) == ("ok", "")
    assert all(tested in found.found for tested in tested_versions.PAIRS)


@pytest.mark.parametrize("version", ["4.1.0", "4.1.4", "4.2.99", "5.0.0.dev1"])
def test_a_spark_that_nothing_was_tested_with(version: str) -> None:
    found = check_spark_version(version)
    assert found.state == "warning"
    assert f"pyspark is {version}; this release is tested with 4.0.0" in found.found
    assert found.do == f"Try your queries on {version} before you rely on it"


def test_a_spark_before_python_sources_is_a_problem() -> None:
    assert check_spark_version("3.5.8").state == "problem"


def test_missing_features_and_their_replacements_are_named() -> None:
    assert check_features(SparkFeatures(True, True, True)).found == "this Spark has all features that the source uses"
    found = check_features(SparkFeatures(True, False, False))
    assert found.state == "ok"
    assert "lacks admission control, progress report: Trigger.AvailableNow ends after one micro-batch" in found.found
    assert "no function needs this" in check_features(SparkFeatures(False, True, True)).found


@pytest.mark.parametrize(("spark", "delta"), [pair for pair in tested_versions.PAIRS.items() if pair[1]])
def test_a_platforms_pair_of_spark_and_delta_is_in_order(spark: str, delta: str) -> None:
    found = check_delta_version(delta, spark)
    assert (found.state, found.do) == ("ok", "")


@pytest.mark.parametrize(("delta", "spark", "tested"), [("4.0.1", "4.0.2", "4.0.0"), ("4.4.0", "4.1.3", "4.2.0")])
def test_another_delta_is_named_and_the_spark_stays(delta: str, spark: str, tested: str) -> None:
    found = check_delta_version(delta, spark)
    assert found.state == "warning"
    assert f"delta-spark is {delta}; this release is tested with {tested} on Spark {spark}" in found.found
    assert f"pip install --no-deps 'delta-spark=={tested}'" in found.do
    assert "pyspark==" not in found.do


def test_a_spark_without_a_tested_delta() -> None:
    found = check_delta_version("4.4.0", "4.3.0")
    assert (found.state, "pyspark==" in found.do) == ("warning", False)
    assert "tested with no Delta on Spark 4.3.0" in found.found


def test_no_java_or_an_old_one(tmp_path: Path) -> None:
    home = tmp_path / "java" / "bin"
    home.mkdir(parents=True)
    assert "there is no" in only_problem(examined(tmp_path, JAVA_HOME=str(home.parent))).found
    for said, found in (("11.0.2", "Java 11"), ("1.8.0_292", "Java 8")):
        (home / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{said}\" 2020-01-01' >&2\n", encoding="utf-8")
        (home / "java").chmod(0o755)
        assert found in only_problem(examined(tmp_path, JAVA_HOME=str(home.parent))).found


def test_connect_without_its_packages(tmp_path: Path) -> None:
    found = examined(tmp_path, SPARK_REMOTE="sc://localhost")
    (connect_check,) = [f for f in found if f.check == "connect"]
    try:
        import grpc  # noqa: F401
    except ImportError:
        assert "grpc" in connect_check.found
        assert "pyspark[connect]" in connect_check.do


@pytest.mark.broker_process
def test_a_broker_that_is_not_there_and_one_that_is(tmp_path: Path, store: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"grpc://127.0.0.1:{free.getsockname()[1]}"
    problem = only_problem(examined(tmp_path, address))
    assert problem.check == "broker"
    assert address in problem.found
    assert "the first write creates it" in examined(tmp_path, str(store))[-1].found
    connect(store).ledger("orders").append(b"x")
    assert "is served at" in examined(tmp_path, str(store))[-1].found


def test_the_command_prints_and_fails_when_something_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0
    (tmp_path / "pyspark_broken.py").write_text("raise SystemExit\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["doctor", "--output", "json"])
    assert result.exit_code == 1
    assert [f["check"] for f in json.loads(result.output) if f["state"] == "problem"] == ["discovery"]
    assert "→" in CliRunner().invoke(app, ["doctor"]).output


def test_settings_of_spark_defaults_count(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("# a comment\nspark.pyspark.python  /no/python\n\n", encoding="utf-8")
    here = SparkEnvironment({"SPARK_CONF_DIR": str(tmp_path)}, tmp_path, {}, "0.1.0")
    assert here.with_conf(here.defaults()).workers_python == "/no/python"
