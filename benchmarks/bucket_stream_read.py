"""Catch-up of a stream over sealed segments in a bucket: tasks fetch the segments, against a broker that sends them.

The store is in a bucket. Its broker is a process with an empty cache directory, and its cache is a tenth of the
backlog. Both sides are the same streaming query into noop, without a subscription, with the same broker. Ours has the
default option `directReads` = `auto`, the base has `off`. No task maps files, as on executors of other hosts.
`BUCKET_ENTRIES` (160) sets the number of sealed entries, of 4 MiB each.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("BUCKET_ENTRIES", "160")

from benchmarks.bucket_read import ENTRIES, NAME, PREFIX, SIZE, TAIL, fill
from benchmarks.bucket_store import BUCKET, bucket_bench
from benchmarks.harness import compare
from benchmarks.raw_disk import bench_dir
from benchmarks.rows import ENTRY_BYTES
from benchmarks.spark_queries import rows_read, session
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.protocol.actions import Empty

ADDRESS = f"s3://{BUCKET}/{PREFIX}"


def catch_up(spark: Any, checkpoints: Path, **options: str) -> None:
    """Read the whole ledger by a streaming query. Raises RuntimeError for a wrong number of rows."""
    read = spark.readStream.format("ledger").options(store=ADDRESS, mapping="off", **options)
    checkpoint = tempfile.mkdtemp(dir=checkpoints)
    write = read.option("startingPosition", "earliest").load(NAME).writeStream.format("noop")
    query = write.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    rows, wanted = rows_read(query), (ENTRIES + TAIL) * (ENTRY_BYTES // SIZE)
    if rows != wanted:
        message = f"{rows} rows were read, {wanted} were written"
        raise RuntimeError(message)


def main() -> None:
    """Print the ratio."""
    checkpoints = Path(tempfile.mkdtemp(prefix="stream-", dir=bench_dir()))
    with bucket_bench() as bench:
        fill(bench)
        os.environ |= {**bench.server.environment, "LEDGER_CACHE": str(checkpoints / "cache")}
        store, spark = connect(ADDRESS), session()
        try:

            def direct() -> None:
                catch_up(spark, checkpoints)

            def through() -> None:
                catch_up(spark, checkpoints, directReads="off")

            direct()
            found = store.client.call("cache", Empty())
            print(f"{found.direct_entries} of {ENTRIES + TAIL} entries were fetched by tasks")
            compare("bucket_stream_read", direct, through, work_bytes=(ENTRIES + TAIL) * ENTRY_BYTES)
        finally:
            spark.stop()
            stop_broker(bucket_directory(ADDRESS))
            shutil.rmtree(checkpoints, ignore_errors=True)


if __name__ == "__main__":
    main()
