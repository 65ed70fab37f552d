"""Rows per second of `format("ledger")` against a Python Arrow source that yields one prebuilt batch.

The base is the upper bound of any connector in Python. Both sides write to noop, with the same number of tasks and
workers behind Unix sockets. The ledger's source reads distinct rows and verifies every CRC. The base yields 10k or 64k
rows at a time, whichever is faster on this machine.

Catch-up: `AvailableNow` over a backlog that does not grow, in batches of half a GiB. A round repeats the query until
five seconds are counted. Tail: a running query that waits for rows. Half a GiB of rows becomes visible to it in one
step, ten times. The first batch of a query does not count.

The result is the lowest ratio of catch-up and tail with rows of 120 bytes and of 1 KiB. `READ_CASES` selects cases, and
`READ_TAIL` sets the batches of a tail round.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.harness import ROUNDS_MIN, Loop, compare
from benchmarks.raw_disk import bench_dir
from benchmarks.repeated_rows import BareServer, allow
from benchmarks.rows import ENTRY_BYTES, ROW_BYTES, create, entry, entry_rows, fill
from benchmarks.spark_queries import Took, drained, session, start, step, took
from pyspark_ledger.connector.read.offsets import LedgerRange
from pyspark_ledger.connector.read.task_split import SizedRange, plan_tasks
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import DeleteLedger, DescribeLedger, StopBroker
from pyspark_ledger.ledger.protocol.commits import CommitRun
from pyspark_ledger.ledger.protocol.reads import SplitRanges, SplitRequest

MIB = 1024 * 1024
BATCH_ENTRIES = 512 * MIB // ENTRY_BYTES
CATCH_UP_BATCHES = 6
TAIL_BATCHES_WHOLE = 10
TAIL_BATCHES = int(os.environ.get("READ_TAIL", TAIL_BATCHES_WHOLE))
ROUND_SECONDS = 5.0
_SERVER_SECONDS = 20.0
BASE_ROWS = (10_000, 64_000)
ALL_CASES = ("catch_up_120B", "catch_up_1KiB", "tail_120B", "tail_1KiB")
CASES = os.environ.get("READ_CASES", ",".join(ALL_CASES)).split(",")


@dataclass
class Bench:
    """Shared state of the cases."""

    spark: SparkSession
    client: Client
    store: Path
    folder: Path
    mapping: str
    server: str
    serial: Iterator[int]

    def ours(self, ledger: str) -> DataFrame:
        """Return a stream of a ledger from its start."""
        rows = BATCH_ENTRIES * entry_rows(ROW_BYTES[ledger.rpartition("_")[2]])
        reader = self.spark.readStream.format("ledger").option("store", str(self.store))
        reader = reader.option("startingPosition", "earliest").option("maxRowsPerTrigger", rows)
        return reader.option("mapping", self.mapping).load(ledger)

    def base(self, row_bytes: int, batch_rows: int, tasks: int, allowed: Path) -> DataFrame:
        """Return a stream of the repeating source, with the same rows and tasks in each batch."""
        options = {
            "rows": BATCH_ENTRIES * entry_rows(row_bytes),
            "tasks": tasks,
            "batchRows": batch_rows,
            "rowBytes": row_bytes,
            "allowed": str(allowed),
            "server": self.server,
        }
        return self.spark.readStream.format("repeated").options(**options).load()

    def fresh(self) -> Path:
        """Return an unused path."""
        return self.folder / f"{next(self.serial)}"

    def tasks(self, ledger: str) -> int:
        """Return the number of partitions of the first batch, by the connector's own planning."""
        described = self.client.ask(DescribeLedger(ledger))
        begin = described.segments[0].ledger_id
        first = PositionRange(Position(begin, 0), Position(begin, BATCH_ENTRIES))
        (whole,) = self.client.ask(SplitRequest(ledger, first, 2**62, 1)).parts
        batch = SizedRange(LedgerRange(ledger, described.incarnation, first), whole.entries, whole.size_bytes)
        planned = plan_tasks(
            [batch],
            8 * MIB,
            64 * MIB,
            lambda requests: [cut.parts for cut in self.client.ask(SplitRanges(list(requests))).ranges],
        )
        return len(planned)


def seconds_per_batch(measured: Took) -> float:
    """Return the seconds for the rows of one batch."""
    return sum(measured.seconds) / len(measured.seconds)


def repeated(once: Callable[[], Took], times: int) -> Loop:
    """Return a loop that repeats the query, and returns seconds per batch."""

    def loop() -> float:
        done = [once() for _ in range(times)]
        return seconds_per_batch(Took(sum(t.rows for t in done), tuple(s for t in done for s in t.seconds)))

    return loop


