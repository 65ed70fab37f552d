"""Goal: large partitions that Spark writes become segments, and Spark reads them like all others.

Method: partitions above and below the default limit, written by a batch and a stream, over a real session and broker.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from typer.testing import CliRunner

from pyspark_ledger import publish
from pyspark_ledger.connector.cli.app import app
from pyspark_ledger.ledger.api.store import connect
from tests.stories.test_spark_sink import forget_last_commit

pytestmark = pytest.mark.feature("batch reads and writes")
ROWS = 560_000


def rows_of(spark: SparkSession) -> DataFrame:
    """Two partitions of about 39 MB, and one of a few rows."""
    rows = spark.range(0, ROWS, 1, 2).union(spark.range(ROWS, ROWS + 10, 1, 1))
    return rows.select("id", f.sha2(f.col("id").cast("string"), 512).alias("text"))


@pytest.mark.tables
def test_promoted_segments_are_published_once(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    spark, options, table = spark_session, {"store": str(store)}, str(tmp_path / "table")
    rows_of(spark).write.format("ledger").options(**options, compression="none").mode("append").save("texts")
    segments = connect(store).ledger("texts").describe().segments
    published = publish(spark, "texts", table, options=options)
    assert [segment.segment for segment in published] == [segment.ledger_id for segment in segments]
    assert publish(spark, "texts", table, options=options) == []
    found = spark.read.format("delta").load(table).agg(f.count("id"), f.sum("id"), f.countDistinct("text")).first()
    assert tuple(found) == (ROWS + 10, sum(range(ROWS + 10)), ROWS + 10)


@pytest.mark.thorough
def test_large_partitions_become_segments(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    spark, options = spark_session, {"store": str(store)}
    rows_of(spark).write.format("ledger").options(**options, compression="none").mode("append").save("texts")
    ledger = connect(store).ledger("texts")
    segments = ledger.describe().segments
    assert [segment.rows for segment in segments] == [ROWS // 2, ROWS // 2, 10]
    assert all(segment.close_ms for segment in segments), "a partition was copied into an open segment"
    assert not list(store.glob("staging/*/*/*.part"))

    # The rows, their order, and the columns that come from the broker's stamps.
    read = spark.read.format("ledger").options(**options).option("includeMetadata", "true").load("texts")
    wrong = read.where(f.col("text") != f.sha2(f.col("id").cast("string"), 512)).count()
    assert (wrong, read.count(), read.agg(f.sum("id")).first()[0]) == (0, ROWS + 10, sum(range(ROWS + 10)))
    assert read.select("__publishTime").distinct().count() >= 1
    assert ledger.read().column("id").to_pylist() == list(range(ROWS + 10))

    # A stream copies them to another ledger in one task. Spark repeats its batch, which commits nothing new.
    query = (
        spark.readStream.format("ledger")
        .options(**options, startingPosition="earliest")
        .load("texts")
        .coalesce(1)
        .writeStream.format("ledger")
        .options(**options, compression="none")
        .option("checkpointLocation", str(tmp_path / "copy"))
        .trigger(availableNow=True)
    )
    assert query.start("copy").awaitTermination(240)
    forget_last_commit(tmp_path / "copy")
    assert query.start("copy").awaitTermination(240)
    copy = connect(store).ledger("copy")
    assert copy.describe().rows == ROWS + 10
    assert [segment.rows for segment in copy.describe().segments if segment.close_ms] == [ROWS + 10]

    found = CliRunner().invoke(app, ["verify", "--store", str(store)])
    assert found.exit_code == 0, found.output
