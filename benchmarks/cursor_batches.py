"""Loop over a cursor's batches that acknowledges each of them, against `Ledger.batches`, which acknowledges nothing.

Both read the same rows from a broker that is a process of its own on this host, and count them. The loop of the cursor
acknowledges each batch of 32 MiB (`ack="after"`). For each batch the broker syncs a delivery record and an
acknowledgement to disk, both at once. The result is a ratio of rows per second.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.harness import compare
from benchmarks.raw_disk import bench_dir
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.actions import StopBroker

APPENDS, ROWS = 128, 100_000
ROUNDS = 11


def rows_of(number: int) -> pa.Table:
    """Return the rows of one append: an id, a price and 128 random bytes."""
    ids = np.arange(number * ROWS, (number + 1) * ROWS)
    noise = pa.py_buffer(np.random.default_rng(number).bytes(ROWS * 128))
    body = pa.FixedSizeBinaryArray.from_buffers(pa.binary(128), ROWS, [None, noise])
    return pa.table({"id": ids, "price": ids * 0.25, "body": body})


def loop(orders: Ledger) -> float:
    """Read and acknowledge all rows. Return the seconds of the loop, with its begin and its close."""
    cursor = orders.cursor("bench")
    cursor.reset(EARLIEST)
    start = time.perf_counter()
    with cursor.batches(wait=0, ack="after") as batches:
        count = sum(batch.num_rows for batch in batches)
    seconds = time.perf_counter() - start
    _require(count)
    if cursor.state().backlog_rows:
        message = f"{cursor.state()} has a backlog"
        raise ValueError(message)
    return seconds


def bare(orders: Ledger) -> None:
    """Read all rows."""
    _require(sum(batch.num_rows for batch in orders.batches()))


def main() -> None:
    """Print the ratio."""
    with tempfile.TemporaryDirectory(dir=bench_dir()) as scratch:
        store = connect(Path(scratch) / "store")
        orders = store.ledger("orders")
        for number in range(APPENDS):
            position = orders.append(rows_of(number))
        print(f"{APPENDS * ROWS:,} rows, {orders.describe().size_bytes:,} bytes, up to {position}")
        compare("cursor_batches", lambda: loop(orders), lambda: bare(orders), ROUNDS)
        orders.client.ask(StopBroker())


def _require(count: int) -> None:
    if count != APPENDS * ROWS:
        message = f"{count} rows were read of {APPENDS * ROWS}"
        raise ValueError(message)


if __name__ == "__main__":
    main()
