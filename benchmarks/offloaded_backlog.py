"""Backlog that is only in object storage: a store whose broker reads an S3 server through a proxy that counts bytes.

The store has a broker of its own, whose cache is a tenth of the backlog, including prefetched ranges. The segments are
sealed and offloaded, and their local files are deleted. So the broker reads from object storage or from its cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.counting_proxy import ROOT, CountingProxy
from benchmarks.raw_disk import bench_dir
from benchmarks.rows import ENTRY_BYTES, entry
from benchmarks.rows import SCHEMA as ROWS
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.message.columns import schema_bytes
from pyspark_ledger.ledger.protocol.actions import CreateLedger, Empty
from streaming_examples.s3_server import CREDENTIALS, S3Server

LEDGER = "backlog"
_MB = 1024 * 1024
_SEGMENT_BYTES = 128 * _MB
_ROW_BYTES = 1024
_WAIT_SECONDS = 120.0


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
def offloaded_backlog(total_bytes: int, cache_bytes: int = 0) -> Iterator[OffloadedBacklog]:
    """Yield a backlog of `total_bytes` in objects. By default, the cache is a tenth of it."""
    directory = Path(tempfile.mkdtemp(prefix="backlog-", dir=bench_dir()))
    cache_mb = (cache_bytes or total_bytes // 10) // _MB
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
        sys.executable, "-m", "pyspark_ledger.ledger.broker.main",
        "--store", str(directory / "store"), "--create", "--config", str(config), "--idle", "0",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (directory / "broker.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        until = time.monotonic() + _WAIT_SECONDS
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
    client.create(CreateLedger(LEDGER, max_size_per_ledger_bytes=_SEGMENT_BYTES))
    version = client.register_schema(LEDGER, schema_bytes(ROWS)).version
    with client.producer(LEDGER) as producer:
        for number in range(entries):
            producer.append(*entry(number, _ROW_BYTES, version))
    ledger = store.ledger(LEDGER)
    ledger.offload(seal=True)
    until = time.monotonic() + _WAIT_SECONDS
    while ledger.trim().local or any((path / "ledgers").glob("*.ledger")):
        if time.monotonic() > until:
            raise TimeoutError(str(ledger.offload_status()))
        time.sleep(0.1)
    client.call("cache", Empty())
    return sum(segment.size_bytes for segment in client.describe(LEDGER).segments)
