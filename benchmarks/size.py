"""Bytes of 3 million flights in the log, over Spark's own Parquet (snappy) of the same rows.

    size_zstd    with the option `compression=zstd`
    size         with the default encoding

Sizes are the same in each run: Parquet's files, and the segments of the ledger. The rows are those of
`stream_read_kafka_columns`, written by two tasks.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import functions as f

from benchmarks.spark_queries import session
from benchmarks.stream_read_kafka_columns import flights
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import stop_broker


def main() -> None:
    """Write the flights three times, and print both ratios."""
    with tempfile.TemporaryDirectory() as made:
        folder, spark = Path(made), session()
        store = connect(folder / "store", create=True)
        try:
            rows = spark.read.parquet(str(flights())).withColumn("date", f.col("date").cast("timestamp"))
            rows.write.parquet(str(folder / "parquet"))
            parquet = sum(path.stat().st_size for path in (folder / "parquet").glob("*.parquet"))
            for name, compression in (("size_zstd", "zstd"), ("size", "auto")):
                write = rows.write.format("ledger").options(store=str(folder / "store"), compression=compression)
                write.mode("append").save(name)
                log = store.ledger(name).describe().size_bytes
                print(f"Parquet {parquet:,} bytes, the log with compression={compression} {log:,} bytes")
                print(f"ratio {name} {log / parquet:.3f}", flush=True)
        finally:
            spark.stop()
            stop_broker(folder / "store")


if __name__ == "__main__":
    main()
