"""A publisher that needs no Spark: what a log has sealed, in a table as the real one leaves it, one commit a ledger."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from connector.data_source import LedgerSource
from ledger.api import connect
from ledger.ledger import Ledger
from ledger.life_calls import ChangePolicy
from ledger.position import Position
from ledger.protocol import NameLedger
from tests.offload.table_rig import application, publish


def read_rows(store: Path, name: str = "orders", **options: str) -> list[dict]:
    """The rows of a bounded read, as Spark would plan and run it."""
    source = LedgerSource({"path": name, "store": str(store), **options}, "0.1.0")
    reader = source.batch_reader(source.schema())
    return [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist(maps_as_pydicts="strict")
    ]


def published_up_to(table: Path, name: str, incarnation: str) -> int:
    try:
        known = DeltaTable(str(table)).transaction_version(application(name, incarnation))
    except TableNotFoundError:
        return -1
    return -1 if known is None else known


def publish_sealed(
    store: Path, table: Path, name: str = "orders", most: int = 1000, after: int | None = None
) -> list[int]:
    """Publish what is sealed of a log and not published, oldest first; the ledger ids."""
    ledger: Ledger = connect(store).ledger(name)
    told = ledger.describe()
    newest = published_up_to(table, told.name, told.incarnation)
    done = []
    for segment in [one for one in told.segments if one.close_ms and one.ledger_id > newest][:most]:
        rows = _segment_rows(store, name, segment.ledger_id, segment.entries)
        publish(table, rows, segment.ledger_id, name=told.name, incarnation=told.incarnation, after=after)
        done.append(segment.ledger_id)
    return done


def trim(store: Path, name: str = "orders") -> None:
    """What is sealed goes from the log, now and never again: retention by itself would be a race with the test."""
    client = connect(store).client
    for keep in (0, -1):
        values = {"retentionTimeInMinutes": keep, "retentionSizeInMB": keep}
        client.call("policy", ChangePolicy(name, values=values))
        if keep == 0:
            client.call("trim", NameLedger(name))


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
