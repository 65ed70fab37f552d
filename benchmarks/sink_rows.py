"""Streaming sink on Spark 4.1 and 4.0, against the same on Spark 4.2.

A turn is a query with Trigger.AvailableNow: it copies three million rows of Parquet files into a ledger, with a new
checkpoint. The time is from the start of the query to its end. The first turn of each version does not count.

The ratio is of speeds. A ratio of 1 means that the sink is as fast as on 4.2. Spark itself differs between versions,
too, so a ratio says nothing about one cause.
"""

from __future__ import annotations

import sys
import tempfile
import time
from itertools import count
from pathlib import Path

from benchmarks.harness import compare
from benchmarks.raw_disk import bench_dir
from benchmarks.spark_queries import session
from benchmarks.sparks import Turns, answer_turns, python_of

ROWS, FILES = 3_000_000, 4
SPARKS = (("sink_rows_41", "spark413"), ("sink_rows_40", "spark402"))


def copy_in_turns(directory: Path) -> None:
    """Copy the files of `directory` once for each line of the input."""
    spark = session()
    spark.range(0, ROWS, 1, FILES).selectExpr(
        "id as flight", "id % 365 as day", "cast(id % 1000 as string) as airport", "id / 7.0 as delay"
    ).write.parquet(str(directory / "rows"))
    shape = spark.read.parquet(str(directory / "rows")).schema
    runs = count()

    def copy() -> float:
        run = next(runs)
        frame = spark.readStream.schema(shape).parquet(str(directory / "rows"))
        writer = frame.writeStream.format("ledger").option("store", str(directory / "store"))
        start = time.perf_counter()
        query = (
            writer.option("checkpointLocation", str(directory / f"checkpoint-{run}"))
            .queryName(f"copy-{run}")
            .trigger(availableNow=True)
            .start(f"copied-{run}")
        )
        query.awaitTermination()
        return time.perf_counter() - start

    answer_turns(copy)


def main() -> None:
    """Compare each older version with the Spark of this environment."""
    with tempfile.TemporaryDirectory(dir=bench_dir()) as name:
        for ratio, lock in SPARKS:
            ours = Turns(python_of(lock), "benchmarks.sink_rows", f"{name}/{lock}")
            base = Turns(sys.executable, "benchmarks.sink_rows", f"{name}/{lock}-base")
            compare(ratio, ours.take, base.take)
            ours.end()
            base.end()


if __name__ == "__main__":
    copy_in_turns(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
