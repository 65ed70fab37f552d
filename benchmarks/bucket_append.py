"""Appends to a store in a bucket, against bare puts of the same bytes, once as log and once as segments.

The store acknowledges entries of 64 KiB and uploads the sealed segments meanwhile, as the broker does. The time ends
when all entries are acknowledged and all segments are uploaded. The base is boto3 with as many requests in flight. It
puts the bytes twice in objects of 8 MiB, once as the log and once as the uploads. The server runs on the same cores.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from benchmarks.bucket_store import OBJECT_BYTES, append_all, bucket_bench, entries, ledger, put_all
from benchmarks.harness import compare
from pyspark_ledger.ledger.clock import pause
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix

TOTAL_BYTES = 384 * 1024 * 1024
SEGMENT_BYTES = 32 * 1024 * 1024
WINDOW, UPLOADS = 8, 2


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
            log = ledger(opened, name, SEGMENT_BYTES)
            append_all(log, batch)
            log.roll_over()
            while opened.store.offloads.status(name).offloaded < len(log.snapshot.segments):
                with suppress(Refused):  # an offload is under way
                    opened.store.offloads.offload(OffloadPrefix(name, None))
                pause(5)

        def base() -> None:
            with ThreadPoolExecutor(1) as beside:
                uploads = beside.submit(put_all, bench, bodies, UPLOADS)
                put_all(bench, bodies, WINDOW)
                uploads.result()

        compare("bucket_append", ours, base, work_bytes=TOTAL_BYTES)


if __name__ == "__main__":
    main()
