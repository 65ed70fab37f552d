"""Query of large rows whose processes are killed between stage and commit, in rounds.

Each round arms a place of `fault_points`, and appends one batch to the ledger `in`. A process stops at the place and
writes its id to a file. Then SIGKILL ends one of these: the executor, its Python worker, the broker, or all processes
of Spark. The variable LEDGER_FAULT_ROUNDS is the number of rounds, by default the first five of `KILLS`.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from pyspark_ledger.ledger.api.store import connect
from tests.rigs import broker_process
from tests.rigs.deadline import wait_until
from tests.rigs.fault_points import FaultPoints
from tests.rigs.large_rows_app import BATCH_ROWS, text_of
from tests.rigs.processes import descendants, is_running, parent_of, process_file, process_ids, process_status

# Killed process and place of each round: the first five kill each process. After the last round, the first comes again.
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
ROUNDS = int(os.environ.get("LEDGER_FAULT_ROUNDS") or 5)
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
        """Kill the driver, the executor and the Python workers. Workers are in process groups of their own."""
        while running := [pid for pid in process_ids() if self._is_ours(pid)]:
            _kill_all(running)
        self._process.wait()
        self.points.release()

    def output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def _stopped_at(self, place: str) -> int:
        try:
            stopped = self.points.reached(place)
        except AssertionError as never:
            raise AssertionError(f"{never}\n{self.output()[-3000:]}") from None
        assert self._is_ours(stopped), "the process belongs to the running query"
        return stopped

    def _is_ours(self, pid: int) -> bool:
        """Return whether a process runs and belongs to the present driver, whose descendants are in its session."""
        return is_running(pid) and process_status(pid)[3:] == [str(self._process.pid)]

    def _kill(self, victim: str, stopped: int, broker: Path) -> None:
        if victim == "broker":
            broker_process.kill_broker(broker)
        elif victim == "worker":
            _kill_all([stopped])
        elif victim == "executor":
            _kill_all(descendants(executor_of(stopped)))
        else:
            self.kill()
            self._process = self._start()
        self.points.release()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, cwd=self._directory, start_new_session=True, stdout=log, stderr=log)


def executor_of(worker: int) -> int:
    """Return the id of the executor, the JVM above a Python worker."""
    pid = worker
    while b"CoarseGrainedExecutorBackend" not in process_file(pid, "cmdline"):
        pid = parent_of(pid)
        assert pid > 1, f"process {worker} belongs to no executor"
    return pid


def _kill_all(pids: Sequence[int]) -> None:
    """Kill processes, and wait until they are gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, pids)), f"processes {pids} are gone")
