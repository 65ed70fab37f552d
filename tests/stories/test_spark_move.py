"""Goal: a query continues with its checkpoint after its store moved. Method: a directory, then a real S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.location import bucket_directory
from streaming_examples.s3_server import S3Server
from tests.rigs.broker_process import store
from tests.rigs.command import run
from tests.rigs.moving_store import reserved

__all__ = ["store"]


@pytest.fixture
def place(bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LEDGER_CACHE", str(tmp_path / "cache"))
    yield bucket
    stop_broker(bucket_directory(bucket))


@pytest.mark.sessions
def test_a_query_continues_with_its_checkpoint_after_a_move(
    spark_session: SparkSession, store: Path, place: str, tmp_path: Path
) -> None:
    def write(where: str, first: int, count: int) -> None:
        rows = spark_session.range(first, first + count).selectExpr("id")
        rows.write.format("ledger").option("store", where).mode("append").save("source")

    def copy(where: str) -> None:
        source = spark_session.readStream.format("ledger").option("store", where).option("subscription", "copy")
        rows = source.option("startingPosition", "earliest").load("source")
        sink = rows.writeStream.format("ledger").option("store", where)
        sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        sink.start("copies").awaitTermination()

    def ids(where: str) -> list[int]:
        found = spark_session.read.format("ledger").option("store", where).load("copies").select("id").collect()
        return sorted(row.id for row in found)

    write(str(store), 0, 500)
    copy(str(store))
    write(str(store), 500, 500)
    reserved(connect(store).client.hello().store_id, place)
    run("store", "move", str(store), place)
    connect(place)  # starts the broker: Spark's processes have no credentials
    there = str(bucket_directory(place))
    copy(there)
    assert ids(there) == list(range(1_000))
    write(there, 1_000, 500)
    copy(there)
    assert ids(there) == list(range(1_500))
