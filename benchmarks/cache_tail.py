"""Rows per CPU-second of all processes: eight tailing queries in one session, summed, over one.

Every query reads all rows of one ledger into noop, at its tail. A batch of rows is on the disk and becomes visible in
one step; when all queries are done with it comes the next. What counts is the processor time of this process, the JVM,
its Python workers and the broker, from the first release to the last batch's end; a batch before it starts processes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from benchmarks.harness import Loop, compare
from benchmarks.raw_disk import bench_dir
from benchmarks.rows import ENTRY_BYTES, create, entry, entry_rows
from benchmarks.spark_queries import batches_of, session, start, step
from ledger.api import connect
from ledger.broker.client import Client
from ledger.names import canonical_name
from ledger.protocol import Empty
from ledger.run_calls import CommitRun

QUERIES = 8
BATCHES = 3
BATCH_ENTRIES = 128 * 1024 * 1024 // ENTRY_BYTES
ROW_BYTES = 1024
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Iterator[int]) -> float:
    """Processor time of these processes and all their descendants, those included that have ended."""
    parents: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
        spent[int(path.parent.name)] = sum(map(int, fields[11:15])) / _TICKS
    total, left = 0.0, list(pids)
    while left:
        pid = left.pop()
        total += spent.get(pid, 0.0)
        left += parents.get(pid, [])
    return total


def tailing(
    spark: SparkSession, client: Client, store: Path, folder: Path, serial: Iterator[int], queries: int
) -> Loop:
    """A loop that lets so many queries follow; it answers CPU-seconds per row and query."""

    def run() -> float:
        ledger = f"tail{next(serial)}"
        name = canonical_name(ledger)
        version = create(client, name)
        frame = spark.readStream.format("ledger").option("store", str(store)).option("startingPosition", "earliest")
        running = [start(frame.load(ledger), folder / f"{next(serial)}", available_now=False) for _ in range(queries)]
        try:
            _release(client, name, 0, version, running)
            staged = [_staged(client, name, number, version) for number in range(1, BATCHES + 1)]
            watched = [os.getpid(), client.hello().pid]
            began = cpu_seconds(iter(watched))
            for commit in staged:
                _step_all(running, client, commit)
            return (cpu_seconds(iter(watched)) - began) / queries
        finally:
            for query in running:
                query.stop()
            client.delete(name)

    return run


def _release(client: Client, ledger: str, number: int, version: int, running: list[StreamingQuery]) -> None:
    _step_all(running, client, _staged(client, ledger, number, version))


def _step_all(running: list[StreamingQuery], client: Client, commit: CommitRun) -> None:
    """Make rows visible, and wait until every query is done with them."""
    before = [batches_of(query) for query in running]
    step(running[0], lambda: client.commit(commit, deadline_ms=120_000))
    for query, done in zip(running[1:], before[1:], strict=True):
        while batches_of(query) == done:
            error = query.exception()
            if error is not None:
                raise error
            time.sleep(0.02)


def _staged(client: Client, ledger: str, number: int, version: int) -> CommitRun:
    with client.stage_part(ledger, number) as part:
        for at in range(number * BATCH_ENTRIES, (number + 1) * BATCH_ENTRIES):
            part.write(entry(at, ROW_BYTES, version, txn=(1, number)), entry_rows(ROW_BYTES))
        return CommitRun(ledger, ledger, number, 1, number, [part.close()])


def main() -> None:
    """Compare eight queries with one."""
    with tempfile.TemporaryDirectory(dir=bench_dir()) as temporary:
        folder = Path(temporary)
        client, serial = connect(folder / "store", create=True).client, count()
        spark = session()
        try:
            eight = tailing(spark, client, folder / "store", folder, serial, QUERIES)
            one = tailing(spark, client, folder / "store", folder, serial, 1)
            compare("cache_tail", eight, one)
            counted = client.call("cache", Empty())
            print(f"  {counted.misses:,} entries were read from storage, {counted.hits:,} from the cache")
        finally:
            spark.stop()
            client.call("shutdown", Empty())


if __name__ == "__main__":
    main()
