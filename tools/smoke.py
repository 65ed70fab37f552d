"""First steps of a new user with the installed wheel and nothing else: write rows, read and copy them with Spark.

Run this script with the interpreter of a clean environment, from a directory outside of the checkout. It prints one
line, or fails.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from google_crc32c import implementation as crc_implementation
from pyspark.sql import SparkSession

import pyspark_ledger

ROWS = 1_000


def main() -> None:
    """Write and read through `format("ledger")`, in batches and streams, without registering anything."""
    environment = Path(sys.prefix)
    home = Path(str(pyspark_ledger.__file__)).parent
    if environment not in home.parents:
        message = f"pyspark_ledger came from {home}, not from {environment}: is the checkout on the path?"
        raise RuntimeError(message)
    if not (home / "py.typed").is_file():
        message = "the wheel came without py.typed: type checkers would take the package for untyped"
        raise RuntimeError(message)
    strangers = [name for name in ("connector", "ledger", "offload") if find_spec(name) is not None]
    if strangers:
        message = f"the wheel put {', '.join(strangers)} at the top of site-packages, where only pyspark_ledger belongs"
        raise RuntimeError(message)
    if crc_implementation != "c":
        message = f"google-crc32c uses its slow {crc_implementation} implementation, expected c"
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
        batches = copy_as_stream(spark, store, directory)
        print(f"smoke: {ROWS} rows written, read and copied in {batches} batches with Spark {spark.version}")
    spark.stop()


def copy_as_stream(spark: SparkSession, store: str, directory: str) -> int:
    """Copy the ledger by two runs of a limited stream into the streaming sink. Return the number of batches."""
    sizes = []
    for _ in range(2):
        stream = spark.readStream.format("ledger").option("store", store).option("maxRowsPerTrigger", "400")
        rows = stream.option("startingPosition", "earliest").option("subscription", "smoke").load("smoke")
        write = rows.writeStream.format("ledger").option("store", store).queryName("smoke")
        query = write.option("checkpointLocation", f"{directory}/checkpoint").start("copied")
        query.processAllAvailable()
        sizes += [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
        query.stop()
        spark.range(ROWS).withColumnRenamed("id", "number").write.format("ledger").option("store", store).mode(
            "append"
        ).save("smoke")
    copied = spark.read.format("ledger").option("store", store).load("copied")
    total = copied.selectExpr("sum(number) as total", "count(*) as rows").first()
    if total is None or (total.rows, total.total) != (2 * ROWS, ROWS * (ROWS - 1)):
        message = f"copied {2 * ROWS} rows with sum {ROWS * (ROWS - 1)}, read {total}"
        raise RuntimeError(message)
    return len(sizes)


if __name__ == "__main__":
    main()
