"""Act of the demo: the sealed segments go to S3, and Spark reads them from there, with the broker and without it.

The sealed segments are offloaded (copied to S3), and their local copies are deleted. A query then reads these segments
from S3, and the last rows from the local file. After the rest is offloaded, too, Spark reads the bucket without a
broker. For both reads, the number of rows and the sum of their hashes must equal those of the source.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pyspark_ledger import LedgerStore
from streaming_examples.acts.audit import Check
from streaming_examples.s3_server import S3Server

PROVIDER = "streaming_examples.s3_server:credentials"
BATCH_ROWS = 120_000
Sums = tuple[int, int]


class BucketAct:
    """Run of the act, with a bucket of the S3 server."""

    def __init__(self, store: LedgerStore, ledger: str, spark: SparkSession, directory: Path, server: S3Server) -> None:
        self.store, self.name, self.spark, self.directory = store, ledger, spark, directory
        self.ledger = store.ledger(ledger)
        self.checks: list[Check] = []
        self.timings: list[tuple[str, float]] = []
        self.server = server
        self.address = self.server.make_bucket("history")
        store.offload_to(self.address, endpoint=self.server.endpoint)

    def run(self, source: pa.Table, location: Path) -> None:
        """Offload, delete the local copies, read from S3 and the local file, and read the bucket alone."""
        wanted = sums(self.spark.createDataFrame(source))
        done = self._timed("offload the sealed segments to S3", self.ledger.offload)
        self.ledger.set_policy(managedLedgerOffloadDeletionLagInMillis=0)
        gone = self.ledger.trim().local
        kept = len(list((location / "ledgers").glob("*.ledger")))
        found = f"{len(done.done)} segments, {done.bytes_done / 1e6:.1f} MB; {len(gone)} local copies deleted"
        self.checks.append(
            Check("sealed segments are in S3 only", bool(gone) and sorted(gone) == sorted(done.done), found)
        )
        through = self._timed("a query from the beginning, from S3 and the local file", lambda: self._through(location))
        what = f"{through[0]:,} rows, {kept} local segment files"
        self.checks.append(
            Check("a query from the beginning reads S3 and then the local file", through == wanted, what)
        )
        self.ledger.offload(seal=True)
        alone = self._timed("read the bucket without a broker", lambda: sums(self.bucket()))
        self.checks.append(Check("the bucket alone has the same rows", alone == wanted, f"{alone[0]:,} rows"))

    def bucket(self) -> DataFrame:
        """Return the ledger, read directly from its objects."""
        reader = self.spark.read.format("ledger").option("offload", self.address)
        reader = reader.option("offloadEndpoint", self.server.endpoint).option("credentialProvider", PROVIDER)
        return reader.load(self.name)

    def _through(self, location: Path) -> Sums:
        """Stream all rows in batches. Return their number, and the sum of their hashes."""
        seen: list[Sums] = []
        reader = self.spark.readStream.format("ledger").option("store", str(location))
        reader = reader.option("startingPosition", "earliest").option("maxRowsPerTrigger", BATCH_ROWS)
        query = (
            reader.load(self.name)
            .writeStream.foreachBatch(lambda batch, _: seen.append(sums(batch)))
            .option("checkpointLocation", str(self.directory / "history-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(rows for rows, _ in seen), sum(hashes for _, hashes in seen)

    def _timed(self, what: str, action: Callable[[], Any]) -> Any:
        began = time.monotonic()
        found = action()
        self.timings.append((what, time.monotonic() - began))
        return found


def sums(frame: DataFrame) -> Sums:
    """Return the number of rows, and the sum of their hashes over all columns in the order of their names."""
    hashed = f.xxhash64(*(f.col(name) for name in sorted(frame.columns))).cast("decimal(38,0)")
    row = frame.agg(f.count("*"), f.sum(hashed)).first()
    return (0, 0) if row is None else (row[0], int(row[1] or 0))
