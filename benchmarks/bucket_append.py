"""Appends to a store in a bucket, against bare puts of the same bytes, once as log and once as segments.

Ours acknowledges entries of 64 KiB and uploads the sealed segments meanwhile, as the broker does. The time ends when
all entries are acknowledged and all segments are uploaded. The base is boto3, which puts the bytes twice in
objects of 8 MiB. As on our side, up to 8 puts for the log and 2 for the segments are in flight. The server runs on the
same cores.

The floor is the base that also writes the entries to a local file, and reads the bytes of each put from this file.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

from benchmarks.bucket_store import OBJECT_BYTES, BucketBench, append_all, bucket_bench, entries, ledger, put_all
from benchmarks.harness import compare_with_floor
from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.clock import pause
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix

TOTAL_BYTES = 192 * 1024 * 1024  # a run of three sides fills 10 GB of the disk
SEGMENT_BYTES = 32 * 1024 * 1024
WINDOW, UPLOADS = 8, 2
_POLL_MS = 20


def main() -> None:
    """Compare in turns."""
    batch = entries(TOTAL_BYTES // (64 * 1024))
    body = b"".join(batch[: OBJECT_BYTES // (64 * 1024)])
    bodies = [body] * (TOTAL_BYTES // OBJECT_BYTES)
    with bucket_bench() as bench, bench.open() as opened:
        opened.store.upkeep.start()
        opened.store.offloads.start()
        opened.collector.start()
        numbers = iter(range(1_000))

        def ours() -> None:
            name = f"log{next(numbers)}"
            log, offloads = ledger(opened, name, SEGMENT_BYTES), opened.store.offloads
            before = offloads.metrics().segments
            append_all(log, batch)
            log.roll_over()
            while (now := offloads.metrics()).segments - before < len(log.snapshot.segments):
                if not (now.running or now.waiting):
                    with suppress(Refused):  # an offload has begun meanwhile
                        offloads.offload(OffloadPrefix(name, None))
                pause(_POLL_MS)

        def base() -> None:
            with ThreadPoolExecutor(1) as beside:
                uploads = beside.submit(put_all, bench, bodies, UPLOADS)
                put_all(bench, bodies, WINDOW)
                uploads.result()

        compare_with_floor("bucket_append", ours, base, lambda: put_from_file(bench, batch))


def put_from_file(bench: BucketBench, batch: list[bytes]) -> None:
    """Write entries to a local file, and put each object twice from the file, with as many requests as the base."""
    path, step = bench.directory / "floor", OBJECT_BYTES // len(batch[0])
    with closing(os.fdopen(disk.create_file(path), "r+b")) as file:
        fd = file.fileno()

        def put(start: int, length: int) -> None:
            bench.put(disk.read_exact(fd, length, start))

        with ThreadPoolExecutor(UPLOADS) as beside, ThreadPoolExecutor(WINDOW) as log:
            at, puts = 0, []
            for first in range(0, len(batch), step):
                length = disk.write_all(fd, batch[first : first + step], at)
                puts += [pool.submit(put, at, length) for pool in (log, beside)]
                at += length
            for done in puts:
                done.result()
    path.unlink()


if __name__ == "__main__":
    main()
