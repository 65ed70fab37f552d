"""Query of large rows whose processes are killed between stage and commit, in rounds.

Each round arms a place and appends one batch to `in`. A process stops at the place, and tells its id. Then a Python
worker, the broker, or the whole driver gets SIGKILL. Rounds: LEDGER_FAULT_ROUNDS, by default one for each of `KILLS`.
"""

from __future__ import annotations

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


class KilledQuery:
    """Process group of the query, which a test kills and starts again. `directory` has its checkpoint and its log."""

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
            broker_process.kill_broker(broker)
        elif victim == "worker":
            os.kill(stopped, signal.SIGKILL)
            wait_until(lambda: not is_alive(stopped), "the worker is gone")
        else:
            self.kill()
            self._process = self._start()
        self.points.release()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, cwd=self._directory, start_new_session=True, stdout=log, stderr=log)


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A killed process whose parent has not waited for it does not run."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
