"""Goal: Spark reads each row of many ledgers once, wherever the query is stopped.

Method: stories over a real session, checkpoint and broker. Rows are compared as multisets, by count and sums of hashes.
"""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from tests.rigs.available_now import ONE_BATCH

pytestmark = pytest.mark.feature("many ledgers, patterns, positions and times")

ROWS, LEDGERS, ENTRIES = 2_000_000, 5, 4
Sums = tuple[int, int, int]


def sums(frame: DataFrame) -> Sums:
    """Return a fingerprint of a multiset of numbers: its count and sums of hashes."""
    hashed = (f.sum(f.xxhash64("n", f.lit(seed)).cast("decimal(38,0)")) for seed in (1, 2))
    row = frame.agg(f.count("n"), *hashed).first()
    return row[0], int(row[1] or 0), int(row[2] or 0)


class Story:
    """Query over a pattern of names. Its sink stores batches by their id, as an idempotent sink does."""

    def __init__(self, spark: SparkSession, store: Path, folder: Path, **options: str) -> None:
        self.spark, self.store, self.checkpoint, self.options = spark, store, folder / "checkpoint", options
        self.batches: dict[int, Sums] = {}
        self.fails_at = -1

    def take(self, frame: DataFrame, batch: int) -> None:
        if batch == self.fails_at:
            self.fails_at = -1
            message = "the sink fails"
            raise ValueError(message)
        self.batches[batch] = sums(frame)

    def run(self, *, fails: bool = False, **trigger: bool) -> None:
        """Run until everything is read, or the sink fails."""
        before = -1
        while len(self.batches) > before:
            before = len(self.batches) if ONE_BATCH else len(self.batches) + 1
            self._run(fails, trigger)

    def _run(self, fails: bool, trigger: dict[str, bool]) -> None:
        reader = self.spark.readStream.format("ledger").option("store", str(self.store)).options(**self.options)
        write = reader.load().writeStream.foreachBatch(self.take).trigger(**(trigger or {"availableNow": True}))
        query = write.option("checkpointLocation", str(self.checkpoint)).start()
        try:
            query.awaitTermination(120)
            assert not query.isActive
        except Exception as error:
            if not fails or "the sink fails" not in str(error):  # Spark wraps the sink's error
                raise
        finally:
            query.stop()

    def forget(self, *logs: str) -> None:
        """Delete the newest of these files, as if Spark had died before it wrote the file."""
        newest = max(int(path.name) for path in (self.checkpoint / "offsets").glob("[0-9]*"))
        for log in logs:
            (self.checkpoint / log / str(newest)).unlink()
            (self.checkpoint / log / f".{newest}.crc").unlink()

    @property
    def total(self) -> Sums:
        return tuple(sum(column) for column in zip(*self.batches.values(), strict=True))  # type: ignore[return-value]


def fill(api: LedgerStore, first: int, rows: int) -> None:
    """Append rows from `first` on, one entry per ledger in turn."""
    each = rows // (LEDGERS * ENTRIES)
    for number in range(LEDGERS * ENTRIES):
        begin = first + number * each
        numbers = pa.array(range(begin, begin + each), pa.int64())
        api.ledger(f"in-{number % LEDGERS}").append(pa.table({"n": numbers}))


