"""Queries on a published table, over a plain Delta table of the same rows. No table is compacted (Delta's `OPTIMIZE`).

The ledger is published in eight segments. Spark writes the plain table in one commit from Parquet files of the same
columns. A round runs three queries on each table: a sum over a column, a count of a day's rows, and a range of numbers.

`PUBLISH_BYTES` (1 GiB) sets the size of the ledger.
"""

from __future__ import annotations

import os
import time
from datetime import date
from pathlib import Path

from benchmarks.delta_tables import MIB, Tables, files_of, tables
from benchmarks.harness import compare

BYTES = int(os.environ.get("PUBLISH_BYTES", 1024 * MIB))
SEGMENTS = 8


def query(bench: Tables, table: Path, day: date, rows: int) -> float:
    """Return the seconds of the three queries. All rows are of one day."""
    began = time.perf_counter()
    frame = bench.spark.read.format("delta").load(str(table))
    found = frame.selectExpr("sum(a + b)", "max(length(body))").first()
    today = frame.where(f"__publishDate = date'{day}'").selectExpr("count(a)").first()
    part = frame.where(f"a between {rows // 3} and {rows // 3 + 1000}").selectExpr("count(b)").first()
    if found is None or today is None or part is None or today[0] != rows:
        raise AssertionError((found, today, part, rows))
    return time.perf_counter() - began


def main() -> None:
    """Print `ratio table_scan`."""
    with tables(BYTES // SEGMENTS) as bench:
        for _ in range(SEGMENTS - 1):
            bench.fill(BYTES // SEGMENTS)
        ours, plain = bench.folder / "ours", bench.folder / "plain"
        bench.publisher(ours).publish()
        rows = bench.spark.read.format("delta").load(str(ours))
        rows.write.parquet(str(bench.folder / "rows.parquet"))
        bench.write_plain(bench.spark.read.parquet(str(bench.folder / "rows.parquet")), plain)
        count, day = rows.selectExpr("count(*)", "max(__publishDate)").collect()[0]
        print(f"{count} rows: {files_of(ours)} files published, {files_of(plain)} plain")
        compare("table_scan", lambda: query(bench, ours, day, count), lambda: query(bench, plain, day, count))


if __name__ == "__main__":
    main()
