"""Goal: Spark's tasks put large parts into the bucket of a store themselves, exactly once. Method: a real S3 server.

A batch write, a stream that is repeated on a new broker, and a session whose tasks may not write to the bucket.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.protocol.metrics import AskMetrics, PartCounts
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from streaming_examples.s3_server import S3Server
from tests.rigs.deadline import wait_until
from tests.rigs.fault_proxy import FaultProxy

PROVIDER = "streaming_examples.s3_server:credentials"
ROWS = 40_000  # of a partition: 40 MB


def rows(spark: SparkSession, first: int, partitions: int, small: int = 0) -> DataFrame:
    """Return partitions of 40 MB, and `small` partitions of one row."""
    large = spark.range(first, first + partitions * ROWS, 1, partitions)
    frame = large.select("id", f.repeat(f.lpad(f.col("id").cast("string"), 10, "0"), 100).alias("text"))
    if small:
        few = spark.range(-small, 0, 1, small).select("id", f.lit("few").alias("text"))
        frame = frame.union(few)
    return frame


def written(frame: DataFrame, directory: Path, **options: str) -> None:
    access = {"store": str(directory), "compression": "none", "credentialProvider": PROVIDER, **options}
    frame.write.format("ledger").options(**access).mode("append").save("flights")


def ids(spark: SparkSession, directory: Path) -> list[int]:
    found = spark.read.format("ledger").options(store=str(directory)).load("flights")
    assert found.where("id >= 0 and text != repeat(lpad(string(id), 10, '0'), 100)").count() == 0
    return sorted(row.id for row in found.select("id").collect())


def parts_of(bucket: str) -> PartCounts:
    found = connect(bucket).client.ask(AskMetrics())
    return found.parts


def data_objects(bucket: str) -> list[str]:
    keys = [found.key for found in open_object_store(f"{bucket}/segments").objects()]
    return [key for key in keys if (parsed := ObjectKey.parse(key)) is not None and not parsed[1]]


@pytest.mark.thorough
def test_large_parts_become_segments_of_the_bucket(spark_session: SparkSession, directory: Path, bucket: str) -> None:
    written(rows(spark_session, 0, 2, small=1), directory)
    assert ids(spark_session, directory) == [-1, *range(2 * ROWS)]
    described = connect(bucket).ledger("flights").describe()
    assert [segment.offloaded for segment in described.segments] == [True] * 3
    assert len(data_objects(bucket)) == 3
    parts = parts_of(bucket)
    assert (parts.direct, parts.staged) == (2, 1)
    assert parts.direct_bytes > 2 * ROWS * 1_000 > 1_000_000 > parts.staged_bytes
    wal = sum(found.size for found in open_object_store(bucket).objects("wal/"))
    assert wal < 10_000_000, "the log of the store has no row of a large part"
    stop_broker(directory)
    shutil.rmtree(directory)
    connect(bucket)
    assert ids(spark_session, directory) == [-1, *range(2 * ROWS)]
    written(rows(spark_session, 2 * ROWS, 1), directory)
    assert ids(spark_session, directory) == [-1, *range(3 * ROWS)]


@pytest.mark.thorough
def test_a_stream_of_large_batches_continues_on_another_broker(
    spark_session: SparkSession, directory: Path, bucket: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"

    def run() -> Any:
        stream = spark_session.readStream.schema("id long, text string").parquet(str(source))
        access = {"store": str(directory), "compression": "none", "credentialProvider": PROVIDER}
        sink = stream.writeStream.format("ledger").options(**access)
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        running = query.start("flights")
        running.awaitTermination()
        return running

    rows(spark_session, 0, 1).write.mode("append").parquet(str(source))
    run()
    stop_broker(directory)
    shutil.rmtree(directory)
    connect(bucket)
    rows(spark_session, ROWS, 1).write.mode("append").parquet(str(source))
    run()
    assert ids(spark_session, directory) == list(range(2 * ROWS))
    assert all(segment.offloaded for segment in connect(bucket).ledger("flights").describe().segments)


@pytest.mark.thorough
def test_tasks_without_access_send_their_parts_to_the_broker(
    spark_session: SparkSession, directory: Path, bucket: str, s3_server: S3Server
) -> None:
    with FaultProxy(s3_server.endpoint) as proxy:
        proxy.on("POST", "", "forbidden", times=1_000)
        written(rows(spark_session, 0, 1), directory, offloadEndpoint=proxy.endpoint)
        assert proxy.met, "a task tried to begin an upload"
    assert ids(spark_session, directory) == list(range(ROWS))
    assert (parts_of(bucket).direct, parts_of(bucket).staged) == (0, 1)
    ledger = connect(bucket).ledger("flights")
    wait_until(lambda: ledger.describe().rows == ROWS, "the rows")
