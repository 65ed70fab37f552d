"""Reads from a bucket without a broker, against Spark's own read of the same rows as Parquet through S3A.

`bucket_scan` reads Arrow entries. `bucket_scan_pulsar` reads messages of a Pulsar client, in LZ4 batches, against
Parquet of their values. Both sides use the same server and write to noop, which takes every column. `BUCKET_ENTRIES`
(128) and `BUCKET_MESSAGES` (a million) set the sizes.

The floor is a Python data source that only fetches the same bytes with boto3. It unpacks Arrow entries unverified, or
yields prepared messages. Messages have a second floor, which also decompresses each batch, because no reader can omit
this.

Spark decodes Parquet in the JVM. But rows of a Python data source pass through a pipe from a worker process to the JVM.
So the figures depend on the cores that worker and JVM share, and on the speed of pipe and server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bare_s3 import BareMessagesSource, BareS3Source, InflatedMessagesSource
from benchmarks.bucket_objects import BUCKET, Bucket, bucket
from benchmarks.cold_spark import into_noop
from benchmarks.harness import Loop, compare_with_floor
from benchmarks.maven_jars import jars
from benchmarks.rows import ROW_BYTES
from benchmarks.spark_queries import session
from pyspark_ledger.offload.bucket.catalogue import Segment
from pyspark_ledger.offload.bucket.topic_log import ByteRange, segment_ranges
from streaming_examples.s3_server import ACCESS_KEY, SECRET_KEY

S3A = Path(__file__).parent / "s3a" / "hadoop.xml"
ENTRIES = int(os.environ.get("BUCKET_ENTRIES") or 128)
MESSAGES, MESSAGE_BYTES = int(os.environ.get("BUCKET_MESSAGES") or 1_000_000), 250


def measured(spark: Any, there: Bucket, name: str, ledger: str, tasks: list[list[list[Any]]], *floors: str) -> None:
    """Print the ratios of one ledger. `floors` are data sources, and `tasks` are theirs."""

    def frame() -> Any:
        return spark.read.format("ledger").options(**there.options()).load(ledger)

    def floor(source: str) -> Loop:
        return lambda: into_noop(spark.read.format(source).options(**said).load())

    table = f"s3a://bench/parquet/{ledger}"
    frame().write.mode("overwrite").parquet(table)
    said = {"endpoint": there.server.endpoint, "bucket": BUCKET, "tasks": json.dumps(tasks)}
    compare_with_floor(
        name,
        lambda: into_noop(frame()),
        lambda: into_noop(spark.read.parquet(table)),
        floor(floors[0]),
        more={source: floor(source) for source in floors[1:]},
    )


def tasks_of(segments: list[Segment], rest: Callable[[ByteRange], list[int]]) -> list[list[list[Any]]]:
    """Return a task for each range of the segments, with what `rest` adds to the range."""
    spans = [span for segment in segments for span in segment_ranges(segment)]
    return [[[span.data_name, span.offset, span.end_offset, *rest(span)]] for span in spans]


def s3a(endpoint: str) -> dict[str, str]:
    """Return the settings with which Hadoop's S3A accesses the server."""
    hadoop = "spark.hadoop.fs.s3a."
    return {
        f"{hadoop}endpoint": endpoint,
        f"{hadoop}endpoint.region": "us-east-1",
        f"{hadoop}access.key": ACCESS_KEY,
        f"{hadoop}secret.key": SECRET_KEY,
        f"{hadoop}path.style.access": "true",
        f"{hadoop}connection.ssl.enabled": "false",
    }


def main() -> None:
    """Measure both ratios."""
    with bucket() as there:
        columns = there.put_columns("columns", ENTRIES, ROW_BYTES["1KiB"])
        messages = there.put_messages("messages", MESSAGES, MESSAGE_BYTES, "lz4")
        spark = session(jars(S3A), s3a(there.server.endpoint))
        for source in (BareS3Source, BareMessagesSource, InflatedMessagesSource):
            spark.dataSource.register(source)
        size = sum(span.end_offset - span.offset for segment in messages for span in segment_ranges(segment))
        parts = tasks_of(messages, lambda span: [MESSAGES * (span.end_offset - span.offset) // size, MESSAGE_BYTES])
        measured(spark, there, "bucket_scan_pulsar", "messages", parts, "bare_messages", "inflated_messages")
        measured(spark, there, "bucket_scan", "columns", tasks_of(columns, lambda _: [128]), "bare_s3")
        spark.stop()


if __name__ == "__main__":
    main()
