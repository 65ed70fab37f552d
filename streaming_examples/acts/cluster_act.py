"""Act of the demo: a month of flights through a store in S3, on a cluster that goes away twice and comes back.

    files ──streaming sink──▶ ledger `january` of a store in S3 ──cursor `report`──▶ rows, acknowledged every third file

Twice the act loses the cluster in the middle of the stream. It kills the broker and its supervisor, ends the query, and
deletes the broker's disk. Then a broker starts on an empty disk, and the query continues from its checkpoint. At the
end the act compares the rows of the ledger, and the rows that the cursor returned, with the source.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from pyspark_ledger import LedgerStore, NotFound, connect
from pyspark_ledger.ledger.bucket_store.creation import found_or_created
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.wal.requests import RequestLimits
from streaming_examples.acts.app_process import session_members
from streaming_examples.acts.audit import Check, exactly_once
from streaming_examples.acts.flight_feed import FlightFeed, start_sink

LEDGER, REPORT = "january", "report"
FILES, LOST_AT = 12, (4, 9)  # files
_WAIT_SECONDS = 120.0


class ClusterAct:
    """Run of the act. `address` is the address of the store, which the act creates."""

    def __init__(self, address: str, spark: SparkSession, directory: Path) -> None:
        self.address, self.spark, self.directory = address, spark, directory
        self.disk = bucket_directory(address)
        self.checks: list[Check] = []
        self.timings: list[tuple[str, float]] = []
        self._read: list[pa.Table] = []

    def run(self, source: pa.Table) -> None:
        """Write January file by file, lose the cluster twice, compare all rows."""
        self._create()
        month = source.filter(pc.equal(source["month"], 1)).combine_chunks()
        self._feed = FlightFeed(month, self.directory, batch_rows=0, files=FILES)
        store = self._connect("the first answer of the broker of a store in S3")
        query, lost = self._start(), list[int]()
        for number in range(FILES):
            self._feed.drop()
            if number in LOST_AT:
                lost.append(self._lose(store, query))
                store = self._connect("the first answer of a broker on an empty disk")
                query = self._start()
            self._wait(store, query, month.num_rows * (number + 1) // FILES)
            if number % 3 == 2:
                self._report(store)
        query.stop()
        numbers = " and ".join(f"{files} files" for files in lost)
        self.checks.append(Check("the cluster's disk was deleted twice", len(lost) == 2 and all(lost), numbers))
        self._compare("January is in the store exactly once", store.ledger(LEDGER).read(), month)
        self._compare("the cursor returned every flight exactly once", pa.concat_tables(self._read), month)

    def _compare(self, what: str, found: pa.Table, month: pa.Table) -> None:
        wrong = [check for check in exactly_once(found, month) if not check.held]
        numbers = "; ".join(f"{check.what}: {check.numbers}" for check in wrong)
        self.checks.append(Check(what, not wrong, numbers or f"{found.num_rows:,} flights"))

    def stop(self) -> None:
        """Stop the broker, if one runs."""
        stop_broker(self.disk)

    def _create(self) -> None:
        """Create the store as `connect` does, but without the test of the bucket.

        The test sends hundreds of simultaneous puts of one object. In SeaweedFS it takes one or two minutes.
        """
        bucket = open_object_store(self.address)
        found_or_created(bucket, system_clock_ms, RequestLimits(), create=True, window=8, probe=lambda _: None)
        bucket.close()

    def _connect(self, what: str) -> LedgerStore:
        began = time.monotonic()
        store = connect(self.address)
        store.client.hello()
        self.timings.append((what, time.monotonic() - began))
        return store

    def _start(self) -> StreamingQuery:
        return start_sink(self.spark, self._feed, self.address, LEDGER, self.directory / "checkpoint")

    def _lose(self, store: LedgerStore, query: StreamingQuery) -> int:
        """Kill the broker and its supervisor, end the query, delete the disk. Return the number of deleted files."""
        for pid in session_members(os.getsid(store.client.hello().pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        query.stop()
        self.stop()  # the query may have started another broker before it ended
        files = sum(path.is_file() for path in self.disk.rglob("*"))
        shutil.rmtree(self.disk)
        return files

    def _wait(self, store: LedgerStore, query: StreamingQuery, rows: int) -> None:
        """Wait until the ledger has the rows. Raises the error that ended the query, or TimeoutError."""
        until = time.monotonic() + _WAIT_SECONDS
        while _rows(store) < rows:
            if (error := query.exception()) is not None:
                raise error
            if time.monotonic() > until:
                message = f"{LEDGER} has {_rows(store)} rows after {_WAIT_SECONDS:.0f} s, expected {rows}"
                raise TimeoutError(message)
            time.sleep(0.05)

    def _report(self, store: LedgerStore) -> None:
        """Read the rows that the cursor has not acknowledged, and acknowledge them."""
        cursor = store.ledger(LEDGER).cursor(REPORT)
        rows, end = cursor.read()
        cursor.acknowledge(end)
        self._read.append(rows)


def _rows(store: LedgerStore) -> int:
    try:
        return store.ledger(LEDGER).describe().rows
    except NotFound:  # the sink creates the ledger with its first batch
        return 0
