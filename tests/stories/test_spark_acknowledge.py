"""Goal: Spark acknowledges every row exactly once, however often it is delivered.

Method: a query in ack mode `explicit` acknowledges a random part of each batch in `foreachBatch`. Its driver and its
broker are killed in between. Every batch is recorded and compared with the expected deliveries of each row.

The long test has a million flights and takes a quarter of an hour on two shared cores.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_ledger import acknowledge
from pyspark_ledger.connector.write.acknowledge import MEASURED
from pyspark_ledger.ledger.api.store import connect
from streaming_examples.flights import flights
from tests.rigs import broker_process as fixtures
from tests.rigs.deadline import wait_until
from tests.rigs.explicit_app import LEDGER, SUBSCRIPTION, ExplicitApp, finish, require_once

pytestmark = pytest.mark.feature("acknowledgement of rows, redelivery")

ROWS, LIMIT, SHARE = 8_000, 4_000, 30
MANY_LIMIT = 200_000


class Story:
    """Ledger of rows `n`, a query over it in a separate process, and the recorded batches."""

    def __init__(self, store: Path, folder: Path, limit: int) -> None:
        self.store, self.folder, self.limit = store, folder, limit
        self.checkpoint, self.seen = folder / "checkpoint", folder / "seen"
        self.seen.mkdir()

    def write(self, rows: DataFrame, writes: int, **options: str) -> None:
        """Write rows with the project's sink in several writes. Each write ends with a marker."""
        for part in rows.randomSplit([1.0] * writes, seed=1):
            part.write.format("ledger").mode("append").option("store", str(self.store)).options(**options).save(LEDGER)

    def start(self) -> subprocess.Popen[bytes]:
        given = [str(self.store), str(self.checkpoint), str(self.seen), str(SHARE), str(self.limit)]
        with (self.folder / "app.log").open("ab") as log:
            command = [sys.executable, "-m", "tests.rigs.explicit_app", *given]
            return subprocess.Popen(command, cwd=self.folder, start_new_session=True, stdout=log, stderr=log)

    def log(self) -> str:
        return (self.folder / "app.log").read_text(encoding="utf-8")[-3000:]

    def done(self) -> int:
        """Return the number of acknowledged batches, including repeated batches."""
        return len(list(self.seen.glob("*.acknowledged")))

    def run_and_kill(self, dice: random.Random) -> None:
        """Run two batches, kill the broker, run one more batch, and kill driver, JVM and workers at once."""
        process = self.start()
        try:
            self.wait_for(self.done() + 2, process)
            fixtures.kill_broker(self.store)
            self.wait_for(self.done() + 1, process)
            time.sleep(dice.uniform(0, 1))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait_for(self, batches: int, process: subprocess.Popen[bytes]) -> None:
        def reached() -> bool:
            assert process.poll() is None, self.log()
            return self.done() >= batches

        wait_until(reached, seconds=300, every=0.05)

    def require_all(self, rows: int, times: int = 3) -> None:
        """Require each row once, some after several deliveries, no backlog, and the cursor after the last marker."""
        assert require_once(self.seen, rows) >= times
        orders = connect(self.store).ledger(LEDGER)
        state = orders.cursor(SUBSCRIPTION).state()
        assert (state.backlog_rows, state.acknowledged_ranges, state.partial_entries) == (0, 0, 0)
        assert state.next_position >= orders.end().end


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.spark
def test_every_row_is_acknowledged_once_whatever_dies(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    story = Story(store, tmp_path, LIMIT)
    rows = spark_session.range(ROWS).select(f.col("id").alias("n"), f.col("id").cast("string").alias("text"))
    story.write(rows, 2, entryBytes="16k")
    story.run_and_kill(random.Random(3))
    finish(ExplicitApp(spark_session, store, story.checkpoint, story.seen, 100, ROWS))
    story.require_all(ROWS)


@pytest.mark.slow
@pytest.mark.spark
def test_a_million_flights_are_acknowledged_once(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    """30 % of each batch is acknowledged until the end. Driver and broker are killed twice."""
    story, dice = Story(store, tmp_path, MANY_LIMIT), random.Random(5)
    year = flights()
    many = pa.concat_tables([year] * 3)
    pq.write_table(many.append_column("n", pa.array(range(many.num_rows), pa.int64())), tmp_path / "flights.parquet")
    story.write(spark_session.read.parquet(str(tmp_path / "flights.parquet")), 3, entryBytes="1m")
    for _ in range(2):
        story.run_and_kill(dice)
    process = story.start()
    try:
        assert process.wait(1200) == 0, story.log()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    story.require_all(many.num_rows)


@pytest.mark.thorough
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
