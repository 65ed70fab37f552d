"""Goal: a Spark that knows no admission (4.0, 4.1) loses nothing at the start of a query or after a restart. Method:
its calls, made by hand in its order: the end is asked for first, without a start.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connector.data_source import LedgerSource
from connector.stream_reader import LedgerStreamReader
from ledger.api import connect
from ledger.ledger import Ledger


@pytest.fixture
def orders(store: Path) -> Ledger:
    ledger = connect(store).ledger("orders")
    append(ledger, 0, 10)
    return ledger


def append(ledger: Ledger, first: int, end: int) -> None:
    ledger.append(pa.table({"n": pa.array(range(first, end), pa.int64())}))


def reader(store: Path, **options: str) -> LedgerStreamReader:
    source = LedgerSource({"path": "orders", "store": str(store), **options}, "0.1.0")
    return source.stream_reader(source.schema())


def text(offset: Any) -> dict[str, Any]:
    return json.loads(json.dumps(offset))


def rows(stream: LedgerStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return [n for part in stream.partitions(start, end) for b in stream.read(part) for n in b.column("n").to_pylist()]


@pytest.mark.parametrize("subscription", [{}, {"subscription": "billing"}])
def test_the_end_is_asked_for_before_the_start(store: Path, orders: Ledger, subscription: dict[str, str]) -> None:
    stream = reader(store, startingPosition="earliest", **subscription)
    end = text(stream.latestOffset())
    start = text(stream.initialOffset())
    assert rows(stream, start, end) == list(range(10))
    stream.commit(end)
    append(orders, 10, 15)
    following = text(stream.latestOffset())
    assert rows(stream, end, following) == list(range(10, 15))
    stream.stop()
    # A restart: the checkpoint ends at `following`, and what has come since is read once.
    append(orders, 15, 20)
    again = reader(store, startingPosition="earliest", **subscription)
    newest = text(again.latestOffset())
    assert rows(again, following, newest) == list(range(15, 20))
    again.stop()


def test_an_empty_range_has_no_rows_however_it_is_said(store: Path, orders: Ledger) -> None:
    assert list(reader(store).read(None)) == []
