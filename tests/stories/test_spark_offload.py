"""Goal: a query reads from object storage, then from disk, then new rows, without gaps or repetitions.

Method: one story with a real S3 server. A query reads all three in small batches. The query is stopped, segments are
offloaded, and the query continues from its checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_ledger.ledger.api.store import connect
from streaming_examples.s3_server import S3Server


@pytest.mark.thorough
def test_one_checkpoint_reads_bucket_disk_and_tail(
    spark_session: SparkSession, store: Path, tmp_path: Path, s3_server: S3Server, bucket: str
) -> None:
    opened = connect(store)
    opened.offload_to(bucket, endpoint=s3_server.endpoint)
    orders = opened.ledger("orders")

    def append(first: int) -> None:
        orders.append([{"id": number, "note": "x" * 500} for number in range(first, first + 500)])

    def catch_up() -> None:
        query = (
            spark_session.readStream.format("ledger")
            .option("store", str(store))
            .option("startingPosition", "earliest")
            .option("maxRowsPerTrigger", 300)
            .load("orders")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert query.exception() is None

    append(0)
    orders.offload(seal=True)  # the bucket
    append(500)
    orders.offload(seal=True)
    orders.set_policy(managedLedgerOffloadDeletionLagInMillis=0)
    assert len(orders.trim().local) == 2
    append(1000)
    catch_up()  # … and the disk
    append(1500)
    orders.offload(seal=True)
    orders.trim()
    append(2000)
    catch_up()  # segments offloaded in between, and new rows
    found = [row.id for row in spark_session.read.parquet(str(tmp_path / "rows")).select("id").collect()]
    assert sorted(found) == list(range(2500))
