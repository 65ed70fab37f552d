"""Goal: Spark without admission control (4.0, 4.1) loses no row at the start of a query or after a restart.

Method: the calls of these versions in their order: `latestOffset` first, without a start.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.ledger import Ledger
from tests.rigs.stream import append, reader, rows, text


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
    # A restart: the checkpoint ends at `following`, and later rows are read once.
    append(orders, 15, 20)
    again = reader(store, startingPosition="earliest", **subscription)
    newest = text(again.latestOffset())
    assert rows(again, following, newest) == list(range(15, 20))
    again.stop()


def test_an_empty_range_has_no_rows_however_it_is_said(store: Path, orders: Ledger) -> None:
    assert list(reader(store).read(None)) == []
