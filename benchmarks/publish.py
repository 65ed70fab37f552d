"""Rows per second of publishing a sealed segment. The base is Spark, which writes the same rows from Parquet to Delta.

The publisher reads entries of the log, verifies every CRC, adds the metadata columns and commits. The base reads
columns that were written for Spark. Both write the same columns, partitioned by day, to a new table of their own. Each
round plans its read and creates its table.

The floor is a write by Spark of the same rows from a Python data source that only maps Arrow files. Rows of such a
source pass through a pipe and become rows of the JVM one by one. So the figures depend on how worker and JVM share the
cores.

`PUBLISH_BYTES` (256 MiB) sets the bytes of the log in each measurement.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from pyspark.sql import DataFrame

from benchmarks.bare_arrow import bare_arrow
from benchmarks.delta_tables import MIB, files_of, tables
from benchmarks.harness import compare_with_floor

BYTES = int(os.environ.get("PUBLISH_BYTES", 256 * MIB))


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
        bare = bare_arrow(bench.spark, parquet)

        def ours() -> float:
            table = bench.fresh()
            began = time.perf_counter()
            bench.publisher(table).publish()
            return time.perf_counter() - began

        def written(frame: Callable[[], DataFrame]) -> float:
            table = bench.fresh()
            began = time.perf_counter()
            bench.write_plain(frame(), table)
            return time.perf_counter() - began

        compare_with_floor(
            "publish",
            ours,
            lambda: written(lambda: bench.spark.read.parquet(str(parquet))),
            lambda: written(bare.load),
        )


if __name__ == "__main__":
    main()
