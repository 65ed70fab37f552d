"""Rows per second of a read from a bucket without a broker, against boto3 alone in the same kind of source.

Both are Python data sources into noop, over a GiB of Arrow entries of 4 MiB in one object. They have the same number
of tasks over the same bytes. The base fetches each block with one GET, unpacks the entries and yields Arrow. It
verifies no checksums and knows the columns in advance. `BUCKET_ENTRIES` (256) sets the number of entries.
"""

from __future__ import annotations

import json
import os
from typing import Any

from benchmarks.bare_s3 import BareS3Source
from benchmarks.bucket_objects import BUCKET, bucket
from benchmarks.harness import compare
from benchmarks.rows import ENTRY_BYTES, ROW_BYTES
from benchmarks.spark_queries import session
from pyspark_ledger.offload.bucket.topic_log import segment_ranges

ENTRIES = int(os.environ.get("BUCKET_ENTRIES") or 256)


def into_noop(frame: Any) -> None:
    """Return a loop that reads everything into noop."""
    frame.write.format("noop").mode("overwrite").save()


def main() -> None:
    """Print the ratio."""
    with bucket() as there:
        segments = there.put_columns("columns", ENTRIES, ROW_BYTES["1KiB"])
        spark = session()
        spark.dataSource.register(BareS3Source)
        spans = [span for segment in segments for span in segment_ranges(segment)]
        tasks = [[[span.data_name, span.offset, span.end_offset, 128]] for span in spans]

        def ours() -> None:
            into_noop(spark.read.format("ledger").options(**there.options()).load("columns"))

        def base() -> None:
            said = {"endpoint": there.server.endpoint, "bucket": BUCKET, "tasks": json.dumps(tasks)}
            into_noop(spark.read.format("bare_s3").options(**said).load())

        mine = spark.read.format("ledger").options(**there.options()).load("columns")
        wanted = ENTRIES * (ENTRY_BYTES // ROW_BYTES["1KiB"])
        if mine.count() != wanted:
            message = f"{mine.count()} rows were read, {wanted} were written"
            raise RuntimeError(message)
        print(f"{len(tasks)} tasks of the base, {mine.rdd.getNumPartitions()} of ours")
        compare("cold_spark", ours, base, work_bytes=ENTRIES * ENTRY_BYTES)
        spark.stop()


if __name__ == "__main__":
    main()
