"""What a new user does first, with the installed wheel and nothing else: write rows and read them back.

Run it by the interpreter of a clean environment, from a directory that is not the checkout. Prints one
line, or fails.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from google_crc32c import implementation as crc_implementation
from pyspark.sql import SparkSession

import ledger
import pyspark_ledger

ROWS = 1_000


def main() -> None:
    """Write and read through `format("ledger")`, in batches, without registering anything."""
    environment = Path(sys.prefix)
    home = Path(str(pyspark_ledger.__file__)).parent
    for module in (ledger, pyspark_ledger):
        where = Path(str(module.__file__))
        if environment not in where.parents:
            message = f"{module.__name__} came from {where}, not from {environment}: is the checkout on the path?"
            raise RuntimeError(message)
    untyped = [package for package in ("connector", "ledger", "offload") if not (home / package / "py.typed").is_file()]
    if untyped:
        message = f"the wheel came without py.typed in {', '.join(untyped)}: type checkers would take them for untyped"
        raise RuntimeError(message)
    if crc_implementation != "c":
        message = f"google-crc32c runs its {crc_implementation} implementation, wanted c: checksums crawl"
        raise RuntimeError(message)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.sql.catalogImplementation", "in-memory")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as directory:
        store = str(Path(directory) / "store")
        written = spark.range(ROWS).withColumnRenamed("id", "number")
        written.write.format("ledger").option("store", store).mode("append").save("smoke")
        read = spark.read.format("ledger").option("store", store).load("smoke")
        total = read.selectExpr("sum(number) as total", "count(*) as rows").first()
        if total is None or (total.rows, total.total) != (ROWS, ROWS * (ROWS - 1) // 2):
            message = f"wrote {ROWS} rows with sum {ROWS * (ROWS - 1) // 2}, read {total}"
            raise RuntimeError(message)
        print(f"smoke: {ROWS} rows written and read with Spark {spark.version}")
    spark.stop()


if __name__ == "__main__":
    main()
