"""What the tests of `ackMode` explicit share: one store, calls as Spark makes them, and rows acknowledged by hand."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from connector.acknowledge_writer import LedgerAcknowledgeWriter
from connector.data_source import LedgerSource
from connector.schema import METADATA, spark_schema
from connector.stream_reader import LedgerStreamReader
from ledger.api import connect
from ledger.ledger import Ledger
from ledger.protocol import Empty

ALL = ReadAllAvailable()
EXPLICIT = {"subscription": "s", "ackMode": "explicit", "startingPosition": "earliest", "ackTimeout": "0"}
_NUMBERS = itertools.count()
PLACES = pa.schema([METADATA.field("__position"), METADATA.field("__messageId")])


def served(path: Path) -> Iterator[Path]:
    """One store for all tests of a file: a broker takes seconds to leave clients that are connected."""
    yield path
    connect(path).client.call("shutdown", Empty())


def new_name(of: str) -> str:
    """A ledger's name that no other test has."""
    return f"{of}{next(_NUMBERS)}"


def three_entries(ledger: Ledger) -> Ledger:
    """Three entries of four rows, 0 to 11."""
    for first in range(0, 12, 4):
        ledger.append(pa.table({"n": pa.array(range(first, first + 4), pa.int64())}))
    return ledger


def reader(orders: Ledger, **options: str) -> LedgerStreamReader:
    source = LedgerSource({**where(orders), **options}, "0.1.0")
    return source.stream_reader(source.schema())


def where(orders: Ledger) -> dict[str, str]:
    return {"path": orders.name, "store": orders.client.hello().store_path}


def text(offset: object) -> dict[str, Any]:
    return json.loads(json.dumps(offset))


def batch(stream: LedgerStreamReader, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
    parts = [pickle.loads(pickle.dumps(part)) for part in stream.partitions(text(start), text(end))]  # noqa: S301 — our own bytes
    copy = pickle.loads(pickle.dumps(stream))  # noqa: S301 — as above
    found = [rows for part in parts for rows in copy.read(part)]
    return pa.Table.from_batches(found, found[0].schema) if found else pa.table({"n": pa.array([], pa.int64())})


def writer(orders: Ledger, columns: pa.Schema = PLACES, **options: str) -> LedgerAcknowledgeWriter:
    given = {**where(orders), "action": "ack", "subscription": "s", **options}
    made = LedgerSource(given, "0.1.0").batch_writer(spark_schema(columns, "orders"), overwrite=False)
    assert isinstance(made, LedgerAcknowledgeWriter)
    return made


def say(orders: Ledger, rows: pa.Table, action: str = "ack", column: str = "__position") -> None:
    rows = rows.select([column])
    sink = pickle.loads(pickle.dumps(writer(orders, rows.schema, action=action)))  # noqa: S301 — as above
    half = rows.num_rows // 2
    tasks = [sink.write(iter(part.to_batches())) for part in (rows.slice(0, half), rows.slice(half))]
    sink.commit([*tasks, sink.write(iter(()))])


def numbers(rows: pa.Table) -> list[int]:
    return rows.column("n").to_pylist()


def batch_of_all(orders: Ledger) -> pa.Table:
    source = LedgerSource({**where(orders), "includeMetadata": "true"}, "0.1.0")
    read = source.batch_reader(source.schema())
    return pa.Table.from_batches([rows for part in read.partitions() for rows in read.read(part)])


def given_up(stream: LedgerStreamReader, here: dict[str, Any], batches: int = 4) -> dict[str, Any]:
    """Nobody acknowledges: so many batches later."""
    for _ in range(batches):
        here = text(stream.latestOffset(here, ALL) or here)
    return here
