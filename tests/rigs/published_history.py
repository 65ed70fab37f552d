"""Publisher without Spark: it writes sealed segments to a table as the real publisher does, one commit for each."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy, TrimLedger
from tests.rigs.table import application, publish


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def append_pairs(ledger: Ledger, first: int, end: int) -> None:
    """Append the entries from `first` to `end`. Each has two rows."""
    for number in range(first, end):
        pair = pa.array([2 * number, 2 * number + 1], pa.int64())
        ledger.append(pa.table({"n": pair, "s": pa.array([f"r{number}", None])}))


def as_set(rows: list[dict[str, Any]]) -> Counter[str]:
    """Return the rows as a multiset, to compare them in any order."""
    return Counter(repr(sorted(row.items())) for row in rows)


def place_of(row: dict[str, Any]) -> tuple[int, int]:
    """Return the segment id and the entry id of a row."""
    return row["__position"]["ledgerId"], row["__position"]["entryId"]


def published_up_to(table: Path, name: str, incarnation: str) -> int:
    try:
        known = DeltaTable(str(table)).transaction_version(application(name, incarnation))
    except TableNotFoundError:
        return -1
    return -1 if known is None else known


def publish_sealed(
    store: Path, table: Path, name: str = "orders", most: int = 1000, after: int | None = None
) -> list[int]:
    """Publish the sealed segments that are not published, oldest first. Return their ids."""
    ledger: Ledger = connect(store).ledger(name)
    described = ledger.describe()
    newest = published_up_to(table, described.name, described.incarnation)
    done = []
    for segment in [row for row in described.segments if row.close_ms and row.ledger_id > newest][:most]:
        rows = _segment_rows(store, name, segment.ledger_id, segment.entries)
        publish(table, rows, segment.ledger_id, name=described.name, incarnation=described.incarnation, after=after)
        done.append(segment.ledger_id)
    return done


def trim(store: Path, name: str = "orders") -> None:
    """Delete the sealed segments. Then switch retention off, so that it deletes no later segment during the test."""
    client = connect(store).client
    for keep in (0, -1):
        values = {"retentionTimeInMinutes": keep, "retentionSizeInMB": keep}
        client.ask(ChangePolicy(name, values=values))
        if keep == 0:
            client.ask(TrimLedger(name))


def _segment_rows(store: Path, name: str, ledger_id: int, entries: int) -> pa.Table:
    source = LedgerSource(
        {
            "path": name,
            "store": str(store),
            "includeMetadata": "true",
            "startingPosition": str(Position(ledger_id, 0)),
            "endingPosition": str(Position(ledger_id, entries)),
        },
        "0.1.0",
    )
    reader = source.batch_reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = pa.Table.from_batches(batches)
    incarnation = pa.array([connect(store).ledger(name).describe().incarnation] * rows.num_rows, pa.string())
    day = rows.column("__publishTime").cast(pa.date32())
    rows = rows.drop_columns(["__messageId"]).append_column("__incarnation", incarnation)
    return rows.append_column("__publishDate", day)


def append(ledger: Ledger, first: int, end: int) -> None:
    """Append two rows for each number, with times, lists and structs."""
    for number in range(first, end):
        ledger.append(
            pa.table(
                {
                    "n": pa.array([2 * number, 2 * number + 1], pa.int64()),
                    "at": pa.array([number * 1_000_001] * 2, pa.timestamp("us", tz="UTC")),
                    "tags": pa.array([["a", str(number)], None], pa.list_(pa.string())),
                    "where": pa.array(
                        [{"x": number, "y": None}, None], pa.struct([("x", pa.int32()), ("y", pa.string())])
                    ),
                }
            )
        )
