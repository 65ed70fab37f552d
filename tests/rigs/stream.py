"""Set-up for tests of stream readers: a ledger of ten entries, and a reader that is called as by Spark."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect


@pytest.fixture
def orders(store: Path) -> Ledger:
    """Return a new ledger `orders` with `n` from 0 to 9, each in an entry of its own."""
    ledger = connect(store).ledger("orders")
    append(ledger, 0, 10)
    return ledger


def append(ledger: Ledger, first: int, end: int, step: int = 1) -> None:
    """Append the numbers from `first` to `end` in entries of `step` rows. The last entry has the rest."""
    for number in range(first, end, step):
        ledger.append(pa.table({"n": pa.array(range(number, min(number + step, end)), pa.int64())}))


def numbers(rows: pa.Table) -> list[int]:
    return rows.column("n").to_pylist()


def reader(store: Path, **options: str) -> LedgerStreamReader:
    """Return a reader of `orders`, unless the options name other ledgers."""
    where = {} if "ledgersPattern" in options else {"path": "orders"}
    source = LedgerSource({**where, "store": str(store), **options}, "0.1.0")
    return source.stream_reader(source.schema())


def text(offset: object) -> dict[str, Any]:
    """Return an offset in the form that a checkpoint returns."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def rows(stream: LedgerStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Return the rows that the tasks of a batch read, from pickled copies."""
    copy = pickle.loads(pickle.dumps(stream))  # noqa: S301  # our own bytes
    assert getattr(copy, "_running", None) is None
    parts = [pickle.loads(pickle.dumps(part)) for part in stream.partitions(text(start), text(end))]  # noqa: S301  # our own bytes
    return [n for part in parts for batch in copy.read(part) for n in batch.column("n").to_pylist()]
