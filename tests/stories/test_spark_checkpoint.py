"""Goal: no row is lost or doubled in silence when the checkpoint of a query goes back, is copied, or is repeated.

Method: stories over a real session and broker. A test changes the folder of the checkpoint between two runs.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_ledger import configure
from pyspark_ledger.connector.session.default_store import DefaultStore, set_default_store
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from tests.rigs.available_now import run_all
from tests.rigs.broker_thread import served
from tests.stories.conftest import SPARKS_LIMIT

pytestmark = [pytest.mark.thorough, pytest.mark.feature("the sink: routing, repeated batches, refusals")]


def run_write(write: DataStreamWriter) -> None:
    """Run a query until it has read everything."""
    try:
        run_all(lambda: write.trigger(availableNow=True).start("out"))
    except StreamingQueryException as error:
        if SPARKS_LIMIT not in str(error):
            raise
        # On a busy machine Spark's process may start too late. Only this run of the test is repeated.
        run_all(lambda: write.trigger(availableNow=True).start("out"))


class CopiedQuery:
    """Query that copies ledger `in` to ledger `out`. Each run is one batch with the rows that were appended before."""

    def __init__(self, spark: SparkSession, store: Path, folder: Path) -> None:
        self.spark, self.store, self.checkpoint, self.backup = spark, store, folder / "cp", folder / "backup"
        self.api: LedgerStore = connect(store)
        self.change: Callable[[DataFrame], DataFrame] = lambda rows: rows

    def run(self, *numbers: int, checkpoint: Path | None = None, named: bool = False, **options: str) -> None:
        """Append rows, and run the query until it has read them. A `named` query has its checkpoint's place by name."""
        if numbers:
            self.api.ledger("in").append(pa.table({"n": pa.array(numbers, pa.int64())}))
        read = self.spark.readStream.format("ledger").options(store=str(self.store), startingPosition="earliest")
        write = self.change(read.load("in")).writeStream.format("ledger").options(store=str(self.store), **options)
        place = str(checkpoint or self.checkpoint)
        write = write.queryName("copied") if named else write.option("checkpointLocation", place)
        run_write(write)

    def refused(
        self, said: str, *numbers: int, checkpoint: Path | None = None, named: bool = False, **options: str
    ) -> None:
        """Run the query, which must end with an error of the sink."""
        before = self.stored()
        with pytest.raises(StreamingQueryException, match=said):
            self.run(*numbers, checkpoint=checkpoint, named=named, **options)
        assert self.stored() == before

    def stored(self) -> list[int]:
        found: list[int] = self.api.ledger("out").read().column("n").to_pylist()
        return found

    def restore(self) -> None:
        shutil.rmtree(self.checkpoint)
        shutil.copytree(self.backup, self.checkpoint)

    def forget(self, *logs: str) -> None:
        """Delete the newest file of logs of the checkpoint, such as `commits`."""
        for log in logs:
            last = max((self.checkpoint / log).glob("[0-9]*"), key=lambda path: int(path.name))
            last.unlink()
            (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def query(spark_session: SparkSession, store: Path, tmp_path: Path) -> CopiedQuery:
    return CopiedQuery(spark_session, store, tmp_path)


def test_a_restored_checkpoint_is_refused_and_has_two_ways_out(query: CopiedQuery) -> None:
    query.run(0)
    shutil.copytree(query.checkpoint, query.backup)
    query.run(1)
    query.run(2)
    query.restore()
    query.refused("batch 1 of query .* is below batch 2, .* 'skip' .* 'append'", 3)

    # The way out `skip`: the rows of batches 1 and 2 are not stored. Batch 3 follows another batch 2.
    query.run(repeatedBatches="skip")
    query.run(4, repeatedBatches="skip")
    query.refused("two copies of one checkpoint .* 'append'", 5, repeatedBatches="skip")
    query.run(repeatedBatches="append")
    query.run(6)
    assert query.stored() == [0, 1, 2, 5, 6]

    # The way out `append`: all rows after batch 0 are stored again, and the next run needs no option.
    query.restore()
    query.run(repeatedBatches="append")
    query.run(7)
    assert query.stored() == [0, 1, 2, 5, 6, *range(1, 8)]


def test_a_newest_batch_with_other_offsets_is_refused(query: CopiedQuery) -> None:
    query.run(0)
    query.run(1)
    query.forget("offsets", "commits")
    query.refused("batch 1 of query .* with offsets .* and now has offsets", 2)
    assert query.stored() == [0, 1]


def test_two_copies_of_a_checkpoint_store_equal_batches_once(query: CopiedQuery) -> None:
    query.run(0)
    shutil.copytree(query.checkpoint, query.backup)
    query.run(1)
    query.run(checkpoint=query.backup)
    query.run(2, checkpoint=query.backup)
    assert query.stored() == [0, 1, 2]
    query.refused("batch 2 of query .* with offsets", 3)
    query.run(checkpoint=query.backup)
    assert query.stored() == [0, 1, 2, 3]


def test_a_repeated_batch_with_other_rows_keeps_its_first_commit(query: CopiedQuery) -> None:
    query.change = lambda rows: rows.withColumn("id", f.expr("uuid()")).where("n = 0 or rand() < 0.5")
    query.run(*range(20))
    first = query.api.ledger("out").read().to_pylist()
    query.forget("commits")
    query.run()
    assert query.api.ledger("out").read().to_pylist() == first
    query.run(0)
    assert query.stored() == [*(row["n"] for row in first), 0]


def test_rows_decide_if_the_session_sets_the_place_of_the_checkpoint(
    query: CopiedQuery, spark_session: SparkSession
) -> None:
    """The sink does not learn this place, so it cannot read offsets."""
    place = query.checkpoint
    query.checkpoint = place / "copied"
    spark_session.conf.set("spark.sql.streaming.checkpointLocation", str(place))
    try:
        query.run(0, 1, named=True)
        query.forget("commits")
        query.run(named=True)
        query.forget("commits")
        query.change = lambda rows: rows.withColumn("n", f.col("n") + 1)
        query.refused("with 2 rows with sums .* and now has 2 rows with sums", named=True)
    finally:
        spark_session.conf.unset("spark.sql.streaming.checkpointLocation")
    assert query.stored() == [0, 1]


def test_a_target_that_was_created_again_gets_no_batch_of_its_query(query: CopiedQuery) -> None:
    query.run(0)
    before = query.api.ledger("out").describe().incarnation
    query.api.delete("out")
    query.api.create("out")
    after = query.api.ledger("out").describe().incarnation
    with pytest.raises(
        StreamingQueryException, match=f"to incarnation {before} .* created again as incarnation {after}"
    ):
        query.run(1)
    query.run(repeatedBatches="append")
    query.run(2)
    assert query.stored() == [1, 2]


def test_a_checkpoint_that_meets_another_default_store_is_refused(query: CopiedQuery, tmp_path: Path) -> None:
    """The query names no store, and `failOnDataLoss` is false: nothing else would end it."""
    read = query.spark.readStream.format("ledger").options(startingPosition="earliest", failOnDataLoss="false")

    def run(store: Path) -> None:
        configure(query.spark, store=store)
        write = read.load("in").writeStream.format("ledger").option("checkpointLocation", str(query.checkpoint))
        run_write(write.option("store", str(query.store)))

    query.api.ledger("in").append(pa.table({"n": pa.array([0], pa.int64())}))
    try:
        run(query.store)
        with served(tmp_path / "other") as other:
            other.ledger("in").append(pa.table({"n": pa.array(range(100, 110), pa.int64())}))
            theirs = f"store {other.client.store_id} at {other.location}"
            ids = f"of store {query.api.client.store_id} at {query.store}, .* {theirs}"
            with pytest.raises(StreamingQueryException, match=ids):
                run(tmp_path / "other")
        assert query.stored() == [0]
        query.api.ledger("in").append(pa.table({"n": pa.array([1], pa.int64())}))
        run(query.store)
        assert query.stored() == [0, 1]
    finally:
        set_default_store(query.spark, DefaultStore())
