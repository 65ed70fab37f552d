"""Time from `pip install` to the first row of a new user, and the time of this first row against Parquet.

    pip install PACKAGE[spark]    into a new environment, with its Spark: seconds, once
    python first_row.py           write 1,000 rows to a new store, and read them: seconds, in turns with Parquet

The seconds of the installation depend on the package index and its cache. The ratio is of times. Ours is a process that
starts Spark, makes a store with its broker, writes and reads. The base is the same process with Parquet.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Loop, compare
from pyspark_ledger.ledger.client.connect import stop_broker

ROOT = Path(__file__).parent.parent
PROGRAM = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
kind, name = sys.argv[1:]
spark.range(1000).write.format(kind).mode("append").save(name)
print(spark.read.format(kind).load(name).orderBy("id").first())
"""


def main() -> None:
    """Install the package into a new environment, and measure the first row there."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        start = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        python = folder / "venv" / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"{ROOT}[spark]"], check=True)
        print(f"installed in {time.monotonic() - start:.0f} s with one command: pip install PACKAGE[spark]")
        compare("first_row", first_row(folder, "ledger"), first_row(folder, "parquet"), of_time=True)


def first_row(folder: Path, kind: str) -> Loop:
    """Return a loop of a process that writes to a new place and reads the first row."""

    def run() -> float:
        place = Path(tempfile.mkdtemp(dir=folder))
        activated = {**os.environ, "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}"}
        start = time.monotonic()
        subprocess.run(["python", "-c", PROGRAM, kind, "rows"], cwd=place, env=activated, check=True)  # noqa: S607
        seconds = time.monotonic() - start
        if kind == "ledger":
            stop_broker(place / "ledger-store")
        return seconds

    return run


if __name__ == "__main__":
    main()
