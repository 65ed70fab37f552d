"""Rows per second of publishing a sealed segment, over Spark writing the same rows from Parquet files to Delta.

The publisher reads entries of the log, verifies every CRC, adds the metadata columns and commits. The base reads
columns that were written for Spark. Both write the same columns, partitioned by day, to a table of their own.

`PUBLISH_BYTES` (1 GiB) sets the bytes of the log per loop.
"""

from __future__ import annotations

import os
import time

from benchmarks.delta_tables import MIB, files_of, tables
from benchmarks.harness import compare

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

        def base() -> float:
            table = bench.fresh()
            began = time.perf_counter()
            bench.write_plain(same, table)
            return time.perf_counter() - began

        compare("publish", ours, base, work_bytes=BYTES)


if __name__ == "__main__":
    main()
