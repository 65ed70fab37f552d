"""Store in a bucket for benchmarks: a SeaweedFS on this host, a broker's store in this process, bare requests."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.append import entry_of
from benchmarks.raw_disk import bench_dir
from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.broker.bucket_home import limits_of, settings_of
from pyspark_ledger.ledger.bucket_store.creation import found_or_created
from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.objects.from_settings import home_bucket
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.tiering.offloader_choice import OffloaderChoice
from pyspark_ledger.offload.offloader import offloader_of
from streaming_examples.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

ENTRY_BYTES = 64 * 1024
OBJECT_BYTES = 8 * 1024 * 1024
BUCKET = "bench"


class BucketBench:
    """Server with one bucket. `open` opens a store in a new prefix, or the store of a prefix again."""

    def __init__(self, directory: Path, server: S3Server) -> None:
        self.directory = directory
        self.server = server
        self.client: Any = server.options.client(f"s3://{BUCKET}")

    @contextmanager
    def open(self, prefix: str = "", **values: Any) -> Iterator[BucketStore]:
        """Yield an open store whose segments are uploaded when they are sealed."""
        address = f"s3://{BUCKET}/{prefix or uuid.uuid4()}"
        settings = settings_of(Settings.of({**_ACCESS, **values}), address)
        settings = replace(settings, managedLedgerOffloadServiceEndpoint=self.server.endpoint)
        bucket, limits = home_bucket(settings), limits_of(settings)
        found = found_or_created(
            bucket, system_clock_ms, limits.requests, create=True, window=limits.window, probe=lambda _: None
        )
        directory = self.directory / str(uuid.uuid4())
        offloader = OffloaderChoice(offloader_of, settings)
        opened = BucketStore(
            bucket, directory, found, system_clock_ms, limits, _stop, settings=settings, offloader=offloader
        )
        try:
            yield opened
        finally:
            opened.close()
            shutil.rmtree(directory, ignore_errors=True)

    def put(self, data: bytes) -> None:
        """Put one object at a new key, on condition that the key is free."""
        self.client.put_object(Bucket=BUCKET, Key=f"bare/{uuid.uuid4()}", Body=data, IfNoneMatch="*")


# The offload settings name the credentials by reference, as a user does.
_ACCESS = {
    "managedLedgerOffloadCredentialProvider": "streaming_examples.s3_server:credentials",
    "managedLedgerOffloadRegion": "us-east-1",
}
assert ACCESS_KEY  # noqa: S101 — the provider answers with these
assert SECRET_KEY  # noqa: S101 — as above


@contextmanager
def bucket_bench() -> Iterator[BucketBench]:
    """Yield a running server with an empty bucket. Files are not synced, as in the broker of such a store."""
    disk.skip_syncs()
    directory = Path(tempfile.mkdtemp(prefix="bucket-", dir=bench_dir()))
    try:
        with S3Server.start(directory / "s3") as server:
            server.make_bucket(BUCKET)
            yield BucketBench(directory, server)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def entries(count: int) -> list[bytes]:
    """Return entries of 64 KiB of random bytes."""
    dice = np.random.default_rng(1)
    return [b"".join(bytes(part) for part in entry_of(dice.bytes(ENTRY_BYTES - 64), 7)) for _ in range(count)]


def ledger(opened: BucketStore, name: str, segment_bytes: int = 0) -> ManagedLedger:
    """Return a new ledger whose segments have about `segment_bytes`, 0 for the default."""
    most = segment_bytes // ENTRY_BYTES
    return opened.store.create_ledger(CreateLedger(name, max_entries_per_ledger=most))


def append_all(log: ManagedLedger, batch: list[bytes], in_flight: int = 512) -> None:
    """Append entries one by one, with a limited number in flight, and wait for all."""
    waiting: list[Future[Position]] = []
    for entry in batch:
        waiting.append(log.append([entry]))
        if len(waiting) >= in_flight:
            waiting.pop(0).result()
    for future in waiting:
        future.result()


def put_all(bench: BucketBench, bodies: list[bytes], in_flight: int) -> None:
    """Put objects, `in_flight` at once, with boto3 alone."""
    with ThreadPoolExecutor(in_flight) as pool:
        list(pool.map(bench.put, bodies))


def _stop(error: Exception) -> None:
    message = f"the log of the benchmark's store ended: {error}"
    raise SystemExit(message)
