"""Take-over of a store in a bucket by a broker with an empty disk: seconds to the first answer.

The store has 1,000 ledgers with open segments, together 1 GiB, which is only in the log. Old objects of the log were
deleted before, as the broker does it after every 1,000 objects. The last line is the median of the seconds, not a
ratio. The server runs on the same cores.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.bucket_store import append_all, bucket_bench, entries, ledger

LEDGERS, ENTRIES = 1_000, 16
ROUNDS = 3


def main() -> None:
    """Print each take-over and the median."""
    batch = entries(ENTRIES)
    with bucket_bench() as bench:
        with bench.open("live") as opened:
            for number in range(LEDGERS):
                append_all(ledger(opened, f"log{number}"), batch)
            opened.collector.collect()
        taken = []
        for number in range(ROUNDS):
            start = time.perf_counter()
            with bench.open("live") as opened:
                end = opened.store.snapshot(f"log{number}").end
                taken.append(time.perf_counter() - start)
            print(f"  {taken[-1]:.2f} s to the first answer, {end}", flush=True)
    print(f"ratio bucket_takeover {statistics.median(taken):.3f}", flush=True)


if __name__ == "__main__":
    main()