def catch_up(bench: Bench, kind: str) -> float:
    """Return the ratio of `AvailableNow` over a backlog."""
    ledger, row_bytes = f"catch_up_{kind}", ROW_BYTES[kind]
    name = canonical_name(ledger)
    fill(bench.client, name, BATCH_ENTRIES * CATCH_UP_BATCHES, row_bytes)
    tasks, allowed = bench.tasks(name), bench.fresh()
    allow(allowed, CATCH_UP_BATCHES)

    def ours() -> Took:
        return drained(start(bench.ours(ledger), bench.fresh(), available_now=True))

    def base(rows: int) -> Took:
        return drained(start(bench.base(row_bytes, rows, tasks, allowed), bench.fresh(), available_now=True))

    best = min(BASE_ROWS, key=lambda rows: seconds_per_batch(base(rows)))
    first = ours()
    times = max(1, math.ceil(ROUND_SECONDS / sum(first.seconds)))
    _tell(kind, tasks, best, first)
    ratio = compare(
        f"{_prefix(bench)}_catch_up_{kind}",
        repeated(ours, times),
        repeated(lambda: base(best), times),
        rounds=ROUNDS_MIN,
        work_bytes=BATCH_ENTRIES * ENTRY_BYTES,
    ).ratio
    bench.client.ask(DeleteLedger(name))
    return ratio


def tail(bench: Bench, kind: str) -> float:
    """Return the ratio of batches that are released to an idle query, one at a time."""
    row_bytes = ROW_BYTES[kind]
    tasks = 0

    def ours() -> Took:
        nonlocal tasks
        ledger = f"tail{next(bench.serial)}_{kind}"
        name = canonical_name(ledger)
        version = create(bench.client, name)
        query = start(bench.ours(ledger), bench.fresh(), available_now=False)
        try:
            for number in range(TAIL_BATCHES + 1):
                run = _staged(bench.client, name, number, row_bytes, version)
                step(query, lambda run=run: bench.client.ask(run, deadline_ms=120_000))
            tasks = tasks or bench.tasks(name)
            return took(query)
        finally:
            query.stop()
            bench.client.ask(DeleteLedger(name))

    def base(rows: int) -> Took:
        allowed = bench.fresh()
        allow(allowed, 0)
        query = start(bench.base(row_bytes, rows, tasks, allowed), bench.fresh(), available_now=False)
        try:
            for number in range(TAIL_BATCHES + 1):
                step(query, lambda number=number: allow(allowed, number + 1))
            return took(query)
        finally:
            query.stop()

    first = ours()
    best = min(BASE_ROWS, key=lambda rows: seconds_per_batch(base(rows)))
    _tell(kind, tasks, best, first)
    return compare(
        f"{_prefix(bench)}_tail_{kind}",
        repeated(ours, 1),
        repeated(lambda: base(best), 1),
        rounds=ROUNDS_MIN,
        work_bytes=BATCH_ENTRIES * ENTRY_BYTES,
    ).ratio


def _staged(client: Client, ledger: str, number: int, row_bytes: int, version: int) -> CommitRun:
    """Write half a GiB of rows to the disk. Return the request that makes them visible."""
    with client.stage_part(ledger, number) as part:
        for at in range(number * BATCH_ENTRIES, (number + 1) * BATCH_ENTRIES):
            part.write(entry(at, row_bytes, version, txn=(1, number)), entry_rows(row_bytes))
        return CommitRun(ledger, ledger, number, 1, number, [part.close()])


def _tell(kind: str, tasks: int, best: int, first: Took) -> None:
    counted, seconds = first.rows / 1e6, sum(first.seconds)
    print(
        f"{kind}: {tasks} tasks, base yields {best} rows at a time, ours counts {counted:.1f} M rows in {seconds:.2f} s"
    )


def _prefix(bench: Bench) -> str:
    return "stream_read_flight" if bench.server else "stream_read"


@contextmanager
def prepared(*, mapping: str, with_server: bool) -> Iterator[Bench]:
    """Yield a session, a store with its broker and, if requested, the bare server."""
    with tempfile.TemporaryDirectory(dir=bench_dir(), ignore_cleanup_errors=True) as text:
        folder = Path(text).resolve()  # the address of a socket must be absolute
        client = connect(folder / "store").client
        server = None
        try:
            spark = session()
            if with_server:
                server = _ServerProcess(folder / "bare.sock")
            address = server.address if server else ""
            yield Bench(spark, client, folder / "store", folder, mapping, address, count())
            spark.stop()
        finally:
            if server is not None:
                server.stop()
            client.ask(StopBroker())
            time.sleep(1)


class _ServerProcess:
    """The bare Flight server in a process of its own."""

    def __init__(self, path: Path) -> None:
        self.address = f"grpc+unix://{path}"
        self._process = subprocess.Popen([sys.executable, "-m", "benchmarks.stream_read", self.address])
        until = time.monotonic() + _SERVER_SECONDS
        while not path.exists():
            if self._process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise TimeoutError(f"the bare server does not listen at {path}")
            time.sleep(0.05)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def report(name: str, *, mapping: str, with_server: bool) -> None:
    """Measure the cases. The last line is the lowest ratio, marked if cases or rounds were reduced."""
    ratios = []
    with prepared(mapping=mapping, with_server=with_server) as bench:
        for case in CASES:
            how, _, kind = case.rpartition("_")
            ratios.append((catch_up if how == "catch_up" else tail)(bench, kind))
    whole = set(CASES) == set(ALL_CASES) and TAIL_BATCHES >= TAIL_BATCHES_WHOLE
    print(f"ratio {name if whole else name + '_in_part'} {min(ratios):.3f}")


def main() -> None:
    """Compare mapped reads with the source in memory."""
    report("stream_read", mapping="auto", with_server=False)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BareServer(sys.argv[1]).serve()
    main()
