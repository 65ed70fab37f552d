"""Goal: from Spark every row is acknowledged exactly once, however often it came. Method: a query in explicit mode that
acknowledges a part of each batch at random in `foreachBatch`, stopped and killed in between, behind our own sink.
"""

from __future__ import annotations

import importlib.util
import random
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from connector.acknowledge_frame import MEASURED
from ledger.api import connect
from pyspark_ledger import acknowledge

spec = importlib.util.spec_from_file_location("connector_fixtures", Path(__file__).parent / "conftest.py")
fixtures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fixtures)

ROWS = 8_000


def wait_until(reached: Callable[[], bool], seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.05)


class Acknowledging:
    """A query that acknowledges some rows of each batch, and remembers what it saw."""

    def __init__(self, spark: SparkSession, store: Path, checkpoint: Path) -> None:
        self._spark, self._store, self._checkpoint = spark, str(store), checkpoint
        self.share = 0.3
        self.acknowledged: list[int] = []
        self.delivered: list[tuple[int, int]] = []
        self.done = 0

    def start(self) -> StreamingQuery:
        read = self._spark.readStream.format("ledger").option("store", self._store).option("subscription", "s")
        read = read.option("ackMode", "explicit").option("ackTimeout", "0").option("startingPosition", "earliest")
        write = read.load("in").writeStream.foreachBatch(self.batch).option("checkpointLocation", str(self._checkpoint))
        return write.trigger(processingTime="0 seconds").start()

    def batch(self, rows: DataFrame, number: int) -> None:
        self.delivered += [tuple(row) for row in rows.select("n", "__redeliveryCount").collect()]
        chosen = rows.where(f.xxhash64("n", f.lit(number)) % 100 < int(self.share * 100))
        self.acknowledged += [row.n for row in chosen.select("n").collect()]
        ack = chosen.write.format("ledger").mode("append").option("store", self._store)
        ack.option("action", "ack").option("subscription", "s").save("in")
        self.done += 1

    def counts(self) -> dict[int, set[int]]:
        """The redelivery counts that each row came with."""
        found: dict[int, set[int]] = defaultdict(set)
        for row, count in self.delivered:
            found[row].add(count)
        return found


@pytest.mark.spark
def test_every_row_is_acknowledged_once_whatever_dies(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    rows = spark_session.range(ROWS).select(f.col("id").alias("n"), f.col("id").cast("string").alias("text"))
    for part in rows.randomSplit([0.5, 0.5], seed=1):
        part.write.format("ledger").mode("append").option("store", str(store)).option("entryBytes", "16k").save("in")
    query = Acknowledging(spark_session, store, tmp_path / "c")
    cursor = connect(store).ledger("in").cursor("s")
    for round_ in range(2):
        running = query.start()
        try:
            before = query.done
            wait_until(lambda before=before: query.done >= before + 2)
            if round_:
                fixtures.kill_broker(store)
        finally:
            running.stop()
    query.share = 1.0
    running = query.start()
    try:
        wait_until(lambda: cursor.state().backlog_rows == 0)
    finally:
        running.stop()
    assert set(query.acknowledged) == set(range(ROWS))
    counts = query.counts()
    assert all(found == set(range(len(found))) for found in counts.values()), "no count is left out"
    assert max(len(found) for found in counts.values()) > 2
    state = cursor.state()
    assert (state.acknowledged_ranges, state.partial_entries) == (0, 0)
    assert state.next_position >= connect(store).ledger("in").end().end


@pytest.mark.spark
def test_a_batch_frame_is_acknowledged_and_a_wrong_one_is_not(spark_session: SparkSession, store: Path) -> None:
    dice = random.Random(1)
    chosen = sorted(dice.sample(range(1000), 300))
    write = spark_session.range(1000).write.format("ledger").mode("append").option("store", str(store))
    write.save("in")
    cursor = connect(store).ledger("in").cursor("s")
    read = spark_session.read.format("ledger").option("store", str(store)).option("includeMetadata", "true").load("in")
    places = read.where(f.col("id").isin(chosen)).repartition(4)
    for column in ("__messageId", "__position"):
        ack = places.select(column).write.format("ledger").mode("append").option("store", str(store))
        ack.option("action", "ack").option("subscription", "s").save("in")
        assert cursor.state().backlog_rows == 700
    before = spark_session.conf.get(MEASURED)
    acknowledge(places.where("id < 500"), "in", "s", store=store)
    assert cursor.state().backlog_rows == 700
    assert spark_session.conf.get(MEASURED) == before
    spark_session.conf.set(MEASURED, "1m")
    acknowledge(read.where("id % 2 = 0"), "in", "s", store=store)
    assert cursor.state().backlog_rows == 500 - sum(number % 2 for number in chosen)
    with pytest.raises(PySparkException, match="needs a column '__position'"):
        acknowledge(read.select("id"), "in", "s", store=store)
    assert spark_session.conf.get(MEASURED) == "1m"
    spark_session.conf.unset(MEASURED)
    with pytest.raises(PySparkException, match="metadata column"):
        places.select("__position").write.format("ledger").mode("append").option("store", str(store)).save("in")
