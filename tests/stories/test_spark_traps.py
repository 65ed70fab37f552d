"""Goal: the source handles the unexpected behaviour of Spark 4.2 towards Python sources.

Method: a table of traps, each with the test that fails for a source without the handling. Tests of traps that have no
other test are in this file.
"""

from __future__ import annotations

import inspect
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_ledger.connector.read.batch_reader import LedgerBatchReader
from pyspark_ledger.ledger.api.store import connect

pytestmark = pytest.mark.feature("views, unions and repeated jobs")

TESTS = Path(__file__).resolve().parents[1]
ACKNOWLEDGING, SINK, STREAM = "test_spark_acknowledging.py", "test_spark_sink.py", "test_stream_reader.py"
HERE = Path(__file__).name
TRAPS: dict[str, tuple[str, str]] = {
    "filters that one scan pushed leak into every later one": (HERE, "test_no_filter_leaks_and_no_plan_shows_options"),
    "a reader that takes filters fails where the setting is off, as it is by default": (
        HERE,
        "test_filters_are_not_taken_over",
    ),
    "partitions() of a frame or view runs once, whatever comes later": (
        "test_spark_versions.py",
        "test_sql_sees_a_ledger_as_it_was_when_the_view_was_made",
    ),
    "initialOffset() is asked twice": (STREAM, "test_batches_join_without_gap_or_overlap"),
    "initialOffset() is asked again by a new process when batch 0 failed": (
        "test_spark_stream.py",
        "test_latest_loses_nothing_when_batch_0_fails",
    ),
    "an inverted range is asked for as if it were one": (STREAM, "test_a_range_that_runs_backwards_raises"),
    "commit(end) comes a batch late, for the last one never": (
        ACKNOWLEDGING,
        "test_backlog_reaches_zero_also_after_the_last_batch",
    ),
    "a batch is repeated that acknowledged by itself": (
        ACKNOWLEDGING,
        "test_acknowledged_in_the_batch_trimmed_and_failed_it_comes_again",
    ),
    "stop() may never run": (STREAM, "test_a_second_live_query_is_refused_and_a_dead_one_is_not_waited_for"),
    "partitions(start, end) is called first after a restart": (
        "test_spark_reading.py",
        "test_stopped_at_each_step_of_a_batch_every_row_is_read_once",
    ),
    "one source of a query is scanned twice": (
        "test_spark_reading.py",
        "test_a_pattern_read_twice_in_one_query_is_all_of_it_twice",
    ),
    "no metrics but those of reportLatestOffset()": (
        "test_commit_listener.py",
        "test_the_report_says_lag_reads_and_why",
    ),
    "one ReadLimit, and none of both": (
        "test_limits.py",
        "test_split_by_limit_takes_the_oldest_entry_and_reads_all_in_the_end",
    ),
    "ReadAllAvailable is to be honoured": (STREAM, "test_limits_and_available_now"),
    "options of a table of the catalog are lost": (SINK, "test_what_cannot_be_done_is_said"),
    "discovery is all or nothing, and silent": (
        "test_checks.py",
        "test_another_source_that_fails_switches_discovery_off",
    ),
    "a package that Spark imports must be light": ("test_pyspark_ledger.py", "test_import_is_light"),
    "complete mode is overwrite, other modes are refused": (
        SINK,
        "test_complete_mode_appends_the_whole_result_each_time",
    ),
    "update mode and continuous processing are refused": (SINK, "test_what_cannot_be_done_is_said"),
    "a thread of one's own finds no Python source to write with": (HERE, "test_a_thread_writes_once_it_has_a_session"),
    "a call that hangs hangs the query": ("test_stream_reader.py", "test_a_broker_that_hangs_ends_the_query_in_time"),
    "every attempt's side effects are real": (
        "test_spark_attempts.py",
        "test_attempts_that_fail_and_attempts_that_are_overtaken",
    ),
    "abort is called after a commit that failed": (
        "test_commit.py",
        "test_a_commit_whose_answer_was_lost_is_aborted_and_run_again",
    ),
    "a batch without rows is committed": ("test_commit.py", "test_a_batch_without_rows_commits_nothing"),
    "no partitions become one without a value": (
        "test_older_spark.py",
        "test_an_empty_range_has_no_rows_in_every_form",
    ),
    "a task costs tens of milliseconds": ("test_task_split.py", "test_little_is_one_task_and_much_is_cut_by_size"),
    "a call of the driver that fails ends the query": (
        "test_spark_stream.py",
        "test_available_now_repeats_and_a_killed_broker",
    ),
    "only the first batch is compared with the schema": (
        "test_schema.py",
        "test_metadata_columns_are_to_the_letter_what_spark_expects",
    ),
    "a schema that the user gives is compared by nobody": ("test_data_source.py", "test_a_user_schema_is_compared"),
    "readers are pickled, partitions too": (STREAM, "test_batches_join_without_gap_or_overlap"),
    "offsets are compared as text": (STREAM, "test_batches_join_without_gap_or_overlap"),
    "option values get into plans, logs and errors": (
        "test_credentials.py",
        "test_a_token_in_place_of_its_reference_is_not_repeated",
    ),
    "before 4.2 there is no start and no limit": (
        "test_older_spark.py",
        "test_a_restart_after_any_call_reads_each_row_once",
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_each_trap_is_met_where_it_says(trap: str) -> None:
    file, name = TRAPS[trap]
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob(file)]
    assert any(re.search(rf"^def {name}\(", text, re.MULTILINE) for text in texts)


def test_filters_are_not_taken_over() -> None:
    assert "pushFilters" not in vars(LedgerBatchReader)


@pytest.mark.thorough
def test_a_thread_writes_once_it_has_a_session(spark_session: SparkSession, store: Path) -> None:
    """Spark searches Python sources in the thread's active session. A new thread has no active session."""
    rows, writer = spark_session.range(3), ThreadPoolExecutor(1)

    def write() -> None:
        rows.write.format("ledger").mode("append").option("store", str(store)).save("rows")

    with writer:
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            writer.submit(write).result()
        writer.submit(spark_session.createDataFrame, [], "n int").result()
        writer.submit(write).result()
    assert connect(store).ledger("rows").describe().rows == 3


@pytest.mark.thorough
def test_no_filter_leaks_and_no_plan_shows_options(spark_session: SparkSession, store: Path) -> None:
    connect(store).ledger("orders").append(pa.table({"n": pa.array(range(10), pa.int64())}))
    spark, key = spark_session, "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(key, "true")
    try:
        orders = spark.read.format("ledger").option("store", str(store)).load("orders")
        assert orders.filter("n > 7").count() == 2
        assert orders.count() == 10
        assert orders.filter("n > 7").union(orders.filter("n > 2")).count() == 9
        plan = orders._jdf.queryExecution().toString()
    finally:
        spark.conf.unset(key)
    assert "ledger" in plan
    assert str(store) not in plan


@pytest.mark.thorough
def test_real_time_mode_refuses_the_source_by_name(spark_session: SparkSession, store: Path, tmp_path: Path) -> None:
    connect(store).ledger("orders").append([{"n": 1}])
    stream = spark_session.readStream.format("ledger").option("store", str(store)).load("orders")
    write = stream.writeStream.foreachBatch(lambda *_: None).option("checkpointLocation", str(tmp_path / "c"))
    if "realTime" not in inspect.signature(write.trigger).parameters:
        pytest.skip("this Spark has no real-time mode")
    allowed = "spark.sql.streaming.realTimeMode.allowlistCheck"  # else Spark refuses the sink before it sees the source
    spark_session.conf.set(allowed, "false")
    try:
        query = write.outputMode("update").trigger(realTime="5 seconds").start()
        with pytest.raises(StreamingQueryException, match=r"Python\w+ is not supported in Real-time Mode"):
            query.awaitTermination(60)
    finally:
        spark_session.conf.unset(allowed)
