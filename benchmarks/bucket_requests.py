"""Puts of a store in a bucket under 100 clients, against the number that the flush interval allows.

Each client appends 120 bytes and waits, again and again. The broker collects the appends of one flush interval in one
object. So the base is one put in each flush interval. The line before the last has the requests of an idle store in
forty seconds, which should be 2. The store puts one object that states the end of the log, and reads the manifest once.
"""

from __future__ import annotations

import threading
import time

from benchmarks.append import entry_of
from benchmarks.bucket_store import bucket_bench, ledger
from pyspark_ledger.ledger.metrics.counters import OBJECT_REQUESTS

CLIENTS, SECONDS, INTERVAL_MS, IDLE_SECONDS = 100, 10.0, 100, 38.0


def main() -> None:
    """Print both numbers."""
    entry = b"".join(bytes(part) for part in entry_of(bytes(120), 7))
    with bucket_bench() as bench, bench.open(bucketFlushIntervalMs=INTERVAL_MS) as opened:
        opened.collector.start()
        logs = [ledger(opened, f"log{number}") for number in range(CLIENTS)]
        for log in logs:
            log.append([entry]).result()
        until, appended = time.perf_counter() + SECONDS, [0] * CLIENTS

        def client(number: int) -> None:
            while time.perf_counter() < until:
                logs[number].append([entry]).result()
                appended[number] += 1

        before, threads = opened.wal.end, [threading.Thread(target=client, args=(at,)) for at in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        puts = opened.wal.end - before
        print(f"  {sum(appended) / SECONDS:.0f} appends/s in {puts / SECONDS:.1f} puts/s", flush=True)
        time.sleep(2)
        before_requests = _requests()
        time.sleep(IDLE_SECONDS)
        print(f"ratio bucket_requests_idle {_requests() - before_requests:.3f}", flush=True)
        print(f"ratio bucket_requests {puts / SECONDS / (1000 / INTERVAL_MS):.3f}", flush=True)


def _requests() -> int:
    return sum(requests.count for requests in OBJECT_REQUESTS.state())


if __name__ == "__main__":
    main()
