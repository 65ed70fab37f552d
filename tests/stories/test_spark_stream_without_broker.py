"""Goal: a query reads a store in a bucket without its broker, and each row once. Method: Spark, a real S3, and kills.

The query has credentials that only allow reads. A query continues from one checkpoint through the broker and without
it, in turn. Its sink is a directory of Parquet, so that the copy needs no broker either.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.errors import Refused
from streaming_examples.s3_server import S3Server
from tests.rigs.available_now import ONE_BATCH, RUN_ALL, run_all
from tests.rigs.deadline import wait_until

pytestmark = pytest.mark.sessions
READER = "streaming_examples.s3_server:reader_credentials"


def access(bucket: str, s3_server: S3Server) -> dict[str, str]:
    return {
        "store": bucket,
        "broker": "none",
        "offloadEndpoint": s3_server.endpoint,
        "credentialProvider": READER,
    }


def write(ledger: Ledger, first: int, count: int) -> None:
    for number in range(first, first + count, 10):
        ledger.append([{"id": number + row} for row in range(10)])


def seal(ledger: Ledger) -> None:
    """Upload everything that the ledger has."""
    with suppress(Refused):  # the broker uploads the sealed segment by itself already
        ledger.offload(seal=True)
    wait_until(lambda: all(part.offloaded or not part.entries for part in ledger.describe().segments), "the upload")


def ids(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(path)).collect())


def test_a_query_goes_from_the_broker_to_none_and_back(
    spark_session: SparkSession, directory: Path, bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    ledger = connect(bucket).ledger("orders")
    copy, checkpoint = tmp_path / "copy", tmp_path / "checkpoint"
    total = 0
    for turn in range(4):
        write(ledger, total, 100)
        total += 100
        if turn == 1:
            seal(ledger)
        options = access(bucket, s3_server) if turn % 2 else {"store": str(directory)}
        read = spark_session.readStream.format("ledger").options(**options)
        rows = read.option("startingPosition", "earliest").option("maxRowsPerTrigger", "30").load("orders")
        sink = rows.writeStream.format("parquet").option("path", str(copy))
        sink = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        progress = run_all(sink.start)
        assert sum(batch["numInputRows"] for batch in progress) == 100
        if not ONE_BATCH:
            assert len([batch for batch in progress if batch["numInputRows"]]) == 4, "within the limit"
        assert ids(spark_session, copy) == list(range(total)), f"turn {turn}"


def test_a_running_query_follows_appends_uploads_and_take_overs(
    spark_session: SparkSession, directory: Path, bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    ledger = connect(bucket).ledger("orders")
    write(ledger, 0, 50)
    found: list[int] = []

    def collect(rows: DataFrame, _batch: int) -> None:
        found.extend(row.id for row in rows.collect())

    read = spark_session.readStream.format("ledger").options(**access(bucket, s3_server))
    rows = read.option("startingPosition", "earliest").load("orders")
    sink = rows.writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = sink.start()
    try:
        for turn in range(1, 4):
            wait_until(lambda turn=turn: len(found) >= 50 * turn or not query.isActive, "rows", seconds=120)
            if turn == 2:
                stop_broker(directory)
                ledger = connect(bucket).ledger("orders")
            write(ledger, 50 * turn, 50)
            seal(ledger)
        wait_until(lambda: len(found) >= 200 or not query.isActive, "rows", seconds=120)
        assert query.exception() is None
    finally:
        query.stop()
    assert sorted(found) == list(range(200))


def test_a_ledger_that_was_created_again_ends_the_query_or_is_reported(
    spark_session: SparkSession, directory: Path, bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    store = connect(bucket)
    checkpoint = tmp_path / "checkpoint"

    def run(**options: str) -> list[Any]:
        read = spark_session.readStream.format("ledger").options(**access(bucket, s3_server), **options)
        rows = read.option("startingPosition", "earliest").load("orders")
        sink = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        return run_all(sink.trigger(availableNow=True).start)

    write(store.ledger("orders"), 0, 50)
    run()
    store.delete("orders")
    write(store.ledger("orders"), 0, 20)
    with pytest.raises(PySparkException, match=r"LEDGER_DATA_LOSS.*deleted and created again"):
        run()
    progress = run(failOnDataLoss="false")
    assert sum(batch["numInputRows"] for batch in progress) == 20


def test_a_subscription_and_a_sink_without_a_broker_are_refused(
    spark_session: SparkSession, directory: Path, bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    write(connect(bucket).ledger("orders"), 0, 10)
    read = spark_session.readStream.format("ledger").options(**access(bucket, s3_server))
    with pytest.raises(PySparkException, match="option 'subscription' is 'copy' with 'broker' = 'none'"):
        read.option("subscription", "copy").load("orders").writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "one")
        ).start().awaitTermination()
    rows = spark_session.range(3)
    with pytest.raises(PySparkException, match=r"Only the store's broker can append\. Leave 'broker' out"):
        rows.write.format("ledger").option("store", bucket).option("broker", "none").mode("append").save("orders")
    stream = spark_session.readStream.format("rate").load().select("value")
    with pytest.raises(PySparkException, match=r"Only the store's broker can append\. Leave 'broker' out"):
        stream.writeStream.format("ledger").option("store", bucket).option("broker", "none").option(
            "checkpointLocation", str(tmp_path / "two")
        ).start("orders").awaitTermination()


COPY = (
    """
import sys
from pyspark_ledger import session
store, endpoint, checkpoint, copy, broker = sys.argv[1:]
spark = session("copy")
read = spark.readStream.format("ledger").option("store", store).option("startingPosition", "earliest")
if broker == "none":
    read = read.option("broker", "none").option("offloadEndpoint", endpoint).option("credentialProvider", "READER")
rows = read.option("maxRowsPerTrigger", "BATCH_ROWS").load("orders")
write = rows.writeStream.format("parquet").option("path", copy).option("checkpointLocation", checkpoint)
names = ()
RUN_ALL
""".replace("RUN_ALL", RUN_ALL)
    .replace("READER", READER)
    .replace("BATCH_ROWS", "100" if ONE_BATCH else "20")
)


@pytest.mark.fault
def test_the_copy_is_exact_when_a_query_without_a_broker_is_killed(
    spark_session: SparkSession, directory: Path, bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    """Kills of all processes of the query, which continues without the broker and through it in turn."""
    ledger, dice = connect(bucket).ledger("orders"), random.Random(7)
    write(ledger, 0, 400)
    copy, commits = tmp_path / "copy", tmp_path / "checkpoint" / "commits"
    script = tmp_path / "copying.py"
    script.write_text(COPY, encoding="utf-8")

    def start(broker: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), bucket, s3_server.endpoint, str(tmp_path / "checkpoint"), str(copy)]
        with (tmp_path / "copy.log").open("ab") as log:
            return subprocess.Popen([*command, broker], start_new_session=True, stdout=log, stderr=log)

    def committed() -> int:
        return len([path for path in commits.glob("*") if path.name.isdecimal()])

    for broker in ("none", "auto", "none"):
        had, process = committed(), start(broker)
        try:
            until = time.monotonic() + 180
            while committed() == had and process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(dice.uniform(0, 1))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seal(ledger)
    write(ledger, 400, 50)
    process = start("none")
    assert process.wait(300) == 0, (tmp_path / "copy.log").read_text(encoding="utf-8")[-3_000:]
    assert ids(spark_session, copy) == list(range(450))
