"""Goal: pytest's users get an empty store for each test, pay nothing without it, and find nothing left. Method: runs of
pytest in processes of their own, which are interrupted, killed, and shared between workers.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.offload.test_fresh_stores import require_gone

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("pyspark_ledger", "pyspark", "pyarrow", "numpy")
APART = """
import os, unittest
import pytest
from pyspark_ledger import connect

@pytest.mark.parametrize("number", range(3))
def test_store_is_empty(ledger_store, number):
    print("\\nSTORE", os.path.dirname(ledger_store.location))
    assert ledger_store.names() == []
    ledger_store.ledger("orders").append([{"number": number}])
    assert connect().ledger("orders").read().to_pylist() == [{"number": number}]

@pytest.mark.usefixtures("ledger_store")
class TestCase(unittest.TestCase):
    def test_default_store_is_empty(self):
        assert connect().names() == []
        connect().ledger("orders").append([{"number": 9}])

def test_default_store_is_the_users_again():
    assert os.environ["LEDGER_STORE"] == "/the/users/own"
"""
ENDED = """
import os, signal
def test_ends(ledger_store):
    ledger_store.ledger("orders").append([{"id": 1}])
    print("\\nSTORE", os.path.dirname(ledger_store.location), flush=True)
    os.kill(os.getpid(), signal.SIG%s)
"""
SPARK = """
import pytest
STARTED = []

@pytest.mark.parametrize("number", range(2))
def test_default_store(ledger_spark, ledger_store, tmp_path, number):
    assert (ledger_store.names(), ledger_spark.streams.active) == ([], [])
    STARTED.append(ledger_spark)
    ledger_spark.createDataFrame([(number,)], "id int").write.format("ledger").mode("append").save("orders")
    assert ledger_store.ledger("orders").read().to_pylist() == [{"id": number}]
    assert ledger_spark.read.format("ledger").load("orders").collect() == [(number,)]
    stream = ledger_spark.readStream.format("ledger").option("startingPosition", "earliest").load("orders")
    copy = stream.writeStream.format("ledger").option("checkpointLocation", str(tmp_path)).start("copies")
    copy.processAllAvailable()
    assert ledger_store.ledger("copies").read().to_pylist() == [{"id": number}]

def test_without_the_variable(ledger_spark, monkeypatch):
    monkeypatch.delenv("LEDGER_STORE")

def test_session_is_one_without_a_store_of_a_test():
    from pyspark_ledger.connector.session.default_store import default_store
    assert STARTED[0] is STARTED[1]
    assert default_store(STARTED[0]).location is None

def test_stopped_session(ledger_spark):
    ledger_spark.stop()

def test_next_session(ledger_spark, ledger_store):
    ledger_store.ledger("orders").append([{"id": 1}])
    assert ledger_spark.read.format("ledger").load("orders").count() == 1
"""


def run(directory: Path, text: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a file of tests as a user does, without the settings of this repository."""
    (directory / "test_user.py").write_text(text, encoding="utf-8")
    (directory / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "LEDGER_"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-s", *arguments]
    return subprocess.run(
        command,
        cwd=directory,
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def stores_of(ran: subprocess.CompletedProcess[str]) -> set[Path]:
    """Directories of the stores that the tests have printed."""
    return {Path(line) for line in re.findall(r"^STORE (.*)$", ran.stdout, re.MULTILINE)}


def test_each_test_has_an_empty_store(tmp_path: Path) -> None:
    """Without a home, and below a path that is longer than a socket's may be."""
    temporary = tmp_path / ("long" * 40)
    temporary.mkdir()
    ran = run(tmp_path, APART, LEDGER_STORE="/the/users/own", HOME="/proc/none", TMPDIR=str(temporary))
    assert "5 passed" in ran.stdout, ran.stdout
    (directory,) = stores_of(ran)
    assert directory.parent == temporary
    require_gone(directory)


def test_a_run_without_the_fixtures_imports_nothing_of_the_package(tmp_path: Path) -> None:
    text = f"""
import sys
def test_modules():
    assert "pytest_pyspark_ledger" in sys.modules
    assert [name for name in sys.modules if name.split(".")[0] in {HEAVY}] == []
"""
    ran = run(tmp_path, text, "-p", "no:spark", "-p", "no:hypothesispytest")  # plugins that import much
    assert "1 passed" in ran.stdout, ran.stdout


def test_a_users_own_fixture_of_the_name_wins(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef ledger_store():\n    return 'own'\n", encoding="utf-8"
    )
    ran = run(tmp_path, "def test_own(ledger_store):\n    assert ledger_store == 'own'\n")
    assert "1 passed" in ran.stdout, ran.stdout


def test_the_plugin_can_be_switched_off(tmp_path: Path) -> None:
    ran = run(tmp_path, "def test_none(ledger_store): ...\n", "-p", "no:pyspark_ledger")
    assert "fixture 'ledger_store' not found" in ran.stdout, ran.stdout


@pytest.mark.thorough
def test_each_worker_has_stores_of_its_own(tmp_path: Path) -> None:
    ran = run(tmp_path, APART, "-n", "2", "--dist", "each", LEDGER_STORE="/the/users/own")
    assert "10 passed" in ran.stdout, ran.stdout


@pytest.mark.fault
@pytest.mark.parametrize("name", ["INT", "TERM", "KILL"])
def test_a_run_that_is_ended_leaves_no_broker(name: str, tmp_path: Path) -> None:
    ran = run(tmp_path, ENDED % name)
    assert ran.returncode == {"INT": pytest.ExitCode.INTERRUPTED}.get(name, -getattr(signal, f"SIG{name}")), ran.stdout
    (directory,) = stores_of(ran)
    require_gone(directory)


@pytest.mark.spark
@pytest.mark.sessions
def test_a_session_has_the_store_of_each_test(tmp_path: Path) -> None:
    ran = run(tmp_path, SPARK)
    assert "6 passed" in ran.stdout, ran.stdout + ran.stderr
