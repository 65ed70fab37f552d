"""Goal: every feature works on every tested release of Spark.

Method: the same stories on each release. `make test-sparks` runs them on releases other than that of .venv.
"""

from __future__ import annotations

import re
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from pyspark_ledger import catch_up, configure, serve
from pyspark_ledger.connector.session.default_store import DefaultStore, set_default_store
from pyspark_ledger.connector.session.metrics import ledgers_of
from pyspark_ledger.ledger.api.store import connect
from tests.rigs.stream import append

VERSION = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])


@pytest.mark.thorough
@pytest.mark.feature("streams, subscriptions, restarts")
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


@pytest.mark.thorough
@pytest.mark.feature("limits of a batch; lag and reason in the progress")
def test_limits_apply_to_every_batch_of_a_query(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    append(connect(store).ledger("orders"), 0, 20, step=2)
    sizes: list[int] = []
    stream = spark_session.readStream.format("ledger").option("store", str(store)).option("maxRowsPerTrigger", "4")
    write = stream.option("startingPosition", "earliest").load("orders").writeStream
    write = write.foreachBatch(lambda frame, _: sizes.append(frame.count()))
    query = write.option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        query.processAllAvailable()
        report = query.lastProgress
    finally:
        query.stop()
    assert [size for size in sizes if size] == [4] * 5
    assert {(seen.lag_rows, seen.ledger) for seen in ledgers_of(report)} == {(0, "public/default/persistent/orders")}


@pytest.mark.thorough
@pytest.mark.feature("`Trigger.AvailableNow`; acknowledgement of the last batch")
def test_available_now_ends_and_acknowledges_its_last_batch(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    orders = connect(store).ledger("orders")
    append(orders, 0, 10, step=10)
    stream = spark_session.readStream.format("ledger").option("store", str(store)).option("subscription", "nightly")
    stream = stream.option("startingPosition", "earliest").load("orders")
    for rows in (10, 20):
        write = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
        assert catch_up(write.trigger(availableNow=True).start(), 60)
        state = orders.cursor("nightly").state()
        assert (state.backlog_rows, orders.describe().rows) == (0, rows)
        append(orders, rows, rows + 10, step=10)


@pytest.mark.thorough
@pytest.mark.feature("the exactly-once streaming sink")
def test_the_streaming_sink_writes_each_batch_once(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    orders, copied = connect(store).ledger("orders"), connect(store).ledger("copied")
    for rows in (10, 20):
        append(orders, rows - 10, rows, step=10)
        stream = spark_session.readStream.format("ledger").option("store", str(store))
        write = stream.option("startingPosition", "earliest").load("orders").writeStream.format("ledger")
        write = write.option("store", str(store)).option("checkpointLocation", str(tmp_path / "c"))
        assert write.trigger(availableNow=True).start("copied").awaitTermination(60)
        assert sorted(copied.read().column("n").to_pylist()) == list(range(rows))


@pytest.mark.thorough
@pytest.mark.feature("a session's default store; `serve`")
def test_a_session_takes_a_default_store_and_another_one(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    connect(store).create("orders")
    served = serve(spark_session, store)
    try:
        spark_session.range(3).write.format("ledger").mode("append").save("orders")
        assert spark_session.read.format("ledger").load("orders").count() == 3
        stream = spark_session.readStream.format("ledger").option("startingPosition", "earliest").load("orders")
        write = stream.writeStream.format("ledger").option("checkpointLocation", str(tmp_path / "c"))
        assert write.trigger(availableNow=True).start("orders").awaitTermination(60)
    finally:
        served.stop()
    configure(spark_session, store=store)
    try:
        assert spark_session.read.format("ledger").load("orders").count() == 6
    finally:
        set_default_store(spark_session, DefaultStore())


@pytest.mark.feature("temporary views of SQL")
@pytest.mark.thorough
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
