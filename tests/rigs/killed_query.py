"""Query of large rows whose processes are killed between stage and commit, in rounds.

Each round arms a place of `fault_points`, and appends one batch to the ledger `in`. A process stops at the place and
writes its id to a file. Then SIGKILL ends one of these: the executor, its Python worker, the broker, or all processes
of Spark. The variable LEDGER_FAULT_ROUNDS is the number of rounds, by default one for each of `KILLS`.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from pyspark_ledger.ledger.api.store import connect
from tests.rigs import broker_process
from tests.rigs.deadline import wait_until
from tests.rigs.fault_points import FaultPoints
from tests.rigs.large_rows_app import BATCH_ROWS, text_of

# Victim and place of each round, again and again.
KILLS = (
    ("worker", "staged"),
    ("broker", "staged"),
    ("broker", "committing"),
    ("executor", "staged"),
    ("driver", "committing"),
    ("worker", "staged"),
    ("broker", "committed"),
    ("executor", "staged"),
    ("driver", "staged"),
    ("executor", "staged"),
    ("broker", "committing"),
    ("driver", "committed"),
)
ROUNDS = int(os.environ.get("LEDGER_FAULT_ROUNDS") or len(KILLS))
SECONDS = 300 + 120 * ROUNDS  # a driver that starts again on a busy machine takes two minutes


class KilledQuery:
    """Process group of the query, which a test kills and starts again. `directory` has the query's checkpoint and
    log."""

    def __init__(self, store: str, directory: Path) -> None:
        self.store = store
        self.points = FaultPoints(directory / "points")
        self._log = directory / "app.log"
        self._command = [sys.executable, "-m", "tests.rigs.large_rows_app"]
        self._command += [store, str(directory / "checkpoint"), str(self.points.directory)]
        self._directory = directory
        self._process = self._start()

    def copy_in_rounds(self, broker: Path, rounds: int = ROUNDS) -> int:
        """Kill in each round. Wait until all rows are copied, end the query, and return the number of rows.

        `broker` is the directory of the store's broker.
        """
        source, met, rows = connect(self.store).ledger("in"), Counter[tuple[str, str]](), 0
        for number in range(rounds):
            victim, place = KILLS[number % len(KILLS)]
            self.points.arm(place)
            source.append(pa.table({"n": pa.array(range(rows, rows + BATCH_ROWS), pa.int64())}))
            rows += BATCH_ROWS
            self._kill(victim, self._stopped_at(place), broker)
            met[victim, place] += 1
        assert met.total() == rounds
        assert set(met) == set(KILLS[:rounds])
        kills = ", ".join(f"{count} of the {victim} at {place!r}" for (victim, place), count in met.items())
        logging.getLogger(__name__).info("kills: %s", kills)
        sink = connect(self.store).ledger("out")
        wait_until(lambda: sink.describe().rows >= rows or self._process.poll() is not None, "all rows are copied", 300)
        assert self._process.poll() is None, self.output()[-3000:]
        self.kill()
        return rows

    def require_copied(self, rows: int) -> None:
        """Compare the rows of `out` with those of `in`."""
        found = connect(self.store).ledger("out").read()
        numbers, texts = (found[name].to_pylist() for name in ("n", "text"))
        assert sorted(numbers) == list(range(rows))
        assert all(text == text_of(n) for n, text in zip(numbers, texts, strict=True))
        batches = [sorted(numbers[start : start + BATCH_ROWS]) for start in range(0, rows, BATCH_ROWS)]
        assert batches == [list(range(start, start + BATCH_ROWS)) for start in range(0, rows, BATCH_ROWS)]

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.points.release()

    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def _stopped_at(self, place: str) -> int:
        try:
            stopped = self.points.reached(place)
        except AssertionError as never:
            raise AssertionError(f"{never}\n{self.output()[-3000:]}") from None
        assert is_alive(stopped)
        return stopped

    def _kill(self, victim: str, stopped: int, broker: Path) -> None:
        if victim == "broker":
            killed = broker_process.kill_broker(broker)
        elif victim == "driver":
            killed = self._process.pid
            self.kill()
            self._process = self._start()
        else:
            killed = stopped if victim == "worker" else executor_of(stopped)
            os.kill(killed, signal.SIGKILL)
        wait_until(lambda: not is_alive(killed), f"the {victim} is gone")
        self.points.release()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, cwd=self._directory, start_new_session=True, stdout=log, stderr=log)


def executor_of(worker: int) -> int:
    """Return the id of the executor, the JVM above a Python worker."""
    pid = worker
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(_status(pid)[1])
        assert pid > 1, f"process {worker} belongs to no executor"
    return pid


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A killed process whose parent has not waited for it does not run."""
    try:
        return _status(pid)[0] not in "ZX"
    except OSError:
        return False


def _status(pid: int) -> list[str]:
    """Return the state of a process, the id of its parent, and the fields behind them."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
