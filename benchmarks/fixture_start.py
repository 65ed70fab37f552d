"""Seconds from the set-up of the fixture `ledger_store` to the end of the first append, in a run of pytest.

A report, not a comparison. The target is 1.0 second in the first test, and 0.05 seconds in each further test.

- `fixture_start_unused` is the time of the plugin's import, which each run pays. The target is 0.005 seconds.
- `fixture_start_first` is the median of the first tests of `ROUNDS` runs. Each run is a new process of pytest.
- `fixture_start` is the median of the further tests of all runs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import ROUNDS_MIN

ROUNDS = ROUNDS_MIN
TESTS = 20
_CONFTEST = """
import json, time
import pytest

_seconds = []
_mark = [0.0]

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    _mark[0] = time.perf_counter()

@pytest.fixture
def appended():
    yield lambda: _seconds.append(time.perf_counter() - _mark[0])

def pytest_unconfigure(config):
    print("SECONDS", json.dumps(_seconds))
"""
_TESTS = f"""
import pytest

@pytest.mark.parametrize("number", range({TESTS}))
def test_append(ledger_store, appended, number):
    ledger_store.ledger("orders").append([{{"id": number}}])
    appended()
    assert len(ledger_store.names()) == 1
"""
_IMPORT = """
import time, pytest
start = time.perf_counter()
import pytest_pyspark_ledger
print(time.perf_counter() - start)
"""


def run(directory: Path) -> list[float]:
    """Run the tests once. Return the seconds of each test."""
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", str(directory)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=directory, check=True)
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("SECONDS ")]
    seconds: list[float] = json.loads(line.removeprefix("SECONDS "))
    return seconds


def main() -> None:
    """Print the seconds of each run, and the medians."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "conftest.py").write_text(_CONFTEST, encoding="utf-8")
        (directory / "test_appends.py").write_text(_TESTS, encoding="utf-8")
        (directory / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        run(directory)  # a warm-up, which also compiles the modules
        runs = [run(directory) for _ in range(ROUNDS)]
    unused = [
        float(subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True).stdout)
        for _ in range(ROUNDS)
    ]
    print(f"\nfixture_start\n  {'round':>5} {'first s':>9} {'further s':>9}")
    for number, (first, *further) in enumerate(runs, start=1):
        print(f"  {number:>5} {first:>9.3f} {statistics.median(further):>9.4f}")
    print(f"ratio fixture_start_unused {statistics.median(unused):.4f}")
    print(f"ratio fixture_start_first {statistics.median(first for first, *_ in runs):.3f}")
    print(f"ratio fixture_start {statistics.median(one for _, *further in runs for one in further):.4f}", flush=True)


if __name__ == "__main__":
    main()
