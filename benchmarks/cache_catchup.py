"""Read of a cached backlog by a second query, against the same rows mapped from local segment files.

A store has a backlog in object storage only. A first query has read the backlog into the broker's cache in shared
memory, which is large enough. The same rows are also in a local ledger. In turns, a query reads the cached backlog and
the local ledger, from the start into noop. The measured time is the time of its batches.

    CACHE_CATCHUP_MB=512     size of the backlog
"""

from __future__ import annotations

import os
import tempfile
from itertools import count
from pathlib import Path

from benchmarks.harness import Loop, compare
from benchmarks.offloaded_backlog import LEDGER, offloaded_backlog
from benchmarks.raw_disk import bench_dir
from benchmarks.rows import ENTRY_BYTES, fill
from benchmarks.spark_queries import session, start
from pyspark_ledger.ledger.protocol.actions import Empty
from pyspark_ledger.ledger.protocol.cache import CacheMetrics

LOCAL = "local"
ROW_BYTES = 1024
_MB = 1024 * 1024
_WAIT_SECONDS = 300.0


def main() -> None:
    """Compare reading the cached backlog with reading the local ledger."""
    total = int(os.environ.get("CACHE_CATCHUP_MB", "512")) * _MB
    with offloaded_backlog(total, cache_bytes=2 * total) as backlog, tempfile.TemporaryDirectory(dir=bench_dir()) as at:
        fill(backlog.store.client, LOCAL, total // ENTRY_BYTES, ROW_BYTES)
        spark, serial = session(), count()

        def reading(ledger: str) -> Loop:
            def run() -> float:
                frame = spark.readStream.format("ledger").option("store", str(backlog.path))
                frame = frame.option("startingPosition", "earliest")
                query = start(frame.load(ledger), Path(at) / f"{next(serial)}", available_now=True)
                try:
                    if not query.awaitTermination(_WAIT_SECONDS):
                        raise TimeoutError(f"the query is not done after {_WAIT_SECONDS} s: {query.status}")
                    return (
                        sum(p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"])
                        / 1000
                    )
                finally:
                    query.stop()

            return run

        try:
            reading(LEDGER)()
            served, before = backlog.proxy.served(), _counted(backlog.store.client.call("cache", Empty()))
            compare("cache_catchup", reading(LEDGER), reading(LOCAL), work_bytes=total)
            after = _counted(backlog.store.client.call("cache", Empty()))
            print(f"  {backlog.proxy.served() - served:,} bytes came from object storage meanwhile, ", end="")
            print(f"{after - before:,} bytes were mapped")
        finally:
            spark.stop()


def _counted(counted: CacheMetrics) -> int:
    return counted.mapped_bytes


if __name__ == "__main__":
    main()
