"""Goal: `catch_up` reads a query to the end that stood at its start, on every release of Spark, and says what is left.

Method: limited queries with more rows than their limit. Spark 4.0 and 4.1 end each run after one micro-batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_ledger import catch_up, connect
from pyspark_ledger.connector.session.commit_listener import install, settle
from pyspark_ledger.ledger.errors import Refused
from tests.rigs.available_now import ONE_BATCH
from tests.rigs.stream import append

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.feature("`catch_up` of a limited query to the end that stood at its start"),
]


def limited(spark: SparkSession, store: Path, name: str = "orders", **options: object) -> DataFrame:
    given = {"store": str(store), "startingPosition": "earliest", "maxRowsPerTrigger": 10, **options}
    return spark.readStream.format("ledger").options(**given).load(name)


def collecting(
    frame: DataFrame, checkpoint: Path, seen: list[int], after: Callable[[int], object] = lambda _: None
) -> Any:
    def take(batch: DataFrame, number: int) -> None:
        seen.extend(row.n for row in batch.collect())
        after(number)

    return frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))


def test_catch_up_ends_at_the_end_that_stood_at_its_start(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    orders, seen = connect(store).ledger("orders"), []
    append(orders, 0, 35, step=5)

    def add(number: int) -> None:  # as many rows as a batch reads: the end of the ledger is never reached
        append(orders, 35 + 10 * number, 45 + 10 * number, step=5)

    write = collecting(limited(spark_session, store, subscription="nightly"), tmp_path / "c", seen, add)
    result = catch_up(write, 240, progress=False)
    assert result, result
    assert (result.rows_left, result.left, result.batches) == (0, {}, 4)
    assert result.runs == (4 if ONE_BATCH else 1)
    assert seen[:35] == list(range(35))
    assert len(seen) <= 40, "rows that came later keep no query running"
    assert orders.cursor("nightly").state().backlog_rows == orders.describe().rows - len(seen)


def test_catch_up_reads_two_sources_into_a_ledger_by_a_function(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    api = connect(store)
    append(api.ledger("orders"), 0, 25, step=5)
    append(api.ledger("clicks-1"), 100, 115, step=5)
    append(api.ledger("clicks-2"), 200, 205, step=5)
    frame = limited(spark_session, store)
    stream = spark_session.readStream.format("ledger").option("store", str(store)).option("maxRowsPerTrigger", 5)
    clicks = stream.option("ledgersPattern", "clicks-.*").option("startingPosition", "earliest").load()
    write = frame.select("n").union(clicks.select("n")).writeStream.format("ledger").option("store", str(store))
    write = write.option("checkpointLocation", str(tmp_path / "c"))
    result = catch_up(lambda: write.trigger(availableNow=True).start("copied"), 240, progress=False)
    assert result, result
    assert (result.rows, result.rows_left) == (45, 0)
    copied = sorted(api.ledger("copied").read().column("n").to_pylist())
    assert copied == [*range(25), *range(100, 115), *range(200, 205)]


def test_a_repeated_batch_is_not_the_end(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    """On Spark 4.0 and 4.1, a run after a failed batch only repeats this batch."""
    orders, seen, fails = connect(store).ledger("orders"), [], [True]
    append(orders, 0, 10, step=5)

    def fail(_: int) -> None:
        if fails.pop() if fails else False:
            message = "the first time"
            raise ValueError(message)

    write = collecting(limited(spark_session, store), tmp_path / "c", seen, fail)
    with pytest.raises(Exception, match="the first time"):
        catch_up(write, 120, progress=False)
    append(orders, 10, 20, step=5)
    result = catch_up(write, 240, progress=False)
    assert result, result
    assert seen == [*range(10), *range(20)]


def test_an_ended_query_says_the_rows_that_are_left(
    spark_session: SparkSession, store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spark = spark_session.newSession()
    install(spark)
    append(connect(store).ledger("orders"), 0, 35, step=5)
    write = collecting(limited(spark, store, subscription="billing"), tmp_path / "c", []).queryName("bills")
    with caplog.at_level(logging.WARNING):
        result = catch_up(write.trigger(availableNow=True).start(), 120, progress=False)
        assert settle(spark, 60)
    said = [line for line in caplog.messages if "ended after one micro-batch" in line]
    if not ONE_BATCH:
        assert result
        assert said == []
        return
    assert not result
    assert result.left == {"orders": 25}
    assert "rows left: 25 of orders" in str(result)
    assert "Call catch_up with the query's DataStreamWriter" in result.reason
    assert len(said) == 1
    assert "query bills ended after one micro-batch and left 25 rows of orders unread" in said[0]
    with caplog.at_level(logging.WARNING):
        assert catch_up(write, 240, progress=False)
        assert settle(spark, 60)
    assert len([line for line in caplog.messages if "ended after one micro-batch" in line]) == 1


def test_the_first_batch_takes_everything_by_an_option(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    append(connect(store).ledger("orders"), 0, 35, step=5)
    seen: list[int] = []
    write = collecting(limited(spark_session, store, firstBatch="everything"), tmp_path / "c", seen)
    result = catch_up(write.trigger(availableNow=True).start(), 120, progress=False)
    assert result, result
    assert (seen, result.batches) == (list(range(35)), 1 if ONE_BATCH else 4)


def test_a_second_run_needs_the_checkpoint_of_the_first(spark_session: SparkSession, store: Path) -> None:
    append(connect(store).ledger("orders"), 0, 20, step=5)
    seen: list[int] = []
    frame = limited(spark_session, store)
    write = frame.writeStream.foreachBatch(lambda batch, _: seen.extend(row.n for row in batch.collect()))
    if not ONE_BATCH:
        assert catch_up(write, 120, progress=False)
        assert seen == list(range(20))
        return
    with pytest.raises(Refused, match="has a new checkpoint"):
        catch_up(write, 120, progress=False)
    assert seen == list(range(10))
