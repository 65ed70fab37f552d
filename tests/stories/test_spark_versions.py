"""Goal: functions that a Spark version lacks are refused with an explanation, and all others work.

Method: the same stories on each version. `make test-spark` runs them on versions other than that of .venv.
"""

from __future__ import annotations

import re
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from pyspark_ledger.ledger.api.store import connect
from tests.rigs.stream import append

VERSION = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])


def test_a_stream_is_followed_and_acknowledged_over_restarts(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    orders, seen = connect(store).ledger("orders"), []
    append(orders, 0, 10, step=10)

    def start() -> pyspark.sql.streaming.StreamingQuery:
        stream = spark_session.readStream.format("ledger").option("store", str(store))
        stream = stream.option("subscription", "billing").option("startingPosition", "earliest").load("orders")
        write = stream.writeStream.foreachBatch(lambda frame, _: seen.extend(row.n for row in frame.collect()))
        return write.option("checkpointLocation", str(tmp_path / "c")).start()

    for rounds in range(1, 3):
        query = start()
        try:
            query.processAllAvailable()
            append(orders, 20 * rounds - 10, 20 * rounds, step=10)
            query.processAllAvailable()
            append(orders, 20 * rounds, 20 * rounds + 10, step=10)
            query.processAllAvailable()
        finally:
            query.stop()
    assert sorted(seen) == list(range(50))
    # Only the last batch of a run may be unacknowledged.
    assert orders.cursor("billing").state().backlog_rows <= 10


def test_limits_are_refused_where_spark_knows_none(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    append(connect(store).ledger("orders"), 0, 10, step=10)
    stream = spark_session.readStream.format("ledger").option("store", str(store)).option("maxRowsPerTrigger", "4")
    write = stream.option("startingPosition", "earliest").load("orders").writeStream.format("noop")
    write = write.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    if VERSION >= (4, 2):
        query = write.start()
        assert query.awaitTermination(60)
        return
    with pytest.raises(Exception, match=r"minRowsPerTrigger need Spark 4\.2"):
        write.start().awaitTermination(60)


def test_the_streaming_sink_is_refused_where_spark_has_no_arrow_writer(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    append(connect(store).ledger("orders"), 0, 10, step=10)
    stream = spark_session.readStream.format("ledger").option("store", str(store))
    write = stream.option("startingPosition", "earliest").load("orders").writeStream.format("ledger")
    write = write.option("store", str(store)).option("checkpointLocation", str(tmp_path / "c"))
    query = write.trigger(availableNow=True).start("copied")
    if VERSION >= (4, 1):
        assert query.awaitTermination(60)
        assert connect(store).ledger("copied").describe().rows == 10
        return
    with pytest.raises(Exception, match=r"rows instead of Arrow batches.*Use Spark 4\.1 or newer"):
        query.awaitTermination(60)


def test_sql_sees_a_ledger_as_it_was_when_the_view_was_made(spark_session: SparkSession, store: Path) -> None:
    orders = connect(store).ledger("orders")
    append(orders, 0, 10, step=10)
    make = f"CREATE OR REPLACE TEMPORARY VIEW seen USING ledger OPTIONS (path 'orders', store '{store}')"
    count = "SELECT count(*) AS rows FROM seen"
    spark_session.sql(make)
    assert spark_session.sql(count).first().rows == 10
    append(orders, 10, 30, step=20)
    frozen = VERSION >= (4, 1)
    assert spark_session.sql(count).first().rows == (10 if frozen else 30), "since 4.1 Spark plans the view once"
    spark_session.sql(make)
    assert spark_session.sql(count).first().rows == 30
    assert spark_session.sql(f"{count} WHERE n >= 25").first().rows == 5
    assert spark_session.sql(count).first().rows == 30, "a filter narrows nothing for later"
