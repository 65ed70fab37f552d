"""Rows per second of the sink into a store in a bucket, against Delta tables that Spark writes to the same S3.

Parquet files on the disk are streamed into both, two files in a batch, so both sides have two tasks. Delta writes
through Hadoop's S3A, the usual way. Flights have five columns, whose values repeat. Rows of 1 KiB are random. Both
sides write to the same SeaweedFS, which shares the two cores with Spark. The parts of the sink are larger than 32 MiB,
so each task puts its part into the bucket itself.

The measured time is `triggerExecution` of the batches, without the first batch. The result is the lower ratio of the
two kinds of rows. `SINK_CASES` selects from `flights,1KiB`.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from benchmarks.beside_kafka import MIB, per_batch, values
from benchmarks.bucket_scan import S3A, s3a
from benchmarks.harness import compare
from benchmarks.maven_jars import jars
from benchmarks.raw_disk import bench_dir
from benchmarks.spark_queries import drained, session
from benchmarks.stream_read_kafka_columns import flights
from pyspark_ledger.connector.session.delta import delta_settings
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.location import bucket_directory
from streaming_examples.s3_server import S3Server

BUCKET = "bench"
FILES_PER_BATCH = 2
BATCHES = 2
CASES = os.environ.get("SINK_CASES", "flights,1KiB").split(",")
_FLIGHTS_COPIES = 2  # in a file: 3 million flights take 19 MB in a ledger


@dataclass
class Sinks:
    """Session, store and S3 server of a comparison."""

    spark: SparkSession
    store: str
    server: S3Server
    folder: Path
    serial: Iterator[int]

    def fresh(self) -> Path:
        """Return an unused path."""
        return self.folder / f"{next(self.serial)}"

    def stream(self, source: Path) -> DataFrame:
        """Return a stream of the files' rows, with two files per batch."""
        schema = self.spark.read.parquet(str(source)).schema
        return self.spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(source))

    def ours(self, source: Path) -> float:
        """Return the seconds per batch into a new ledger."""
        ledger = f"out{next(self.serial)}"
        writer = self.stream(source).writeStream.format("ledger").option("store", self.store)
        writer = writer.option("checkpointLocation", str(self.fresh())).trigger(availableNow=True)
        took = per_batch(drained(writer.start(ledger)))
        client = connect(self.store)
        segments = client.ledger(ledger).describe().segments
        if len(segments) != BATCHES * FILES_PER_BATCH:
            raise SystemExit(f"{ledger} has {len(segments)} segments: parts went through the broker")
        client.client.delete(client.ledger(ledger).name)
        return took

    def theirs(self, source: Path) -> float:
        """Return the seconds per batch into a new Delta table."""
        writer = self.stream(source).writeStream.format("delta").option("checkpointLocation", str(self.fresh()))
        table = f"s3a://{BUCKET}/table{next(self.serial)}"
        return per_batch(drained(writer.trigger(availableNow=True).start(table)))


@contextmanager
def sinks() -> Iterator[Sinks]:
    """Yield both sinks. Server, broker and session end with the block, also after SIGTERM."""
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="bucket-", dir=bench_dir()))
    os.environ["LEDGER_CACHE"] = str(folder / "cache")
    try:
        with S3Server.start(folder / "s3") as server:
            server.make_bucket(BUCKET)
            os.environ |= server.environment
            store = f"s3://{BUCKET}/store"
            connect(store)
            delta = dict(delta_settings())
            spark = session(jars(S3A), {**s3a(server.endpoint), **delta, "spark.driver.memory": "3g"})
            try:
                yield Sinks(spark, store, server, folder, count())
            finally:
                spark.stop()
                stop_broker(bucket_directory(store))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_flights(folder: Path) -> None:
    """Write the files of all batches with flights."""
    table = pq.read_table(flights())
    table = pa.concat_tables([table] * _FLIGHTS_COPIES)
    first = folder / "0.parquet"
    pq.write_table(table, first)
    for number in range(1, BATCHES * FILES_PER_BATCH):
        shutil.copyfile(first, folder / f"{number}.parquet")


def write_random(folder: Path) -> None:
    """Write the files of all batches with random rows of 1 KiB."""
    rows = 64 * MIB // 1024
    for number in range(BATCHES * FILES_PER_BATCH):
        pq.write_table(pa.table(values(number * rows, rows, 1024)), folder / f"{number}.parquet", compression="none")


def main() -> None:
    """Print both comparisons. The last line is the lower ratio."""
    found = []
    with sinks() as both:
        for kind in CASES:
            source = both.fresh()
            source.mkdir()
            (write_flights if kind == "flights" else write_random)(source)
            compared = compare(f"bucket_sink_{kind}", partial(both.ours, source), partial(both.theirs, source))
            found.append(compared.ratio)
    print(f"ratio bucket_sink {min(found):.3f}")


if __name__ == "__main__":
    main()
