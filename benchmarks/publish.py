"""Rows per second of publishing a sealed segment, over Spark writing the same rows from Parquet files to Delta.

The publisher reads entries of the log, verifies every CRC, adds the metadata columns and commits. The base reads
columns that were written for Spark. Both write the same columns, partitioned by day, to a table of their own.

The floor is Spark writing the same rows from a Python data source that only maps Arrow files. Rows of such a source
pass through a pipe and become rows of the JVM one by one. So the figures depend on how worker and JVM share the cores.

`PUBLISH_BYTES` (1 GiB) sets the bytes of the log per loop.
"""

from __future__ import annotations

import os
import time

from pyspark.sql import DataFrame

from benchmarks.bare_arrow import bare_arrow
from benchmarks.delta_tables import MIB, files_of, tables
from benchmarks.harness import compare_with_floor

BYTES = int(os.environ.get("PUBLISH_BYTES", 1024 * MIB))


def main() -> None:
    """Print `ratio publish`."""
    with tables(BYTES) as bench:
        first = bench.folder / "first"
        bench.publisher(first).publish()
        rows = bench.spark.read.format("delta").load(str(first))
        parquet = bench.folder / "rows.parquet"
        rows.write.parquet(str(parquet))
        wanted = rows.count()
        print(f"{wanted} rows in {files_of(first)} files")
        same = bench.spark.read.parquet(str(parquet))

        def ours() -> float:
            table = bench.fresh()
            began = time.perf_counter()
            bench.publisher(table).publish()
            return time.perf_counter() - began

        def written(frame: DataFrame) -> float:
            table = bench.fresh()
            began = time.perf_counter()
            bench.write_plain(frame, table)
            return time.perf_counter() - began

        bare = bare_arrow(bench.spark, parquet)
        compare_with_floor("publish", ours, lambda: written(same), lambda: written(bare))


if __name__ == "__main__":
    main()
