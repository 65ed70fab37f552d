"""Goal: Spark writes each row once to its ledger, also after repeated batches, and refused writes have helpful errors.

Method: stories over a real session, checkpoint and broker.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from pyspark_ledger.ledger.api.store import LedgerStore, connect
from tests.rigs.available_now import ONE_BATCH, run_all

pytestmark = pytest.mark.feature("the sink: routing, repeated batches, refusals")


def numbers(api: LedgerStore, name: str) -> list[int]:
    return sorted(api.ledger(name).read().column("n").to_pylist())


def append(api: LedgerStore, first: int, end: int) -> None:
    api.ledger("in").append(pa.table({"n": pa.array(range(first, end), pa.int64())}))


def source(spark: SparkSession, store: Path, **options: str) -> DataFrame:
    read = spark.readStream.format("ledger").option("store", str(store)).options(**options)
    return read.option("startingPosition", "earliest").load("in")


def sink(rows: DataFrame, store: Path, checkpoint: Path, **options: str) -> DataStreamWriter:
    write = rows.writeStream.format("ledger").option("store", str(store)).options(**options)
    return write.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def done(*queries: StreamingQuery) -> None:
    try:
        for query in queries:
            assert query.awaitTermination(120)
    finally:
        for query in queries:
            query.stop()


def forget_last_commit(checkpoint: Path) -> None:
    """Delete Spark's commit, as if Spark had died between the sink's commit and its own."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink()


@pytest.mark.thorough
def test_a_routed_stream_and_another_query_of_one_ledger(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    api = connect(store)
    for first in range(0, 60, 10):
        append(api, first, first + 10)

    def routed(name: Column) -> DataStreamWriter:
        rows = source(spark_session, store, maxRowsPerTrigger="20").withColumn("__ledger", name)
        rows = rows.withColumn("__key", f.col("n").cast("string")).repartition(2)
        return sink(rows, store, tmp_path / "routed", createLedgers="true")

    third = f.concat(f.lit("third-"), f.col("n") % 3)
    plain = sink(source(spark_session, store, maxRowsPerTrigger="30"), store, tmp_path / "plain")
    done(routed(third).start(), plain.start("third-0"))
    if ONE_BATCH:
        run_all(routed(third).start)
        run_all(lambda: plain.start("third-0"))
    assert numbers(api, "third-1") == list(range(1, 60, 3))
    assert numbers(api, "third-0") == sorted([*range(0, 60, 3), *range(60)])

    # The last batch is repeated with other routing: its first commit is valid.
    forget_last_commit(tmp_path / "routed")
    done(routed(f.lit("elsewhere")).start())
    assert numbers(api, "third-1") == list(range(1, 60, 3))
    assert "public/default/persistent/elsewhere" not in api.names() or not numbers(api, "elsewhere")
    read = spark_session.read.format("ledger").options(store=str(store), includeMetadata="true").load("third-1")
    assert read.where("__key = cast(n as string)").count() == 20


@pytest.mark.thorough
def test_a_batch_in_foreach_batch_is_written_once(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    api, failing = connect(store), [True]
    append(api, 0, 10)

    def write(rows: DataFrame, batch: int) -> None:
        writer = rows.write.format("ledger").mode("append")
        writer = writer.options(store=str(store), txnAppId="copies", txnVersion=str(batch))
        writer.save("first")
        if failing.pop() if failing else False:
            message = "between two writes"
            raise ValueError(message)
        writer.save("second")

    def run() -> None:
        copy = source(spark_session, store).writeStream.foreachBatch(write)
        done(copy.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start())

    with pytest.raises(Exception, match="between two writes"):
        run()
    assert numbers(api, "first") == list(range(10))
    run()
    assert numbers(api, "first") == numbers(api, "second") == list(range(10))
    append(api, 10, 15)
    run()
    assert numbers(api, "first") == numbers(api, "second") == list(range(15))


@pytest.mark.thorough
def test_a_batch_that_is_there_already_is_not_written_again(spark_session: SparkSession, store: Path) -> None:
    api = connect(store)

    def write(rows: int, version: int) -> None:
        frame = spark_session.range(rows).withColumnRenamed("id", "n")
        writer = frame.write.format("ledger").mode("append").options(store=str(store))
        writer.options(txnAppId="nightly", txnVersion=str(version)).save("nights")

    write(10, 3)
    for version in (3, 2):
        write(1000, version)
        assert numbers(api, "nights") == list(range(10))
    write(2, 4)
    assert numbers(api, "nights") == sorted([*range(10), 0, 1])
    api.delete("nights")
    write(5, 3)
    assert numbers(api, "nights") == list(range(5)), "a ledger that was created again has seen no batch"


@pytest.mark.thorough
def test_complete_mode_appends_the_whole_result_each_time(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    api = connect(store)
    append(api, 0, 10)
    counted = source(spark_session, store).groupBy((f.col("n") % 2).alias("odd")).agg(f.count("*").alias("n"))
    for rows in (10, 20):
        done(sink(counted, store, tmp_path / "c").outputMode("complete").start("counts"))
        assert api.ledger("counts").read().column("n").to_pylist()[-2:] == [rows // 2] * 2
        append(api, 0, 10)
    assert numbers(api, "counts") == [5, 5, 10, 10]


@pytest.mark.thorough
def test_what_cannot_be_done_is_said(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    spark, api = spark_session, connect(store)
    append(api, 0, 1)
    rows = spark.range(3).withColumnRenamed("id", "n")
    writer = rows.write.format("ledger").option("store", str(store))
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING ledger OPTIONS (path 'in', store '{store}')")
    spark.sql("INSERT INTO v SELECT n + 10 FROM v")
    assert numbers(api, "in") == [0, 10]
    wide = rows.withColumn("n", f.col("n").cast("string"))
    stream = source(spark, store)
    for attempt, words in (
        (lambda: writer.save("in"), 'use either the "Append"'),  # Spark's error: no source is called
        (lambda: writer.mode("overwrite").save("in"), "overwrite is not supported.*only appended"),
        (lambda: spark.sql("INSERT OVERWRITE v SELECT 1"), "overwrite is not supported.*only appended"),
        (lambda: writer.mode("append").save(), "no ledger is named"),
        (lambda: spark.sql("CREATE TABLE t USING ledger"), "no table of Spark's catalog.*TEMPORARY VIEW"),
        (lambda: writer.mode("append").option("txnAppId", "x").save("in"), "'txnAppId' is given without 'txnVersion'"),
        (lambda: done(sink(stream, store, tmp_path / "a", txnAppId="x").start("in")), "'txnAppId' has no meaning"),
        (  # Spark's error, like the next one
            lambda: done(sink(stream.groupBy("n").count(), store, tmp_path / "u").outputMode("update").start("counts")),
            "ledger does not support Update mode",
        ),
        (
            lambda: sink(stream, store, tmp_path / "c").trigger(continuous="1 second").start("in"),
            "ledger does not support continuous processing",
        ),
        (
            lambda: wide.write.format("ledger").option("store", str(store)).mode("append").save("in"),
            "column 'n' of ledger .*in' is bigint, but string in the rows to write",
        ),
        (
            lambda: done(sink(stream.selectExpr("string(n) as n"), store, tmp_path / "b").start("in")),
            "column 'n' of ledger .*in' is bigint, but string in the rows to write",
        ),
    ):
        with pytest.raises(Exception, match=words):
            attempt()
    assert numbers(api, "in") == [0, 10]
    assert not list((store / "staging").rglob("*.part"))
