"""Rows of the read benchmarks: two longs and a binary, 120 bytes or 1 KiB in total.

`fill` appends distinct rows to a ledger, in entries of the sink's size. `block` is one batch of the same columns, for
sources that yield the same batch repeatedly.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.message.arrow_payload import arrow_metadata
from pyspark_ledger.ledger.message.column_encoding import RowEncoder
from pyspark_ledger.ledger.message.columns import schema_bytes
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.protocol.actions import CreateLedger, RegisterSchema

ROW_BYTES = {"120B": 120, "1KiB": 1024}
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("body", pa.binary())])
ENTRY_BYTES = 4 * 1024 * 1024
_OFFSET_BYTES = 4


def rows_of(first: int, rows: int, row_bytes: int) -> pa.RecordBatch:
    """Return `rows` rows numbered from `first`, with random bodies that depend on the arguments only."""
    body = row_bytes - 16 - _OFFSET_BYTES
    data = np.random.Generator(np.random.SFC64(first)).bytes(rows * body)
    offsets = np.arange(0, (rows + 1) * body, body, dtype=np.int32)
    column = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    numbers = np.arange(first, first + rows, dtype=np.int64)
    return pa.RecordBatch.from_arrays([pa.array(numbers), pa.array(numbers * 7), column], schema=SCHEMA)


@lru_cache(maxsize=2)
def block(rows: int, row_bytes: int) -> pa.RecordBatch:
    """Return one batch, made once per process."""
    return rows_of(0, rows, row_bytes)


def entry_rows(row_bytes: int) -> int:
    """Return the number of rows of one entry."""
    return ENTRY_BYTES // row_bytes


def create(client: Client, ledger: str) -> int:
    """Create a ledger of these columns, and return the version of its schema."""
    client.ask(CreateLedger(ledger))
    return client.ask(RegisterSchema(ledger, schema_bytes(SCHEMA))).version


def entry(number: int, row_bytes: int, version: int, txn: tuple[int, int] | None = None) -> list[Buffer]:
    """Return the entry with this number. Its rows are distinct from those of other entries."""
    rows = entry_rows(row_bytes)
    metadata = arrow_metadata("bench", number, 1, rows, version, txn)
    return encode_entry(metadata, RowEncoder().encode([rows_of(number * rows, rows, row_bytes)]))


def fill(client: Client, ledger: str, entries: int, row_bytes: int) -> None:
    """Create a ledger and append the entries `[0, entries)`, durable on return."""
    version = create(client, ledger)
    with client.producer(ledger) as producer:
        for number in range(entries):
            producer.append(*entry(number, row_bytes, version))
