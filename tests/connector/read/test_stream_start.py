"""Goal: the start of a query is durable before its first batch, and an ignored start option is logged once.

Method: Spark's calls over a real embedded broker, with offsets as JSON text as in a checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.cursors import DescribeCursor
from tests.rigs.stream import append, reader, rows, text

ALL = ReadAllAvailable()
FROM_CHECKPOINT = "the query continues from its checkpoint: option startingPosition is ignored"


def placed(ledger: Ledger, subscription: str) -> Position:
    """Return the state of a cursor. Raises NotFound, whereas `ledger.cursor()` would create the cursor."""
    found = ledger.client.ask(DescribeCursor(ledger.name, subscription))
    return found.next_position


@pytest.mark.parametrize("planned", [False, True])
def test_latest_of_the_first_start_is_in_the_cursor_before_batch_0(store: Path, orders: Ledger, planned: bool) -> None:
    latest = orders.end().end
    stream = reader(store, subscription="billing")
    start = text(stream.initialOffset())
    assert placed(orders, "billing") == latest
    append(orders, 10, 12)
    if planned:  # batch 0 fails before Spark writes its offsets
        assert rows(stream, start, text(stream.latestOffset(start, ALL))) == [10, 11]
    stream.stop()
    append(orders, 12, 13)
    again = reader(store, subscription="billing")
    assert text(again.initialOffset()) == start
    assert rows(again, start, text(again.latestOffset(start, ALL))) == [10, 11, 12]
    again.stop()


def ignored(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings about ignored options since the last call."""
    said = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    caplog.clear()
    return said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingPosition": "earliest"}, [FROM_CHECKPOINT]),
        ({"startingPosition": "earliest", "subscription": "billing"}, [FROM_CHECKPOINT]),
        ({}, []),
    ],
)
@pytest.mark.parametrize("first_call", ["latestOffset", "partitions", "latestOffset without a start"])
def test_a_starting_option_that_a_checkpoint_overrules_is_said_once(
    store: Path, orders: Ledger, caplog: pytest.LogCaptureFixture, options: dict, said: list[str], first_call: str
) -> None:
    stream = reader(store, **{"startingPosition": "earliest", **options})
    start = text(stream.initialOffset())
    at = text(stream.latestOffset(start, ALL))
    assert rows(stream, start, at) == list(range(10))
    stream.stop()
    assert ignored(caplog) == []  # not ignored
    again = reader(store, **options)
    if first_call == "partitions":  # a batch that was not committed
        assert rows(again, start, at) == list(range(10))
    elif first_call == "latestOffset without a start":  # as Spark before 4.2 begins
        again.latestOffset()
    for number in range(10, 13):
        append(orders, number, number + 1)
        end = text(again.latestOffset(at, ALL))
        assert rows(again, at, end) == [number]
        at = end
    again.stop()
    # The batch that is repeated begins at the start that the option gave.
    assert ignored(caplog) == ([] if first_call == "partitions" else said)


def test_a_starting_option_that_gives_the_checkpoints_position_is_no_news(
    store: Path, orders: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    stream = reader(store, startingPosition="earliest")
    start = text(stream.initialOffset())
    at = text(stream.latestOffset(start, ALL))
    stream.stop()
    for options, offset in (
        ({"startingPosition": "earliest"}, start),
        ({"startingPosition": str(orders.end().end)}, at),
    ):
        again = reader(store, **options)
        again.latestOffset(offset, ALL)
        again.stop()
    assert ignored(caplog) == []


def test_a_starting_option_that_a_subscription_overrules_is_said_once(
    store: Path, orders: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    by_cursor = (
        f"subscription billing exists in {orders.name}: the query begins at {orders.end().start} there, "
        f"option startingPosition is ignored"
    )
    for options, said in (
        ({"startingPosition": "earliest"}, []),
        ({"startingPosition": "latest"}, [by_cursor]),
        ({}, []),
    ):
        stream = reader(store, subscription="billing", **options)
        start = text(stream.initialOffset())
        assert text(stream.initialOffset()) == start
        for _ in range(2):
            assert rows(stream, start, text(stream.latestOffset(start, ALL))) == list(range(10))
        stream.stop()
        assert ignored(caplog) == said


def test_many_ledgers_are_one_line(store: Path, orders: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    append(connect(store).ledger("orders-eu"), 0, 1)
    for _ in range(2):
        stream = reader(store, ledgersPattern="orders.*", subscription="billing", startingPosition="earliest")
        stream.initialOffset()
        stream.stop()
    assert ["subscription billing exists in " in said and " and 1 more: " in said for said in ignored(caplog)] == [True]
