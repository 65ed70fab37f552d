"""Goal: Spark without admission control (4.0, 4.1) reads each row once, within the limits, over any restart.

Method: `tests.rigs.older_spark` calls the reader as these versions do, and ends runs after each call.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from pyspark_ledger.connector.read.progress import parse_source_identity, source_report
from pyspark_ledger.connector.session.commit_listener import committed
from pyspark_ledger.connector.session.metrics import ledgers_of
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import Unsupported
from pyspark_ledger.ledger.position import Position
from tests.rigs.older_spark import CALLS, OlderSpark
from tests.rigs.stream import append, reader, rows, text

SUBSCRIPTIONS = [{}, {"subscription": "billing"}]


def query(store: Path, **options: str) -> OlderSpark:
    return OlderSpark(lambda: reader(store, **{"startingPosition": "earliest", **options}))


@pytest.mark.parametrize("subscription", SUBSCRIPTIONS)
@pytest.mark.parametrize(
    ("limit", "sizes"),
    [({}, [10]), ({"maxRowsPerTrigger": "4"}, [4, 4, 2]), ({"maxBytesPerTrigger": "1"}, [1] * 10)],
)
def test_limits_apply_to_every_batch(
    store: Path, orders: Ledger, subscription: dict[str, str], limit: dict[str, str], sizes: list[int]
) -> None:
    spark = query(store, **subscription, **limit)
    spark.run(12)
    assert spark.read_rows == list(range(10))
    assert spark.batch_sizes == sizes


@pytest.mark.parametrize("subscription", SUBSCRIPTIONS)
@pytest.mark.parametrize("batches", [0, 1])
@pytest.mark.thorough
def test_a_restart_after_any_call_reads_each_row_once(
    store: Path, orders: Ledger, subscription: dict[str, str], batches: int
) -> None:
    for number, call in enumerate(CALLS):
        ledger = connect(store).ledger(f"orders{number}")
        append(ledger, 0, 10)
        spark = query(store, path=f"orders{number}", **subscription, maxRowsPerTrigger="4")
        spark.run(batches)
        spark.run(3, fail_after=call)
        append(ledger, 10, 15)
        spark.run(1, fail_after=call)
        spark.run(6)
        assert spark.read_rows == list(range(15)), call
        assert max(spark.batch_sizes) == 4, call


def test_rows_without_an_acknowledgement_are_redelivered(store: Path, orders: Ledger) -> None:
    options = {"ackMode": "explicit", "subscription": "billing", "ackTimeout": "1", "maxRedeliveries": "1"}
    spark = query(store, **options)
    spark.run(1)
    spark.run(3)
    assert spark.read_rows == [*range(10), *range(10)]


def test_a_minimum_of_rows_is_waited_for(store: Path, orders: Ledger) -> None:
    spark = query(store, minRowsPerTrigger="12", maxTriggerDelay="1h")
    spark.run(2)
    assert spark.read_rows == []
    append(orders, 10, 15)
    spark.run(2)
    assert spark.read_rows == list(range(15))


def test_a_query_from_latest_reads_what_comes_after_its_start(store: Path, orders: Ledger) -> None:
    spark = OlderSpark(lambda: reader(store))
    spark.run(1)
    append(orders, 10, 12)
    spark.run(1)
    append(orders, 12, 14)
    spark.run(1, fail_after="offset log")
    spark.run(1)
    assert spark.read_rows == [10, 11, 12, 13]


def test_a_restart_without_new_rows_plans_no_batch(store: Path, orders: Ledger) -> None:
    spark = query(store)
    spark.run(1)
    logged = list(spark.offset_log)
    spark.run(3)
    assert spark.offset_log == logged


def test_a_spark_that_does_not_state_its_offset_is_refused(store: Path, orders: Ledger) -> None:
    """Without the refusal the batch would be empty, or repeat rows."""
    for start in ("earliest", "latest"):
        spark = query(store, startingPosition=start)
        spark.run(1)
        append(orders, 10, 12)
        spark.run(1)
        read = list(spark.read_rows)
        append(orders, 12, 15)
        spark.states_newest_offset = False
        with pytest.raises(Unsupported, match="before it stated the newest offset"):
            spark.run(1)
        assert spark.read_rows == read


def test_an_empty_range_at_the_first_end_is_no_checkpoint(store: Path, orders: Ledger) -> None:
    stream = reader(store, startingPosition="earliest")
    end = text(stream.latestOffset())
    assert len(stream.partitions(text(stream.initialOffset()), end)) == 1
    assert list(stream.partitions(end, end)) == []


@pytest.mark.parametrize("subscription", SUBSCRIPTIONS)
def test_the_end_of_a_batch_carries_the_progress(store: Path, orders: Ledger, subscription: dict[str, str]) -> None:
    spark = query(store, **subscription, maxRowsPerTrigger="4")
    spark.run(1)
    source = spark.progress()
    assert parse_source_identity(source_report(source)) is not None
    (seen,) = ledgers_of({"sources": [source], "name": "q", "batchId": 0})
    assert (seen.lag_rows, seen.ended_by) == (6, "maxRowsPerTrigger")
    acknowledged = [(ledger, position) for _, ledger, position in committed(source)]
    end = json.loads(spark.offset_log[-1])["ledgers"]["public/default/persistent/orders"]
    expected = [("public/default/persistent/orders", Position(end["ledger"], end["entry"]))]
    assert acknowledged == (expected if subscription else [])


@pytest.mark.parametrize("limit", [{"maxRowsPerTrigger": "4"}, {"minRowsPerTrigger": "12", "maxTriggerDelay": "1h"}])
def test_the_first_batch_of_a_run_ignores_limits_by_an_option(
    store: Path, orders: Ledger, limit: dict[str, str]
) -> None:
    spark = query(store, **limit, firstBatch="everything")
    spark.run(1)
    assert spark.batch_sizes == [10]
    append(orders, 10, 16)
    spark.run(2)
    assert spark.batch_sizes == [10, 6], "also after a restart"


def test_later_batches_of_a_run_keep_the_limits(store: Path, orders: Ledger) -> None:
    stream = reader(store, startingPosition="earliest", maxRowsPerTrigger="4", firstBatch="everything")
    first = stream.latestOffset()
    append(orders, 10, 16)
    second = stream.latestOffset()
    assert [len(rows(stream, text(stream.initialOffset()), first)), len(rows(stream, first, second))] == [10, 4]
    stream.stop()


@pytest.mark.parametrize(
    ("options", "warnings"),
    [
        ({}, 0),
        ({"maxRowsPerTrigger": "4"}, 1),
        ({"minRowsPerTrigger": "4"}, 1),
        ({"maxRowsPerTrigger": "4", "firstBatch": "everything"}, 0),
    ],
)
def test_a_limit_that_ends_available_now_is_warned_about_once(
    store: Path, orders: Ledger, options: dict[str, str], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        query(store, **options).run(3)
    said = [record for record in caplog.records if "Trigger.AvailableNow" in record.getMessage()]
    assert len(said) == warnings


def test_an_empty_range_has_no_rows_in_every_form(store: Path, orders: Ledger) -> None:
    assert list(reader(store).read(None)) == []
