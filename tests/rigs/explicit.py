"""Set-up for tests of `ackMode` explicit: one store, calls as Spark makes them, and acknowledgements of rows."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
from pyspark_ledger.connector.schema import spark_schema
from pyspark_ledger.connector.write.acknowledge import LedgerAcknowledgeWriter
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.rows.metadata_columns import METADATA
from tests.rigs.broker_thread import served
from tests.rigs.stream import append, text

ALL = ReadAllAvailable()
EXPLICIT = {"subscription": "s", "ackMode": "explicit", "startingPosition": "earliest", "ackTimeout": "0"}
_NUMBERS = itertools.count()
PLACES = pa.schema([METADATA.field("__position"), METADATA.field("__messageId")])


def new_name(of: str) -> str:
    """Return a name for a ledger that no other test uses."""
    return f"{of}{next(_NUMBERS)}"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Share a store between the tests of a file, because a broker takes seconds to stop with connected clients."""
    path = tmp_path_factory.mktemp("explicit") / "store"
    with served(path):
        yield path


@pytest.fixture
def empty(shared: Path) -> Ledger:
    """Return an empty ledger that only this test uses."""
    return connect(shared).ledger(new_name("orders"))


@pytest.fixture
def orders(empty: Ledger) -> Ledger:
    """Return a ledger with the rows 0 to 11 in three entries of four rows."""
    append(empty, 0, 12, step=4)
    return empty


def reader(orders: Ledger, **options: str) -> LedgerStreamReader:
    source = LedgerSource({**where(orders), **options}, "0.1.0")
    return source.stream_reader(source.schema())


def where(orders: Ledger) -> dict[str, str]:
    return {"path": orders.name, "store": orders.client.hello().store_path}


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


def batch_of_all(orders: Ledger) -> pa.Table:
    source = LedgerSource({**where(orders), "includeMetadata": "true"}, "0.1.0")
    read = source.batch_reader(source.schema())
    return pa.Table.from_batches([rows for part in read.partitions() for rows in read.read(part)])


def given_up(stream: LedgerStreamReader, here: dict[str, Any], batches: int = 4) -> dict[str, Any]:
    """Read `batches` batches without an acknowledgement. Return the offset after the last one."""
    for _ in range(batches):
        here = text(stream.latestOffset(here, ALL) or here)
    return here
