"""Rows per second of processor time: eight queries that tail a ledger in one session, over one query.

Each round appends a few batches to a ledger whose queries are idle. When every query has read a batch, the next batch
is appended. The figure is the number of rows that all queries have read, divided by processor time. This time is the
sum over all processes: Spark, its Python workers, the broker and this process. It runs from the first visible batch
until all queries have read the last batch.

The rows are written in advance as staged parts, which one call makes visible. So writing is not measured. The queries'
first batch, which starts Python processes, does not count.

    CACHE_TAIL_MB=64        megabytes per batch
    CACHE_TAIL_BATCHES=5    batches per round
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from benchmarks.harness import Loop, compare
from benchmarks.processor_time import processor_seconds
from benchmarks.raw_disk import bench_dir
from benchmarks.rows import ENTRY_BYTES, create, entry, entry_rows
from benchmarks.spark_queries import rows_read, session, start, until_read
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol.actions import Empty
from pyspark_ledger.ledger.protocol.commits import CommitRun
from pyspark_ledger.ledger.transport.discovery import BrokerRecord

QUERIES = 8
ROW_BYTES = 1024
BATCH_ENTRIES = int(os.environ.get("CACHE_TAIL_MB", "64")) * 1024 * 1024 // ENTRY_BYTES
BATCHES = int(os.environ.get("CACHE_TAIL_BATCHES", "5"))


@dataclass
class Bench:
    """Shared state of the rounds."""

    spark: SparkSession
    client: Client
    store: Path
    broker: int
    serial: Iterator[int]

    @property
    def seconds(self) -> float:
        """Return the processor time so far of this process, Spark, its workers and the broker."""
        return processor_seconds(os.getpid(), self.broker)

    def tailing(self, queries: int) -> Loop:
        """Return a loop of `queries` queries over a new ledger: processor seconds for the rows of one query."""
        rows = BATCH_ENTRIES * entry_rows(ROW_BYTES)

        def loop() -> float:
            ledger = f"tail{next(self.serial)}"
            name = canonical_name(ledger)
            version = create(self.client, name)
            with self._started(ledger, queries) as running:
                first, *rest = [self._staged(name, number, version) for number in range(BATCHES + 1)]
                self.client.commit(first, deadline_ms=120_000)
                until_read(running, rows)
                before = self.seconds
                for number, batch in enumerate(rest, start=2):
                    self.client.commit(batch, deadline_ms=120_000)
                    until_read(running, number * rows)
                took = self.seconds - before
                read = sum(rows_read(query) for query in running)
            self.client.delete(name)
            if read != queries * rows * (BATCHES + 1):
                raise RuntimeError(f"{queries} queries read {read} rows of {rows * (BATCHES + 1)} each")
            return took / queries

        return loop

    @contextmanager
    def _started(self, ledger: str, queries: int) -> Iterator[list[StreamingQuery]]:
        with tempfile.TemporaryDirectory(dir=bench_dir()) as checkpoints:
            running = []
            try:
                for number in range(queries):
                    frame = self.spark.readStream.format("ledger").option("store", str(self.store))
                    frame = frame.option("startingPosition", "earliest").load(ledger)
                    running.append(start(frame, Path(checkpoints) / str(number), available_now=False))
                yield running
            finally:
                for query in running:
                    query.stop()

    def _staged(self, ledger: str, number: int, version: int) -> CommitRun:
        """Write a batch of rows to the disk. Return the request that makes them visible."""
        with self.client.stage_part(ledger, number) as part:
            for at in range(number * BATCH_ENTRIES, (number + 1) * BATCH_ENTRIES):
                part.write(entry(at, ROW_BYTES, version, txn=(1, number)), entry_rows(ROW_BYTES))
            return CommitRun(ledger, ledger, number, 1, number, [part.close()])


def main() -> None:
    """Compare eight queries with one."""
    with tempfile.TemporaryDirectory(dir=bench_dir(), ignore_cleanup_errors=True) as text:
        store = Path(text).resolve() / "store"
        client = connect(store).client
        spark = session()
        try:
            record = BrokerRecord.read(store)
            if record is None:
                raise RuntimeError(f"no broker has written its record in {store}")
            bench = Bench(spark, client, store, record.pid, count())
            compare("cache_tail", bench.tailing(QUERIES), bench.tailing(1))
        finally:
            spark.stop()
            client.call("shutdown", Empty())


if __name__ == "__main__":
    main()
