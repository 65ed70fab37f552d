"""Runs of the example pipeline, each in processes of its own: the command, its Connect server, and Spark's workers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from pyspark_ledger.ledger.api.store import LedgerStore
from tests.rigs.processes import descendants

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "streaming_examples" / "pipeline"
# `spark-pipelines` starts this command, from a JVM of spark-submit.
_COMMAND = [sys.executable, "-m", "pyspark.pipelines.cli"]
PRICE = 2.0


class Pipeline:
    """Copy of the example project in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.project = shutil.copytree(PROJECT, directory, ignore=shutil.ignore_patterns("__pycache__"))
        self.storage = directory.with_name(f"{directory.name}-storage")
        self.store = directory / "ledger-store"
        self.spec = directory / "spark-pipeline.yml"
        self.replace(self.spec, "file:///tmp/ledger-pipeline", self.storage.as_uri())
        self.conf = directory / "conf"
        self.conf.mkdir()
        # A catalog that outlives a run, as on the command line of the example.
        (self.conf / "spark-defaults.conf").write_text("spark.sql.catalogImplementation hive\n", encoding="utf-8")
        self.tables = directory / "transformations" / "tables.py"
        self.payments = directory / "transformations" / "payments.py"

    def drop_tables(self) -> None:
        """Leave only the sink and its flows, which need no catalog. A run is shorter then."""
        self.tables.unlink()
        (self.conf / "spark-defaults.conf").unlink()

    def replace(self, file: Path, old: str, new: str) -> None:
        """Replace a text of a file of the project."""
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new), encoding="utf-8")

    def start(self, *arguments: str, cwd: Path | None = None, log: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a run in a process group of its own. Without arguments, it runs the whole pipeline."""
        environ = {name: text for name, text in os.environ.items() if name != "LEDGER_STORE"}
        # Otherwise every local Connect server takes port 15002, and two of them cannot run.
        environ |= {"SPARK_REMOTE": "local[2]", "PYSPARK_PYTHON": sys.executable, "SPARK_TESTING": "1"}
        environ["SPARK_CONF_DIR"] = str(self.conf)
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), environ.get("PYTHONPATH", "")])
        log = log or self.project / "run.log"
        with log.open("wb") as out:
            return subprocess.Popen(
                [*_COMMAND, *(arguments or ("run",)), "--spec", str(self.spec)],
                cwd=cwd or self.project, env=environ, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def run(self, *arguments: str, cwd: Path | None = None, seconds: float = 850) -> tuple[int, str]:
        """Run the pipeline to its end. Return its exit code and its console."""
        process = self.start(*arguments, cwd=cwd)
        try:
            process.wait(seconds)
        finally:
            kill(process)
        return process.returncode, (self.project / "run.log").read_text(encoding="utf-8", errors="replace")


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill all processes of a run, except the store's broker, which has a session of its own."""
    session = process.pid
    for pid in descendants(session):
        with suppress(OSError):
            if os.getsid(pid) == session:
                os.kill(pid, signal.SIGKILL)
    process.wait(60)


def append_ids(store: LedgerStore, ledger: str, first: int, last: int) -> None:
    """Append rows with the ids from `first` to `last - 1`, in entries of 100 rows."""
    for start in range(first, last, 100):
        ids = range(start, min(start + 100, last))
        columns = {
            "id": pa.array(ids, pa.int64()),
            "item": pa.array(["tea" if number % 2 else "salt" for number in ids], pa.string()),
            "price": pa.array([PRICE] * len(ids), pa.float64()),
        }
        store.ledger(ledger).append(pa.table(columns))


def missing_and_repeated(found: list[int], wanted: int) -> tuple[int, int]:
    """Return the number of ids below `wanted` that are missing, and of those that are there twice or do not belong."""
    ids = set(found)
    return len(set(range(wanted)) - ids), len(found) - len(ids & set(range(wanted)))
