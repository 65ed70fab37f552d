"""Processor time of a query's start, against `import pyspark, pyarrow`, which each of Spark's workers needs.

    start_up_lookup    imports of Spark to find the source: `pyspark_ledger`
    start_up_source    imports to make the source and read its options
    start_up_runner    imports of the process that drives a stream, including Spark and Arrow
    start_up_task      imports of a process that reads a batch, including Spark and Arrow
    start_up_broker    a broker and its supervisor, from the command to the first answer, and their end
    start_up_archive   the base's imports, from the archive of pyspark that Spark puts first on a worker's path

Ratios are of processor time (user and system, with children), which a busy machine changes little. All bytecode is
cached before the measurement. Exception: Python compiles the modules of the archive again in each process.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from benchmarks.harness import Loop, compare
from pyspark_ledger.ledger.client.connect import connect_store, stop_broker

ROUNDS = 11
BASE = "import pyspark.sql.datasource, pyspark.sql.streaming.datasource, pyarrow"
PROCESSES = {
    "lookup": "import pyspark_ledger",
    "source": "import pyspark_ledger, pyspark_ledger.connector.data_source",
    "runner": f"{BASE}, pyspark_ledger.connector.read.stream_reader",
    "task": f"{BASE}, pyspark_ledger.connector.read.batch_reader",
}
ROOT = Path(__file__).parent.parent
ARCHIVES = Path(pyspark.__file__).parent / "python" / "lib"


def main() -> None:
    """Measure every kind of process, and Spark's archive."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        base = importing(BASE)
        archives = os.pathsep.join(map(str, sorted(ARCHIVES.glob("*.zip"))))
        compare("start_up_archive", importing(BASE, archives), base, ROUNDS, of_time=True)
        for name, code in PROCESSES.items():
            compare(f"start_up_{name}", importing(code), base, ROUNDS, of_time=True)
        compare("start_up_broker", broker(Path(folder) / "stores"), base, ROUNDS, of_time=True)


def importing(code: str, first: str = "") -> Loop:
    """Return a loop of a process that imports. `first` is put first on its path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (first, str(ROOT))))}

    def run() -> float:
        before = children_seconds()
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
        return children_seconds() - before

    return run


def broker(folder: Path) -> Loop:
    """Return a loop of a store's first broker. This process reaps the supervisor, which reaps the broker."""
    folder.mkdir()

    def run() -> float:
        store = folder / str(len(list(folder.iterdir())))
        before = children_seconds()
        connect_store(store, create=True).close()
        stop_broker(store)
        os.wait()
        return children_seconds() - before

    return run


def children_seconds() -> float:
    """Return the user and system time of all children that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
