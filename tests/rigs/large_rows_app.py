"""Query that copies `in` to `out`, each row with a text of 100 KB, so that the parts of its tasks become segments.

`python -m tests.rigs.large_rows_app STORE CHECKPOINT POINTS` runs until it is killed. A task that fails is repeated.
"""

from __future__ import annotations

import hashlib
import sys

from pyspark.sql import SparkSession

from pyspark_ledger import configure
from tests.rigs.fault_points import OPTION, StoppingSource

BATCH_ROWS = 8
PART_BYTES = 256 * 1024
"""Smaller than the part of a task, which has half of the rows of a batch."""
_REPEATS = 800


def text_of(number: int) -> str:
    return hashlib.sha512(str(number).encode()).hexdigest() * _REPEATS


def main(store: str, checkpoint: str, points: str) -> None:
    builder = SparkSession.builder.master("local[2,8]").appName("large-rows").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "512m").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    configure(spark)
    spark.dataSource.register(StoppingSource)
    read = spark.readStream.format("ledger").option("store", store).option("startingPosition", "earliest")
    rows = read.option("maxRowsPerTrigger", BATCH_ROWS).option("subscription", "copy").load("in").repartition(2)
    large = rows.selectExpr("n", f"repeat(sha2(cast(n as string), 512), {_REPEATS}) as text")
    write = large.writeStream.format("stopping").option("store", store).option(OPTION, points)
    write = write.option("entryBytes", "100k").option("compression", "none")
    write.option("checkpointLocation", checkpoint).start("out").awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
