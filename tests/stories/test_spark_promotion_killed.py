"""Goal: kills between stage and commit lose and duplicate no row of a batch whose parts become segments.

Method: a query of large rows. In each round a process stops between stage and commit, and tells the test. Then a Python
worker, the broker, or the whole driver gets SIGKILL. Rounds: LEDGER_FAULT_ROUNDS, by default one for each of `KILLS`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import app
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import serve_store
from tests.rigs import broker_process
from tests.rigs.deadline import wait_until
from tests.rigs.fault_points import FaultPoints
from tests.rigs.large_rows_app import BATCH_ROWS, PART_BYTES, text_of

pytestmark = [pytest.mark.feature("kills of Spark at any point of a batch"), pytest.mark.fault, pytest.mark.spark]
# Victim and place of each round, again and again.
KILLS = (
    ("worker", "staged"),
    ("broker", "staged"),
    ("broker", "committing"),
    ("worker", "staged"),
    ("driver", "committing"),
    ("worker", "staged"),
    ("broker", "committed"),
    ("broker", "staged"),
    ("worker", "staged"),
    ("driver", "staged"),
    ("worker", "staged"),
    ("broker", "committing"),
    ("driver", "committed"),
)
ROUNDS = int(os.environ.get("LEDGER_FAULT_ROUNDS") or len(KILLS))


class App:
    """Process group of the query, which a test kills and starts again."""

    def __init__(self, store: Path, directory: Path) -> None:
        self.points = FaultPoints(directory / "points")
        self.log = directory / "app.log"
        self._command = [sys.executable, "-m", "tests.rigs.large_rows_app"]
        self._command += [str(store), str(directory / "checkpoint"), str(self.points.directory)]
        self._directory = directory
        self.process = self._start()

    def restart(self) -> None:
        self.kill()
        self.process = self._start()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.points.release()

    def tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(self._command, cwd=self._directory, start_new_session=True, stdout=log, stderr=log)


@pytest.fixture
def running(store: Path, tmp_path: Path) -> Iterator[App]:
    config = tmp_path / "broker.toml"
    config.write_text(f"stagedPartPromotionMinBytes = {PART_BYTES}\n", encoding="utf-8")
    serve_store(store, ["--config", str(config)])
    connect(store).ledger("in").append(pa.table({"n": pa.array([], pa.int64())}))
    app = App(store, tmp_path)
    yield app
    app.kill()


def test_kills_between_stage_and_commit_lose_and_repeat_no_row(running: App, store: Path) -> None:
    source, sink, met = connect(store).ledger("in"), connect(store).ledger("out"), Counter[tuple[str, str]]()
    rows = 0
    for number in range(ROUNDS):
        victim, place = KILLS[number % len(KILLS)]
        running.points.arm(place)
        source.append(pa.table({"n": pa.array(range(rows, rows + BATCH_ROWS), pa.int64())}))
        rows += BATCH_ROWS
        try:
            stopped = running.points.reached(place)
        except AssertionError as never:
            raise AssertionError(f"{never}\n{running.tail()}") from None
        assert is_alive(stopped)
        if victim == "broker":
            broker_process.kill_broker(store)
        elif victim == "worker":
            os.kill(stopped, signal.SIGKILL)
            wait_until(lambda: not is_alive(stopped), "the worker is gone")  # noqa: B023 — called at once
        else:
            running.restart()
        running.points.release()
        met[victim, place] += 1
    assert met.total() == ROUNDS
    assert set(met) == set(KILLS[:ROUNDS])
    wait_until(lambda: sink.describe().rows >= rows or running.process.poll() is not None, "all rows are copied", 300)
    assert running.process.poll() is None, running.tail()
    running.kill()
    found = sink.read()
    assert sorted(found["n"].to_pylist()) == list(range(rows))
    assert all(text == text_of(n) for n, text in zip(*(found[name].to_pylist() for name in ("n", "text")), strict=True))
    promoted = [segment for segment in sink.describe().segments if segment.rows == BATCH_ROWS // 2]
    assert len(promoted) > ROUNDS, "the parts have become segments"
    batches = {path.parent.name for path in store.glob("staging/*/*/*.part")}
    assert len(batches) <= 1, "parts of earlier batches are deleted"
    verified = CliRunner().invoke(app, ["verify", "--store", str(store)])
    assert verified.exit_code == 0, verified.output


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A killed process whose parent has not waited for it does not run."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
