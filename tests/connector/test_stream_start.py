"""Goal: where a query begins is durable before its first batch. Method: Spark's calls, made by hand over a real
embedded broker; offsets pass through JSON text as in a checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from connector.data_source import LedgerSource
from connector.stream_reader import LedgerStreamReader
from ledger.api import connect
from ledger.cursor_calls import CursorState, NameCursor
from ledger.ledger import Ledger
from ledger.position import Position

ALL = ReadAllAvailable()


@pytest.fixture
def orders(store: Path) -> Ledger:
    ledger = connect(store).ledger("orders")
    append(ledger, 0, 10)
    return ledger


def append(ledger: Ledger, first: int, end: int) -> None:
    for number in range(first, end):
        ledger.append(pa.table({"n": pa.array([number], pa.int64())}))


def reader(store: Path, **options: str) -> LedgerStreamReader:
    source = LedgerSource({"path": "orders", "store": str(store), **options}, "0.1.0")
    return source.stream_reader(source.schema())


def text(offset: object) -> dict:
    return json.loads(json.dumps(offset))


def rows(stream: LedgerStreamReader, start: dict, end: dict) -> list[int]:
    parts = stream.partitions(text(start), text(end))
    return [n for part in parts for batch in stream.read(part) for n in batch.column("n").to_pylist()]


def placed(ledger: Ledger, subscription: str) -> Position:
    """Where a cursor stands; NotFound when nobody has made it, where `ledger.cursor()` would."""
    found: CursorState = ledger.client.call("cursor.describe", NameCursor(ledger.name, subscription))
    return found.next_position


@pytest.mark.parametrize("planned", [False, True])
def test_the_latest_of_the_first_start_is_in_the_cursor_before_the_first_batch(
    store: Path, orders: Ledger, planned: bool
) -> None:
    latest = orders.end().end
    stream = reader(store, subscription="billing")
    start = text(stream.initialOffset())
    assert placed(orders, "billing") == latest
    append(orders, 10, 12)
    if planned:  # batch 0 fails before Spark has written a word of it down
        assert rows(stream, start, text(stream.latestOffset(start, ALL))) == [10, 11]
    stream.stop()
    append(orders, 12, 13)
    again = reader(store, subscription="billing")
    assert text(again.initialOffset()) == start
    assert rows(again, start, text(again.latestOffset(start, ALL))) == [10, 11, 12]
    again.stop()
