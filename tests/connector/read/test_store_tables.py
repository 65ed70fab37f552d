"""Goal: metadata tables of a store have fixed columns and correct rows. Method: every table of a small store."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.read.store_tables import TABLES, AckedRangesTask
from pyspark_ledger.connector.schema import arrow_schema
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.position_info import encode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet


def table(store: Path, name: str, ledger: str = "") -> list[dict]:
    given = {"store": str(store), "table": name, **({"path": ledger} if ledger else {})}
    source = LedgerSource(given, "0")
    schema = source.schema()
    reader = source.batch_reader(schema)
    found = []
    # For no partitions Spark passes one empty partition.
    for part in reader.partitions() or [InputPartition(None)]:
        part = pickle.loads(pickle.dumps(part))  # noqa: S301, PLW2901 — our own bytes
        for batch in reader.read(part):
            assert batch.schema.equals(arrow_schema(schema))
            found += batch.to_pylist()
    return found


def test_tables_of_a_store(store: Path) -> None:
    api = connect(store)
    orders, other = api.ledger("orders"), api.ledger("other")
    for _ in range(3):
        orders.append(pa.table({"n": [1, 2, 3]}))
    other.append(pa.table({"n": [1]}))
    cursor = orders.cursor("billing")
    (first,) = {segment.ledger_id for segment in orders.describe().segments}
    cursor.acknowledge_rows([(first, 1), (first, 2, 0)])

    assert {row["ledger"].rsplit("/", 1)[1]: row["rows"] for row in table(store, "ledgers")} == {
        "orders": 9,
        "other": 1,
    }
    assert [row["rows"] for row in table(store, "ledgers", "orders")] == [9]
    assert [(row["ledgerId"], row["entries"]) for row in table(store, "segments", "orders")] == [(first, 3)]
    (row,) = table(store, "cursors")
    assert (row["cursor"], row["backlogRows"], row["acknowledgedRanges"], row["partialEntries"]) == ("billing", 5, 1, 1)
    assert row["nextPosition"] == {"ledgerId": -1, "entryId": 0}
    assert [(row["firstEntry"], row["endEntry"], row["rowsLeft"]) for row in table(store, "holes", "orders")] == [
        (1, 2, 0),
        (2, 3, 2),
    ]
    assert table(store, "holes", "other") == []
    assert {row["metric"] for row in table(store, "cache")} >= {"hits", "misses"}
    assert set(TABLES) == {"ledgers", "segments", "cursors", "holes", "cache"}


def test_a_partitioned_ledger_is_its_partitions(store: Path) -> None:
    whole = connect(store).create_partitioned("clicks", 2)
    for part in whole.partitions():
        part.append([{"n": 1}])
        part.cursor("c")
    for ledger in ("", "clicks"):
        assert [(row["rows"], row["segments"], row["cursors"]) for row in table(store, "ledgers", ledger)] == [
            (1, 1, 1)
        ] * 2
        assert [row["entries"] for row in table(store, "segments", ledger)] == [1, 1]
        assert [row["backlogRows"] for row in table(store, "cursors", ledger)] == [1, 1]


def test_millions_of_holes_are_rows_by_columns(store: Path) -> None:
    """The pickled task is no larger than the cursor's state."""
    held, count = PositionSet(), 2_000_000
    held.add_entries(7, np.arange(0, 2 * count, 2))
    task = AckedRangesTask("orders", "billing", encode_info(Position(7, -1), held))
    assert len(pickle.dumps(task)) < 1_000_000
    source = LedgerSource({"store": str(store), "table": "holes"}, "0")
    found = 0
    for batch in task.read():
        assert batch.schema.equals(arrow_schema(source.schema()))
        firsts = np.asarray(batch.column("firstEntry"))
        assert np.array_equal(firsts, np.arange(2 * found, 2 * (found + len(firsts)), 2))
        found += batch.num_rows
    assert found == count


def test_a_table_that_is_none_and_a_stream_of_one_are_refused(tmp_path: Path) -> None:
    store = tmp_path / "none"
    with pytest.raises(Refused, match="'table' is 'dragons'"):
        LedgerSource({"store": str(store), "table": "dragons"}, "0")
    source = LedgerSource({"store": str(store), "table": "cursors", "path": "orders"}, "0")
    with pytest.raises(Refused, match="no meaning for a stream read"):
        source.stream_reader(source.schema())
