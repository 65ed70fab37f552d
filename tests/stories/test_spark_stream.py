"""Goal: a stream copies each row of a ledger once, also after kills and repeated batches.

Method: stories over a real session, checkpoint and broker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from pyspark_ledger.connector.session.metrics import ledgers_of
from pyspark_ledger.ledger.api.store import connect
from tests.rigs import broker_process as fixtures
from tests.rigs.available_now import ONE_BATCH, run_all
from tests.rigs.stream import append, numbers

pytestmark = pytest.mark.feature("streams over kills and repeated batches")


class Copy:
    """Start a query from `in` to `out`."""

    def __init__(self, spark: SparkSession, store: Path, checkpoint: Path, **options: str) -> None:
        self._spark, self._store, self.checkpoint, self._options = spark, str(store), checkpoint, options

    def start(self, **trigger: Any) -> StreamingQuery:
        read = self._spark.readStream.format("ledger").option("store", self._store).options(**self._options).load("in")
        write = read.writeStream.format("ledger").option("store", self._store)
        return write.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start("out")

    def run(self) -> list:
        return run_all(lambda: self.start(availableNow=True))

    def forget_commit(self) -> None:
        """Delete Spark's commit, as if Spark had died between the sink's commit and its own."""
        commits = sorted((self.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        commits[-1].unlink()
        (self.checkpoint / "commits" / f".{commits[-1].name}.crc").unlink()


@pytest.mark.fault
def test_available_now_repeats_and_a_killed_broker(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    api = connect(store)
    source, sink = api.ledger("in"), api.ledger("out")
    append(source, 0, 40, step=5)
    copy = Copy(
        spark_session, store, tmp_path / "c", startingPosition="earliest", maxRowsPerTrigger="10", subscription="copy"
    )
    progress = copy.run()
    assert numbers(sink.read()) == list(range(40))
    assert [p["numInputRows"] for p in progress if p["numInputRows"]] == [10, 10, 10, 10]
    assert [lag.lag_rows for lag in ledgers_of(progress[0])] == [30]

    # Spark repeats the last batch with the same id, which is in the ledger already.
    entries = sink.describe().entries
    copy.forget_commit()
    copy.run()
    assert numbers(sink.read()) == list(range(40))
    assert sink.describe().entries == entries

    # More rows; the broker is killed before and while the query runs.
    append(source, 40, 100, step=5)
    fixtures.kill_broker(store)
    query = copy.start(availableNow=True)
    killed = set()
    while query.isActive and len(killed) < 3:
        batch = (query.lastProgress or {}).get("batchId", -1)
        if batch not in killed:
            killed.add(batch)
            fixtures.kill_broker(store)
        query.awaitTermination(0.2)
    assert query.awaitTermination(120)
    if ONE_BATCH:
        copy.run()
    assert numbers(sink.read()) == list(range(100))


def test_tail_with_a_subscription_over_restarts(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    api = connect(store)
    source, sink = api.ledger("in"), api.ledger("out")
    append(source, 0, 10, step=5)
    copy = Copy(spark_session, store, tmp_path / "c", subscription="copy")
    query = copy.start(processingTime="0 seconds")
    try:
        # A start at the latest position reads no existing row. The cursor exists before batch 0.
        while "copy" not in source.describe().cursors:
            query.awaitTermination(0.1)
        append(source, 10, 20, step=5)
        query.processAllAvailable()
        assert numbers(sink.read()) == list(range(10, 20))

        other = Copy(spark_session, store, tmp_path / "other", subscription="copy").start(processingTime="0 seconds")
        with pytest.raises(Exception, match=r"subscription 'copy' .* is read by"):
            other.awaitTermination(60)
        append(source, 20, 30, step=5)
        query.processAllAvailable()
    finally:
        query.stop()
    append(source, 30, 40, step=5)
    # The lease of the stopped process does not refuse a restart.
    query = copy.start(processingTime="0 seconds")
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert numbers(sink.read()) == list(range(10, 40))

    # After a lost checkpoint the query starts at its cursor, before the last unacknowledged batch.
    state = source.cursor("copy").state()
    append(source, 40, 45, step=5)
    again = Copy(spark_session, store, tmp_path / "c2", subscription="copy")
    again.run()
    assert numbers(sink.read())[30:] == list(range(45 - state.backlog_rows - 5, 45))


@pytest.mark.thorough
def test_latest_loses_nothing_when_batch_0_fails(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    source, seen, calls = connect(store).ledger("in"), [], []
    append(source, 0, 10, step=5)

    def sink(frame: DataFrame, batch: int) -> None:
        calls.append(batch)
        if len(calls) == 1:
            message = "batch 0 fails once"
            raise ValueError(message)
        seen.extend(sorted(row.n for row in frame.collect()))

    def start() -> StreamingQuery:
        stream = spark_session.readStream.format("ledger").option("store", str(store)).load("in")
        return stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "c")).start()

    query = start()
    with pytest.raises(Exception, match="batch 0 fails once"):
        query.awaitTermination(60)
    # The new process computes another latest position. The start of batch 0 is in its end offset.
    append(source, 10, 30, step=5)
    query = start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert calls[:2] == [0, 0]
    assert seen == list(range(10, 30))
