"""Query that copies `in` to `out`, each row with a text of 100 KB, so that the parts of its tasks become segments.

`python -m tests.rigs.large_rows_app STORE CHECKPOINT POINTS` runs until it is killed. Spark repeats a failed task. The
executor is another process than the driver, and Spark replaces an executor that is killed.
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
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": _JVM,
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": _JVM,
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "8",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


def text_of(number: int) -> str:
    return hashlib.sha512(str(number).encode()).hexdigest() * _REPEATS


def main(store: str, checkpoint: str, points: str) -> None:
    builder = SparkSession.builder.master("local-cluster[1,2,512]").appName("large-rows")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
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
