"""Acknowledgement from Spark, and reads of a backlog of which a part is already acknowledged.

`ack_rate`: rows per second of `pyspark_ledger.acknowledge`. The positions are in a DataFrame that Spark has in memory.
The time ends when the cursor is durable. The base only sets the bits of the same positions with numpy. No real system
can be so fast. The plain write with `option("action", "ack")` is printed too.

`holes_read`: time of a catch-up read of a backlog, divided by the number of delivered rows. Half of the backlog is
acknowledged, at random. The base is the same read without acknowledged rows. In one case single rows are acknowledged,
in the other case whole entries. The lower ratio is the result.

`ACKNOWLEDGE_CASES` selects cases.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.harness import compare
from benchmarks.raw_disk import bench_dir
from benchmarks.rows import ENTRY_BYTES, ROW_BYTES, entry_rows, fill
from benchmarks.spark_queries import drained, session, start
from pyspark_ledger import acknowledge as acknowledge_rows
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.acknowledge import acknowledge
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.protocol.actions import AcknowledgeCommand, Empty
from pyspark_ledger.ledger.protocol.cursors import OpenCursor

ALL_CASES = "ack_rate,holes_read_by_entry,holes_read_by_row"
CASES = os.environ.get("ACKNOWLEDGE_CASES", ALL_CASES).split(",")
ENTRIES = 96
ROWS = entry_rows(ROW_BYTES["120B"])
# A quarter of the log and 2 % for metadata. So a read without holes has four batches, a read with holes two. The first
# batch of a read is not counted.
BATCH_BYTES = ENTRIES * ENTRY_BYTES // 4 * 102 // 100
LEDGER = canonical_name("backlog")
Integers = npt.NDArray[np.int64]


class Bench:
    """Backlog without further appends, and new cursors at its start."""

    def __init__(self, spark: SparkSession, client: Client, store: Path, folder: Path) -> None:
        self.spark, self.client, self.store, self.folder = spark, client, store, folder
        self._serial = count()
        fill(client, LEDGER, ENTRIES, ROW_BYTES["120B"])
        self.ledger_id = client.describe(LEDGER).segments[0].ledger_id

    def cursor(self) -> str:
        """Create a cursor."""
        name = f"c{next(self._serial)}"
        self.client.open_cursor(OpenCursor(LEDGER, name, EARLIEST))
        return name

    def cursor_with(self, entries: Integers, rows: Integers) -> str:
        """Create a cursor that has acknowledged these positions."""
        name = self.cursor()
        batch = acknowledge_batch(np.full(len(entries), self.ledger_id), entries, rows)
        acknowledge(self.client, AcknowledgeCommand(LEDGER, name), [batch])
        return name

    def read(self, cursor: str) -> float:
        """Return the seconds per million delivered rows."""
        frame = self.spark.readStream.format("ledger").option("store", str(self.store)).option("subscription", cursor)
        frame = frame.option("maxBytesPerTrigger", BATCH_BYTES).load(LEDGER)
        took = drained(start(frame, self.folder / cursor, available_now=True))
        return sum(took.seconds) / took.rows * 1e6


def positions(bench: Bench) -> DataFrame:
    """Return the cached positions of all rows."""
    number = f.col("id")
    place = f.struct(
        f.lit(bench.ledger_id).cast("bigint").alias("ledgerId"),
        f.floor(number / ROWS).cast("bigint").alias("entryId"),
        (number % ROWS).cast("int").alias("batchIndex"),
    )
    frame = bench.spark.range(ENTRIES * ROWS, numPartitions=2).select(place.alias("__position")).cache()
    frame.count()
    return frame


def ack_rate(bench: Bench) -> None:
    """Compare the sink with numpy alone."""
    frame = positions(bench)
    numbers = np.arange(ENTRIES * ROWS)
    entries, rows = numbers // ROWS, numbers % ROWS

    def plain(cursor: str) -> None:
        write = frame.write.format("ledger").mode("append").option("store", str(bench.store))
        write.option("action", "ack").option("subscription", cursor).save(LEDGER)

    def called(cursor: str) -> None:
        acknowledge_rows(frame, LEDGER, cursor, store=bench.store)

    def seconds(write: Callable[[str], None]) -> float:
        cursor = bench.cursor()
        began = time.perf_counter()
        write(cursor)
        return time.perf_counter() - began

    def sink() -> float:
        beside, took = seconds(plain), seconds(called)
        rates = [ENTRIES * ROWS / each / 1e6 for each in (took, beside)]
        print(f"  {rates[0]:.2f} M rows/s, by the plain write {rates[1]:.2f}", flush=True)
        return took

    def bare() -> None:
        flagged = np.zeros(ENTRIES * ROWS, dtype=np.bool_)
        flagged[entries * ROWS + rows] = True
        np.packbits(flagged, bitorder="little")

    compare("ack_rate", sink, bare)


def holes_read(bench: Bench) -> None:
    """Compare reads with half of the entries and half of the rows acknowledged with reads without."""
    dice = np.random.default_rng(5)
    whole = np.sort(dice.permutation(ENTRIES)[: ENTRIES // 2])
    single = np.flatnonzero(dice.random(ENTRIES * ROWS) < 0.5)
    cases: dict[str, Callable[[], str]] = {
        "holes_read_by_entry": lambda: bench.cursor_with(whole, np.full(len(whole), -1)),
        "holes_read_by_row": lambda: bench.cursor_with(single // ROWS, single % ROWS),
    }
    ratios = [
        compare(name, lambda made=made: bench.read(made()), lambda: bench.read(bench.cursor())).ratio  # type: ignore[misc]
        for name, made in cases.items()
        if name in CASES
    ]
    if len(ratios) == len(cases):
        print(f"ratio holes_read {min(ratios):.3f}", flush=True)


def main() -> None:
    """Run both benchmarks on one backlog."""
    with tempfile.TemporaryDirectory(dir=bench_dir()) as folder:
        store = Path(folder) / "store"
        client = connect(store).client
        spark = session()
        try:
            bench = Bench(spark, client, store, Path(folder))
            if "ack_rate" in CASES:
                ack_rate(bench)
            holes_read(bench)
        finally:
            spark.stop()
            client.call("shutdown", Empty())


if __name__ == "__main__":
    main()
