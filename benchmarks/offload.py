"""Offload of a sealed segment of 1 GiB, against a bare multipart upload of the same bytes.

Ours offloads the segment as the broker does. It compares the segment with its record and verifies every checksum. It
uploads the blocks, the entry index and the block index, and compares the uploaded objects with the segment. The base is
boto3 with the same number of threads. It uploads parts of the same size from the same file and verifies nothing. Both
use the same SeaweedFS on this host, and the same settings of boto3. The objects are deleted between rounds, untimed.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.append import entry_of
from benchmarks.harness import compare
from benchmarks.raw_disk import bench_dir
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.metadata.offload_records import Driver, OffloadAttempt
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from pyspark_ledger.ledger.tiering.offloader import LocalSegment
from pyspark_ledger.offload.offloader import ObjectStoreOffloader
from streaming_examples.s3_server import S3Server

TOTAL_BYTES = 1024 * 1024 * 1024
ENTRY_BYTES = 1024 * 1024
BLOCK_BYTES = 64 * 1024 * 1024
THREADS = 2
BUCKET = "bench"
EXTRA = {"ManagedLedgerName": canonical_name("bench"), "pulsarClusterName": "bench"}
_SETTINGS = Settings(managedLedgerMaxEntriesPerLedger=2**31 - 1, managedLedgerMaxSizePerLedgerMbytes=4096)


def sealed_ledger(directory: Path) -> LocalSegment:
    """Return a sealed segment of 1 GiB in a new store."""
    store = Store.open(directory, settings=_SETTINGS, clock=system_clock_ms, create=True)
    log = store.create_ledger(CreateLedger("bench", block_bytes=BLOCK_BYTES))
    dice = np.random.default_rng(1)
    for _ in range(TOTAL_BYTES // ENTRY_BYTES // 8):
        payload = dice.bytes(ENTRY_BYTES - 64)
        entry = b"".join(bytes(part) for part in entry_of(payload, 7))
        log.append([entry] * 8).result()
    log.roll_over()
    local = log.prepare_offload(log.snapshot.segments[0].ledger_id, OffloadAttempt(uuid.uuid4(), Driver("bench")))
    if local is None:
        message = "a ledger that was just sealed is offloaded already"
        raise RuntimeError(message)
    store.close()
    return local


@contextmanager
def bucket_and_ledger() -> Iterator[tuple[S3Server, LocalSegment]]:
    """Yield a server with an empty bucket, and the segment."""
    directory = Path(tempfile.mkdtemp(prefix="offload-", dir=bench_dir()))
    try:
        with S3Server.start(directory / "s3") as server:
            server.make_bucket(BUCKET)
            yield server, sealed_ledger(directory / "store")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def bare_upload(client: Any, path: Path, size: int, key: str) -> None:
    """Upload the same bytes in the same parts with the same number of threads, with boto3 alone."""
    upload = client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]

    def put(number: int) -> dict[str, object]:
        with path.open("rb") as file:
            file.seek((number - 1) * BLOCK_BYTES)
            body = file.read(BLOCK_BYTES)
        answer = client.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=number, Body=body)
        return {"PartNumber": number, "ETag": answer["ETag"]}

    with ThreadPoolExecutor(THREADS) as pool:
        parts = list(pool.map(put, range(1, -(-size // BLOCK_BYTES) + 1)))
    client.complete_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload, MultipartUpload={"Parts": parts})


def main() -> None:
    """Compare both uploads in turns."""
    with bucket_and_ledger() as (server, local):
        copies = ObjectStoreOffloader(f"s3://{BUCKET}", server.options, upload_threads=THREADS)
        client = server.client()

        def ours() -> float:
            attempt, start = uuid.uuid4(), time.perf_counter()
            copies.offload(local, attempt, EXTRA)
            seconds = time.perf_counter() - start
            copies.delete_offloaded(local.ledger_id, attempt, copies.driver)
            return seconds

        def base() -> float:
            key, start = str(uuid.uuid4()), time.perf_counter()
            bare_upload(client, local.path, local.file_bytes, key)
            seconds = time.perf_counter() - start
            client.delete_object(Bucket=BUCKET, Key=key)
            return seconds

        compare("offload", ours, base, work_bytes=local.file_bytes)
        copies.close()


if __name__ == "__main__":
    main()
