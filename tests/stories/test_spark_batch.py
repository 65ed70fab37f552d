"""Goal: rows written by Spark are the rows that Spark reads. Method: one story over a real session and broker."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.testing import assertDataFrameEqual

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from streaming_examples.acts.broker_control import stop_broker_of

pytestmark = pytest.mark.feature("batch reads and writes")

YEAR_MS = 365 * 24 * 60 * 60 * 1000


def every_type(spark: SparkSession) -> DataFrame:
    return spark.range(1000).select(
        "id",
        (f.col("id") % 2 == 0).alias("b"),
        (f.col("id") % 100).cast("tinyint").alias("i8"),
        f.col("id").cast("smallint").alias("i16"),
        f.when(f.col("id") % 3 > 0, f.col("id").cast("int")).alias("i32"),
        f.col("id").cast("float").alias("f"),
        (f.col("id") / 7).alias("d"),
        f.col("id").cast("decimal(20, 4)").alias("dec"),
        f.when(f.col("id") % 5 > 0, f.concat(f.lit("é"), f.col("id"))).alias("s"),
        f.col("id").cast("string").cast("binary").alias("bin"),
        f.expr("date_add(date'2020-01-01', cast(id as int))").alias("day"),
        f.expr("timestamp_micros(id * 1000001)").alias("at"),
        f.expr("cast(timestamp_micros(id * 1000001) as timestamp_ntz)").alias("at_ntz"),
        f.expr("make_dt_interval(0, 0, 0, id)").alias("gap"),
        f.expr("transform(sequence(0, cast(id % 3 as int)), x -> if(x = 1, null, x))").alias("many"),
        f.expr("map('k', id)").alias("by"),
        f.expr("map(id, array(named_struct('at', timestamp_micros(id), 'none', null)))").alias("by_id"),
        f.lit(None).alias("nothing"),
        f.expr("named_struct('x', cast(id as int), 'y', array(named_struct('z', 'q')))").alias("deep"),
    )


def test_written_rows_are_read_rows(spark_session: SparkSession, store: Path) -> None:
    spark = spark_session
    options = {"store": str(store)}
    sent = every_type(spark)
    with pytest.raises(Exception, match="there is no ledger store at"):
        spark.read.format("ledger").options(**options).load("orders").count()

    # Spark finds the source by its name, without configure(). Rows become visible all at once.
    sent.write.format("ledger").options(**options).mode("append").save("orders")
    read = spark.read.format("ledger").options(**options).load("orders")
    assert read.dtypes == sent.dtypes
    assertDataFrameEqual(read, sent)

    # Refused before rows are staged, with the cause.
    writer = sent.write.format("ledger").options(**options)
    for write, words in (
        (lambda: writer.mode("overwrite").save("orders"), "mode overwrite is not supported"),
        (
            lambda: sent.drop("s").write.format("ledger").options(**options).mode("append").save("orders"),
            "'s' .*missing",
        ),
        (
            lambda: (
                sent.withColumn("i32", f.lit("x"))
                .write.format("ledger")
                .options(**options)
                .mode("append")
                .save("orders")
            ),
            "'i32'.* is int, but string in the rows to write",
        ),
        (
            lambda: (
                spark.range(1)
                .selectExpr("id", "named_struct('v', INTERVAL '1' MONTH) deep")
                .write.format("ledger")
                .options(**options)
                .mode("append")
                .save("intervals")
            ),
            r"column 'deep\.v' is interval month, which ledger .* cannot store",
        ),
        (lambda: writer.option("entrySize", "1").mode("append").save("orders"), "unknown option"),
        (lambda: spark.read.format("ledger").options(**options).load("odrers").count(), "Did you mean 'orders'"),
    ):
        with pytest.raises(Exception, match=words):
            write()
    assert spark.read.format("ledger").options(**options).load("orders").count() == 1000

    # Small compressed entries have the same rows. Metadata columns give each row a unique position.
    sent.repartition(4).write.format("ledger").options(**options, entryBytes="4k", compression="zstd").mode(
        "append"
    ).save("orders")
    placed = (
        spark.read.format("ledger")
        .options(**options, includeMetadata="true", minPartitionBytes="8k", targetPartitionBytes="16k")
        .load("orders")
    )
    assert placed.rdd.getNumPartitions() > 3
    assert placed.count() == 2000
    assert placed.select("__position").distinct().count() == 2000
    assert placed.select("__messageId").distinct().count() == 2000
    assert {row[0] for row in placed.select("__topic").distinct().collect()} == {"persistent://public/default/orders"}

    # A range by position, and a view.
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING ledger OPTIONS (path 'orders', store '{store}', mapping 'off')"
    )
    assert spark.sql("SELECT count(*) FROM v WHERE id < 10").first()[0] == 20
    half = placed.where("__position.entryId > 2").selectExpr("min(__position)").first()[0]
    rest = (
        spark.read.format("ledger")
        .options(**options, startingPosition=f"{half.ledgerId}:{half.entryId}")
        .load("orders")
    )
    assert rest.count() == placed.where(f"__position.entryId >= {half.entryId}").count()
    with pytest.raises(Exception, match="a batch read of all ledgers from 'latest' would be empty"):
        spark.read.format("ledger").options(**options, startingPosition="latest").load("orders").count()


def test_metadata_columns_stand_behind_the_rows_by_name_and_type(spark_session: SparkSession, store: Path) -> None:
    spark_session.range(1).write.format("ledger").option("store", str(store)).mode("append").save("orders")
    read = spark_session.read.format("ledger").options(store=str(store), includeMetadata="true").load("orders")
    assert read.dtypes == [
        ("id", "bigint"),
        ("__key", "string"),
        ("__topic", "string"),
        ("__messageId", "binary"),
        ("__publishTime", "timestamp"),
        ("__eventTime", "timestamp"),
        ("__messageProperties", "map<string,string>"),
        ("__position", "struct<ledgerId:bigint,entryId:bigint,batchIndex:int>"),
    ]
    (row,) = read.collect()
    assert (row["__key"], row["__messageProperties"], tuple(row["__position"])) == (None, {}, (0, 0, 0))


@pytest.mark.thorough
def test_rows_without_a_subscription_survive_rollover_time_and_restart(
    spark_session: SparkSession, store: Path
) -> None:
    """Pulsar would delete these entries: there is no cursor, and Pulsar's default retention is 0."""
    create = CreateLedger("public/default/persistent/kept", max_entries_per_ledger=3)
    connect(store).client.ask(create)
    options = {"store": str(store), "entryBytes": "1k"}
    for first in range(0, 4000, 1000):
        rows = spark_session.range(first, first + 1000, numPartitions=1)
        rows.write.format("ledger").options(**options).mode("append").save("kept")
    log = connect(store).ledger("kept").describe()
    assert (len(log.segments) > 3, log.cursors) == (True, [])
    stop_broker_of(store)
    later = Store.open(store, settings=Settings(), clock=lambda: system_clock_ms() + YEAR_MS)
    later.upkeep.round()
    assert later.ledger("kept").trim().ledgers == []
    later.close()
    read = spark_session.read.format("ledger").option("store", str(store)).load("kept")
    assert sorted(row.id for row in read.collect()) == list(range(4000))
