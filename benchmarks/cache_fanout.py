"""Bytes from object storage per byte of the backlog, while eight queries catch up on ten times the cache's size.

One session runs all queries, from the earliest position into noop, 16 MiB per micro-batch. Their starts are spread
over 30 % of the time that a single query takes. One query polls so rarely that it alone takes twice as long. A proxy
before the S3 server counts the served bytes, including headers, index objects and retries. The ratio is these bytes
divided by the bytes of the backlog. Lower is better. The minimum is 1: each byte is read once for all queries.

The ratio is measured without throttling, and then with throttling: the leading query waits for the other queries. The
time of each query in both runs shows the cost of throttling. Each ratio is one run, not a median.

    CACHE_FANOUT_MB=640     size of the backlog
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from benchmarks.counting_proxy import ROOT, CountingProxy
from benchmarks.raw_disk import bench_dir
from benchmarks.rows import ENTRY_BYTES, entry
from benchmarks.rows import SCHEMA as ROWS
from benchmarks.spark_queries import rows_read, session
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.message.columns import schema_bytes
from pyspark_ledger.ledger.protocol.actions import ChangeSetting, CreateLedger, DescribeLedger, RegisterSchema
from pyspark_ledger.ledger.protocol.cache import AskCache
from streaming_examples.s3_server import CREDENTIALS, S3Server

QUERIES = 8
SPREAD = 0.3
BATCH_BYTES = 16 * 1024 * 1024
LEDGER = "backlog"
_MB = 1024 * 1024
_SEGMENT_BYTES = 128 * _MB
_ROW_BYTES = 1024
_FILL_SECONDS, _WAIT_SECONDS = 120.0, 240.0


@dataclass(frozen=True)
class OffloadedBacklog:
    """Store, its offloaded bytes, and the counting proxy."""

    store: LedgerStore
    path: Path
    size_bytes: int
    entries: int
    cache_bytes: int
    proxy: CountingProxy


@contextmanager
def offloaded_backlog(total_bytes: int) -> Iterator[OffloadedBacklog]:
    """Yield a backlog of `total_bytes` that is only in object storage, and a broker whose cache is a tenth of it."""
    directory = Path(tempfile.mkdtemp(prefix="backlog-", dir=bench_dir()))
    cache_mb = total_bytes // 10 // _MB
    windows_mb = 2
    try:
        os.environ.update(CREDENTIALS)  # the broker inherits them
        with S3Server.start(directory / "s3") as server:
            target = urlsplit(server.endpoint)
            with CountingProxy(target.hostname or "", target.port or 0) as proxy:
                server.make_bucket("bench")
                with _broker(directory, cache_mb - windows_mb, windows_mb) as store:
                    store.offload_to("s3://bench", endpoint=f"http://127.0.0.1:{proxy.port}")
                    entries = total_bytes // ENTRY_BYTES
                    size = _filled(store, directory / "store", entries)
                    yield OffloadedBacklog(store, directory / "store", size, entries, cache_mb * _MB, proxy)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _broker(directory: Path, cache_mb: int, windows_mb: int) -> Iterator[LedgerStore]:
    config = directory / "broker.toml"
    config.write_text(
        f"managedLedgerCacheSizeMB = {cache_mb}\nmanagedLedgerOffloadReadCacheSizeMB = {windows_mb}\n"
        f"managedLedgerOffloadReadBufferSizeInBytes = {_MB}\nmanagedLedgerOffloadDeletionLagMs = 0\n"
    )
    command = [
        sys.executable, "-m", "pyspark_ledger.offload.broker",
        "--store", str(directory / "store"), "--create", "--config", str(config), "--idle", "0",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (directory / "broker.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        until = time.monotonic() + _FILL_SECONDS
        while not (directory / "store" / "broker.json").exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((directory / "broker.log").read_text()[-2000:])
            time.sleep(0.05)
        yield connect(directory / "store")
    finally:
        process.terminate()
        process.wait(30)


def _filled(store: LedgerStore, path: Path, entries: int) -> int:
    """Write the backlog, offload it, and delete local copies. Return the bytes that readers get."""
    client = store.client
    client.ask(CreateLedger(LEDGER, max_size_per_ledger_bytes=_SEGMENT_BYTES))
    version = client.ask(RegisterSchema(LEDGER, schema_bytes(ROWS))).version
    with client.producer(LEDGER) as producer:
        for number in range(entries):
            producer.append(*entry(number, _ROW_BYTES, version))
    ledger = store.ledger(LEDGER)
    ledger.offload(seal=True)
    until = time.monotonic() + _FILL_SECONDS
    while ledger.trim().local or any((path / "ledgers").glob("*.ledger")):
        if time.monotonic() > until:
            raise TimeoutError(str(ledger.offload_status()))
        time.sleep(0.1)
    client.ask(AskCache())
    return sum(segment.size_bytes for segment in client.ask(DescribeLedger(LEDGER)).segments)


@dataclass(frozen=True)
class Query:
    """Query of a run: its start, and the interval of its batches. 0: no interval."""

    start: float
    every: float = 0.0


@dataclass(frozen=True)
class Run:
    """Result of a run: the seconds of each query, and the bytes that storage served."""

    seconds: tuple[float, ...]
    served: int


def caught_up(spark: SparkSession, backlog: OffloadedBacklog, query: Query, checkpoint: Path, rows: int) -> float:
    """Run one query until it has read everything, and return its seconds."""
    frame = spark.readStream.format("ledger").option("store", str(backlog.path))
    frame = frame.option("startingPosition", "earliest").option("maxBytesPerTrigger", BATCH_BYTES)
    writer = frame.option("minPartitionBytes", BATCH_BYTES).load(LEDGER).writeStream.format("noop")
    began = time.monotonic()
    running = (
        writer.option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=f"{round(query.every * 1000)} milliseconds")
        .start()
    )
    try:
        while rows_read(running) < rows:
            error = running.exception()
            if error is not None:
                raise error
            if time.monotonic() > began + _WAIT_SECONDS:
                raise TimeoutError(f"{rows_read(running)} of {rows} rows after {_WAIT_SECONDS} s: {running.status}")
            time.sleep(0.1)
        return time.monotonic() - began
    finally:
        running.stop()


def run(spark: SparkSession, backlog: OffloadedBacklog, queries: Sequence[Query], *, paced: bool = True) -> Run:
    """Run queries against an empty cache."""
    client = backlog.store.client
    client.ask(ChangeSetting("managedLedgerCacheSizeMB", 0))
    client.ask(ChangeSetting("managedLedgerCacheSizeMB"))
    client.ask(ChangeSetting("managedLedgerCachePacingPercent", None if paced else 0))
    rows = client.ask(DescribeLedger(LEDGER)).rows
    took = [0.0] * len(queries)
    folder = Path(tempfile.mkdtemp(prefix="fanout-", dir=bench_dir()))
    began, before = time.monotonic(), backlog.proxy.served()

    def one(number: int) -> None:
        time.sleep(max(began + queries[number].start - time.monotonic(), 0))
        took[number] = caught_up(spark, backlog, queries[number], folder / str(number), rows)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(queries))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shutil.rmtree(folder, ignore_errors=True)
    if not all(took):
        message = f"not all queries came to their end: {took}"
        raise RuntimeError(message)
    return Run(tuple(took), backlog.proxy.served() - before)


def main() -> None:
    """Measure one query alone, then eight without throttling and with throttling."""
    total = int(os.environ.get("CACHE_FANOUT_MB", "640")) * _MB
    with offloaded_backlog(total) as backlog:
        spark = session()
        try:
            run(spark, backlog, [Query(0.0)])  # starts Python workers
            (alone,) = run(spark, backlog, [Query(0.0)]).seconds
            every = 2.1 * alone / (total / BATCH_BYTES)
            (slow,) = run(spark, backlog, [Query(0.0, every)]).seconds
            starts = [number * SPREAD * alone / (QUERIES - 1) for number in range(QUERIES)]
            queries = [Query(start, every if number == 3 else 0.0) for number, start in enumerate(starts)]
            print(
                f"\n{total / _MB:.0f} MiB, cache {backlog.cache_bytes / _MB:.0f} MiB; one alone {alone:.1f} s, ", end=""
            )
            print(f"the slow one {slow:.1f} s; starts over {starts[-1]:.1f} s", flush=True)
            off = run(spark, backlog, queries, paced=False)
            _show("off", off, backlog.size_bytes)
            on = run(spark, backlog, queries)
            _show("on", on, backlog.size_bytes)
            counted = backlog.store.client.ask(AskCache())
        finally:
            spark.stop()
    print(f"  {counted.hits:,} entries from the cache, {counted.misses:,} from storage since the start")
    longest = max(with_it / without for with_it, without in zip(on.seconds, off.seconds, strict=True))
    print(f"ratio cache_fanout_unpaced {off.served / backlog.size_bytes:.3f}")
    print(f"ratio cache_fanout_longest {longest:.3f}")
    print(f"ratio cache_fanout {on.served / backlog.size_bytes:.3f}", flush=True)


def _show(name: str, one: Run, size: int) -> None:
    each = " ".join(f"{took:.1f}" for took in one.seconds)
    print(f"  pacing {name:>3}: {one.served / size:.3f} reads, seconds of each {each}", flush=True)


if __name__ == "__main__":
    main()
