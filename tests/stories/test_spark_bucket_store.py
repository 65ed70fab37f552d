"""Goal: Spark needs the bucket of a store, and not a disk. Method: a store in a real S3, the cache deleted.

A stream continues on a new broker. A batch read works without a broker, and a proxy refuses writes. A session with
another cache uses the broker of the first one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pyspark_ledger import serve
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.protocol.cache import AskCache
from streaming_examples.s3_server import S3Server
from tests.rigs.deadline import wait_until
from tests.rigs.fault_proxy import FaultProxy

pytestmark = pytest.mark.sessions
PROVIDER = "streaming_examples.s3_server:credentials"


def test_a_stream_continues_after_the_disk_is_lost(
    spark_session: SparkSession, directory: Path, bucket: str, tmp_path: Path
) -> None:
    options = {"store": str(directory)}

    def write(first: int, count: int) -> None:
        rows = spark_session.range(first, first + count).selectExpr("id", "id % 7 AS day")
        rows.write.format("ledger").options(**options).mode("append").save("flights")

    def run() -> None:
        source = spark_session.readStream.format("ledger").options(**options)
        rows = source.option("subscription", "copy").option("startingPosition", "earliest").load("flights")
        sink = rows.where("day < 5").writeStream.format("ledger").options(**options)
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start("some")
        query.awaitTermination()

    def ids(name: str) -> list[int]:
        found = spark_session.read.format("ledger").options(**options).load(name).select("id").collect()
        return sorted(row.id for row in found)

    write(0, 1_000)
    run()
    stop_broker(directory)
    shutil.rmtree(directory)
    connect(bucket)
    write(1_000, 500)
    run()
    assert ids("flights") == list(range(1_500))
    assert ids("some") == [number for number in range(1_500) if number % 7 < 5]


def test_a_cluster_serves_the_store_that_an_earlier_cluster_left(
    spark_session: SparkSession, directory: Path, bucket: str
) -> None:
    for first in (0, 100):
        stop_broker(directory)
        shutil.rmtree(directory)
        served = serve(spark_session, bucket, host="127.0.0.1")
        try:
            rows = spark_session.range(first, first + 100)
            rows.write.format("ledger").mode("append").save("served")
            found = spark_session.read.format("ledger").load("served").collect()
        finally:
            served.stop()
        assert sorted(row.id for row in found) == list(range(first + 100))


def test_a_batch_read_without_a_broker_returns_segments_and_tail(
    spark_session: SparkSession, directory: Path, bucket: str, s3_server: S3Server
) -> None:
    options = {"store": str(directory)}

    def write(first: int, count: int) -> None:
        rows = spark_session.range(first, first + count).selectExpr("id", "id % 7 AS day")
        rows.write.format("ledger").options(**options).mode("append").save("flights")

    write(0, 1_000)
    ledger = connect(bucket).ledger("flights")
    with suppress(Refused):  # the broker uploads the sealed segment by itself already
        ledger.offload(seal=True)
    wait_until(lambda: ledger.describe().segments[0].offloaded, "the upload")
    through = {**options, "offloadEndpoint": s3_server.endpoint, "credentialProvider": PROVIDER, "mapping": "off"}
    assert spark_session.read.format("ledger").options(**through).load("flights").count() == 1_000
    assert connect(bucket).client.ask(AskCache()).direct_entries, "the tasks have fetched them from the bucket"
    write(1_000, 500)
    stop_broker(directory)
    shutil.rmtree(directory.parent)
    with FaultProxy(s3_server.endpoint) as proxy:
        for method in ("PUT", "POST", "DELETE"):
            proxy.on(method, "", "forbidden", times=1_000)
        access = {"offloadEndpoint": proxy.endpoint, "credentialProvider": PROVIDER}
        read = spark_session.read.format("ledger").options(store=bucket, broker="none", **access)
        flights = read.option("includeMetadata", "true").option("targetPartitionBytes", "4k").load("flights")
        assert flights.rdd.getNumPartitions() > 1
        days = {row.day: row["count"] for row in flights.groupBy("day").count().collect()}
        assert days == {day: len(range(day, 1_500, 7)) for day in range(7)}
        assert flights.select(f.countDistinct("__position")).first()[0] == 1_500
        assert not proxy.met, "nothing was written"
        assert not directory.parent.exists()


OTHER_HOST = """
import sys
from pyspark_ledger import configure, session

bucket, checkpoint, endpoint, provider = sys.argv[1:]
spark = configure(session(), store=bucket, options={"offloadEndpoint": endpoint, "credentialProvider": provider})
spark.range(100, 200).selectExpr("id").write.format("ledger").mode("append").save("flights")
read = spark.readStream.format("ledger").option("subscription", "copy").option("startingPosition", "earliest")
write = read.load("flights").writeStream.format("ledger").option("checkpointLocation", checkpoint)
assert write.trigger(availableNow=True).start("copied").awaitTermination(60)
rows = spark.read.format("ledger").load("copied")
assert sorted(row.id for row in rows.collect()) == list(range(200))
print(rows._jdf.queryExecution().toString())
"""


def test_spark_on_another_host_uses_the_broker_that_the_manifest_names(
    directory: Path, bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    """In a process of its own: Spark's workers have the environment of their JVM's start."""
    flights = connect(bucket).ledger("flights")
    flights.append([{"id": number} for number in range(100)])
    environment = {**os.environ, "LEDGER_CACHE": str(tmp_path / "two")}
    command = [sys.executable, "-c", OTHER_HOST, bucket, str(tmp_path / "checkpoint"), s3_server.endpoint, PROVIDER]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    (other,) = (tmp_path / "two").iterdir()
    assert not (other / "broker.json").exists(), "it has no broker of its own"
    token = (other / "remote.token").read_text()
    assert token not in ran.stdout + ran.stderr
    assert flights.read().num_rows == 200
    assert connect(bucket).client.hello().store_path == str(directory)
