"""First own rows: a new process on Spark 4.1.3 that writes and reads 1,000 rows, against the same with Parquet.

Both processes start Spark, write the rows, read them, and end. Ours starts the broker of a new store, too. The ratio is
of times, of the whole processes. A ratio of 1 means that a ledger costs a user no more of the first minute than a file.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

from benchmarks.harness import Loop, compare
from benchmarks.raw_disk import bench_dir
from benchmarks.sparks import ROOT, python_of

ROWS = 1_000


def write_and_read(source: str, path: str) -> None:
    """Write rows to `path` and read them with a data source: `ledger` or `parquet`."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.range(ROWS).write.format(source).mode("append").save(path)
    found = spark.read.format(source).load(path).count()
    if found != ROWS:
        raise RuntimeError(f"wrote {ROWS} rows, read {found}")


def process(directory: Path, source: str) -> Loop:
    """Return a loop that runs the new process once, with a store or folder of its own."""
    runs = count()

    def loop() -> float:
        place = directory / f"{source}-{next(runs)}"
        environment = {"LEDGER_STORE": str(place), "PYSPARK_PYTHON": python_of("spark413"), "PATH": "/usr/bin:/bin"}
        path = "first" if source == "ledger" else str(place)
        start = time.perf_counter()
        subprocess.run(
            [python_of("spark413"), "-m", "benchmarks.first_row", source, path],
            env=environment,
            cwd=ROOT,
            check=True,
            stderr=subprocess.DEVNULL,
        )
        return time.perf_counter() - start

    return loop


def main() -> None:
    """Compare the processes."""
    with tempfile.TemporaryDirectory(dir=bench_dir()) as name:
        directory = Path(name)
        compare("first_row", process(directory, "ledger"), process(directory, "parquet"), of_time=True)


if __name__ == "__main__":
    write_and_read(*sys.argv[1:3]) if len(sys.argv) > 1 else main()