@pytest.mark.slow
@pytest.mark.fault
def test_stopped_at_each_step_of_a_batch_every_row_is_read_once(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    api = connect(store)
    fill(api, 0, ROWS)
    options = {"ledgersPattern": "in-.*", "startingPosition": "earliest", "maxRowsPerTrigger": str(ROWS // 4)}
    story = Story(spark_session, store, tmp_path, **options)

    story.fails_at = 1
    story.run(fails=True)  # while rows of its tasks were in the sink
    story.run()
    assert len(story.batches) >= 4
    for step, logs in enumerate((["commits"], ["commits", "offsets"], []), start=1):
        story.forget(*logs)
        fill(api, ROWS + step * 1000, 1000)
        story.options["maxRowsPerTrigger"] = str(ROWS // (4 + step))  # limits may change
        story.run()
    wanted = sums(spark_session.range(ROWS).withColumnRenamed("id", "n"))
    more = sums(spark_session.range(ROWS + 1000, ROWS + 4000).withColumnRenamed("id", "n"))
    assert story.total == tuple(a + b for a, b in zip(wanted, more, strict=True))
    batch = spark_session.read.format("ledger").options(store=str(store), ledgersPattern="in-.*").load()
    assert sums(batch) == story.total


@pytest.mark.thorough
def test_a_lost_checkpoint_goes_on_at_the_cursors_of_all_ledgers(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    api = connect(store)
    fill(api, 0, 1000)
    options = {"ledgersPattern": "in-.*", "startingPosition": "earliest", "subscription": "s"}
    story = Story(spark_session, store, tmp_path, **options)
    story.run()
    fill(api, 1000, 1000)
    story.run()
    shutil.rmtree(story.checkpoint)
    # Without a listener the last batch may be acknowledged or not; the cursors show it.
    left = sum(api.ledger(f"in-{number}").cursor("s").state().backlog_rows for number in range(LEDGERS))
    assert left in {0, 1000}
    fill(api, 2000, 1000)
    again = Story(spark_session, store, tmp_path, **options)
    again.run()
    assert again.total == sums(spark_session.range(2000 - left, 3000).withColumnRenamed("id", "n"))


@pytest.mark.thorough
@pytest.mark.skipif(ONE_BATCH, reason="this Spark does not tell a source of its trigger")
def test_a_trigger_that_takes_all_ignores_the_limits(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    fill(connect(store), 0, 1000)
    limits = {"maxRowsPerTrigger": "10", "minRowsPerTrigger": "5", "maxTriggerDelay": "1h"}
    story = Story(spark_session, store, tmp_path, ledgersPattern="in-.*", startingPosition="earliest", **limits)
    story.run(once=True)
    assert story.batches == {0: sums(spark_session.range(1000).withColumnRenamed("id", "n"))}


@pytest.mark.thorough
def test_trimmed_or_recreated_ledger_ends_the_query_or_is_skipped(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    api = connect(store)
    api.client.ask(CreateLedger("in-0", max_entries_per_ledger=1))
    fill(api, 0, 1000)
    story = Story(spark_session, store, tmp_path, ledgersPattern="in-.*", startingPosition="earliest")
    story.run()
    fill(api, 1000, 1000)
    api.ledger("in-0").set_policy(retentionTimeInMinutes=0, retentionSizeInMB=0)
    assert api.ledger("in-0").trim().ledgers
    api.delete("in-1")
    fill(api, 2000, 1000)
    for words in (r"LEDGER_DATA_LOSS.*'in-[01]' has lost", "To continue without them, set option 'failOnDataLoss'"):
        with pytest.raises(StreamingQueryException, match=words):
            story.run()
    story.options["failOnDataLoss"] = "false"
    story.run()
    kept = {0: api.ledger("in-0").read()["n"].to_pylist(), 1: range(2000, 3000)}
    left = [n for n in range(3000) if n < 1000 or n in kept.get(n // 50 % LEDGERS, (n,))]
    assert story.total == sums(spark_session.createDataFrame([(n,) for n in left], "n bigint"))


@pytest.mark.thorough
def test_a_pattern_read_twice_in_one_query_is_all_of_it_twice(
    spark_session: SparkSession, store: Path, tmp_path: Path
) -> None:
    fill(connect(store), 0, 1000)
    reader = spark_session.readStream.format("ledger").option("store", str(store))
    stream = reader.options(ledgersPattern="in-.*", startingPosition="earliest").load()
    seen: list[Sums] = []
    both = stream.union(stream.select("n"))
    write = both.writeStream.foreachBatch(lambda frame, _: seen.append(sums(frame))).trigger(availableNow=True)
    query = write.option("checkpointLocation", str(tmp_path / "c")).start()
    assert query.awaitTermination(120)
    lines = (tmp_path / "c" / "offsets" / "0").read_text().splitlines()
    offsets = [json.loads(line)["ledgers"] for line in lines if '"ledgers"' in line]
    assert offsets, lines
    assert all(offset == offsets[0] and len(offset) == LEDGERS for offset in offsets)
    once = sums(spark_session.range(1000).withColumnRenamed("id", "n"))
    assert seen == [tuple(2 * value for value in once)]


@pytest.mark.thorough
def test_a_time_has_a_zone_of_its_own_and_not_the_sessions(spark_session: SparkSession, store: Path) -> None:
    fill(connect(store), 0, 1000)
    ends = [connect(store).ledger(f"in-{number}").end().last_publish_ms for number in range(LEDGERS)]
    after = datetime.fromtimestamp(max(ends) // 1000 + 1, timezone(timedelta(hours=5)))
    reader = spark_session.read.format("ledger").options(store=str(store), ledgersPattern="in-.*")
    whole = sums(spark_session.range(1000).withColumnRenamed("id", "n"))
    zone = spark_session.conf.get("spark.sql.session.timeZone")
    spark_session.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        assert sums(reader.option("endingTimestamp", after.isoformat()).load()) == whole
        with pytest.raises(
            AnalysisException, match=r"'endingTimestamp' is .*, expected a time with its zone, .*Z in UTC"
        ):
            reader.option("endingTimestamp", after.replace(tzinfo=None).isoformat()).load()
    finally:
        spark_session.conf.set("spark.sql.session.timeZone", zone)
