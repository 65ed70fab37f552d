"""Group-by over flights: columns of a ledger, against JSON in Kafka with `from_json`, the usual format in Kafka.

The data are the 3 million flights of vega-datasets 3.2.1 (npm), whose licence does not allow redistribution. `FLIGHTS`
names the file; otherwise the file is fetched into `build/`. Each round reads the flights in batches of a million. It
computes count, mean delay and distance by origin. After each batch the whole result goes into noop (complete mode).
`FLIGHTS_BATCH_ROWS` sets smaller batches, for a smaller file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from benchmarks.beside_kafka import ROUNDS, Peers, peers, per_batch
from benchmarks.harness import compare
from benchmarks.spark_queries import drained

PACKAGE = "vega-datasets@3.2.1"
_FILE = "flights-3m.parquet"
BATCH_ROWS = int(os.environ.get("FLIGHTS_BATCH_ROWS", "1000000"))
FIELDS = "date timestamp, delay bigint, distance bigint, origin string, destination string"


def flights() -> Path:
    """Return the file of flights."""
    given = os.environ.get("FLIGHTS")
    path = Path(given) if given else Path("build") / _FILE
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        packed = subprocess.run(
            ["npm", "pack", "--silent", "--pack-destination", str(path.parent), PACKAGE],  # noqa: S607  # as installed
            check=True,
            capture_output=True,
            text=True,
        )
        with tarfile.open(path.parent / packed.stdout.strip()) as archive:
            source = archive.extractfile(f"package/data/{_FILE}")
            if source is None:
                raise FileNotFoundError(f"{PACKAGE} holds no {_FILE}")
            with path.open("wb") as target:
                shutil.copyfileobj(source, target)
    return path.absolute()


def grouped(rows: DataFrame) -> DataFrame:
    """Return the aggregation of the flights."""
    return rows.groupBy("origin").agg(f.count("*"), f.avg("delay"), f.sum("distance"))


def seconds(both: Peers, rows: DataFrame) -> float:
    """Return the seconds per batch of the group-by."""
    writer = grouped(rows).writeStream.format("noop").outputMode("complete")
    writer = writer.option("checkpointLocation", str(both.fresh()))
    return per_batch(drained(writer.trigger(availableNow=True).start()))


def main() -> None:
    """Print the comparison. The last line is the ratio."""
    with peers() as both:
        rows = both.spark.read.parquet(str(flights())).withColumn("date", f.col("date").cast("timestamp"))
        both.kafka.create("flights")
        rows.write.format("ledger").option("store", str(both.store)).mode("append").save("flights")
        both.to_kafka(rows.select(f.to_json(f.struct("*")).alias("value")), "flights")

        def base() -> float:
            text = both.kafka_stream("flights", BATCH_ROWS).select(f.col("value").cast("string").alias("text"))
            return seconds(both, text.select(f.from_json("text", FIELDS).alias("row")).select("row.*"))

        compare(
            "stream_read_kafka_columns",
            lambda: seconds(both, both.ledger_stream("flights", BATCH_ROWS)),
            base,
            rounds=ROUNDS,
        )


if __name__ == "__main__":
    main()
