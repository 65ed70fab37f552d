"""Goal: people see a real query while it reads.

Method: a real Spark and a real broker, in this process and in a real kernel.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import pyspark_ledger
from pyspark_ledger.ledger.api.store import connect
from tests.rigs.deadline import wait_until
from tests.rigs.kernel import html_of, printed, run_cells
from tests.rigs.pictures import bars, drawings, texts
from tests.rigs.stream import append


def stream_of(spark: SparkSession, store: Path) -> DataFrame:
    stream = spark.readStream.format("ledger").option("store", str(store)).option("startingPosition", "earliest")
    return stream.option("maxRowsPerTrigger", "10").load("orders")


@pytest.mark.thorough
def test_a_watch_follows_a_query_to_its_end(
    spark_session: SparkSession, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = connect(store).ledger("orders")
    append(orders, 0, 30)
    sink = stream_of(spark_session, store).writeStream.format("noop").queryName("bills")
    query = sink.option("checkpointLocation", str(tmp_path / "c")).start()
    watch = pyspark_ledger.watch(query, every_s=0.2)
    wait_until(lambda: watch.samples and watch.samples[-1].batch >= 2, "three batches", 120)
    wait_until(lambda: watch.samples[-1].lag is not None and watch.samples[-1].lag.rows == 0, "no lag")
    assert query.isActive
    query.stop()
    assert watch.wait(60)
    assert watch.state == "ended"
    lags = [sample.lag.rows for sample in watch.samples if sample.lag is not None]
    assert lags == sorted(lags, reverse=True)
    assert sum(sample.rows_per_s > 0 for sample in watch.samples) > 0
    assert "bills ended, batch " in repr(watch)
    assert len(drawings(watch._repr_html_())) == 1
    assert "bills batch 0: 10 rows (maxRowsPerTrigger); orders 20 rows" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_watch_of_a_query_that_fails_ends_and_leaves_its_error(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    append(connect(store).ledger("orders"), 0, 30)

    def fails(_: DataFrame, number: int) -> None:
        if number:
            raise ValueError("no batch after the first")

    sink = stream_of(spark_session, store).writeStream.foreachBatch(fails)
    query = sink.option("checkpointLocation", str(tmp_path / "c")).start()
    watch = pyspark_ledger.watch(query, every_s=0.2)
    with pytest.raises(StreamingQueryException, match="no batch after the first"):
        pyspark_ledger.catch_up(query)
    assert watch.wait(60)
    assert watch.state == "failed"


@pytest.mark.sessions
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_notebook_shows_a_query_its_plan_and_its_catch_up(store: Path, tmp_path: Path) -> None:
    orders = connect(store).ledger("orders")
    append(orders, 0, 30)
    # The watch ends within the last cell: nbclient loses what a thread of the kernel sends between two cells.
    start, plan, shown, again, caught = run_cells(
        tmp_path,
        "from pyspark_ledger import catch_up, explain, session, watch\nspark = session()\n"
        f"options = {{'store': {str(store)!r}, 'startingPosition': 'earliest'}}\n"
        "limited = spark.readStream.format('ledger').options(**options).option('maxRowsPerTrigger', '10')\n"
        "stream = limited.load('orders')\n"
        "sink = stream.writeStream.format('noop').queryName('bills').option('checkpointLocation', 'c')",
        "explain(spark, 'orders', options=options)",
        "query = sink.trigger(availableNow=True).start()\nshown = watch(query, every_s=0.2)\nshown",
        "shown",
        "catch_up(query)\nprint(shown.wait(60), shown.state)",
        timeout=300,
    )
    assert html_of(start) == []
    assert "1 task, 1 ledger" in texts(html_of(plan)[0])
    for cell in (shown, again):
        chart = html_of(cell)
        assert len(chart) == 1, "one picture, also where the watch is the value of its cell"
        assert "bills" in texts(chart[0])
        assert "ended, batch 2" in texts(chart[0]), "the picture was replaced to the end"
    (bar,) = html_of(caught)
    (_, full, _), (_, read, _) = bars(drawings(bar)[0])
    assert read == full
    assert "30 rows" in texts(bar)
    assert printed(caught) == "True ended\n"
