"""Latency of a lone append to a store in a bucket, against a bare put and a read of a small object.

A single client appends 1 KiB and waits. The broker puts an object, on the condition that the name is unused. Before it
acknowledges the append, it reads the store's manifest, the object that names the store's broker. The base makes two
requests of the same sizes.
Both numbers are medians of a round. The ratio is of times.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.append import entry_of
from benchmarks.bucket_store import BUCKET, bucket_bench, ledger
from benchmarks.harness import compare
from pyspark_ledger.ledger.wal.bucket import MANIFEST

APPENDS = 40


def main() -> None:
    """Compare in turns."""
    entry = b"".join(bytes(part) for part in entry_of(bytes(1024), 7))
    with bucket_bench() as bench, bench.open("ack") as opened:
        log = ledger(opened, "log")

        def ours() -> float:
            return _median_of(lambda: log.append([entry]).result())

        def base() -> float:
            def put_and_look() -> None:
                bench.put(entry)
                bench.client.get_object(Bucket=BUCKET, Key=f"ack/{MANIFEST}")["Body"].read()

            return _median_of(put_and_look)

        compare("bucket_ack", ours, base, rounds=9, of_time=True)


def _median_of(call: object) -> float:
    taken = []
    for _ in range(APPENDS):
        start = time.perf_counter()
        call()  # type: ignore[operator]
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
