"""Reads from a bucket without a broker, against Spark's own read of the same rows as Parquet through S3A.

`bucket_scan` reads Arrow entries. `bucket_scan_pulsar` reads messages of a Pulsar client, in LZ4 batches, against
Parquet of their values. Both sides use the same server and write to noop, which takes every column. `BUCKET_ENTRIES`
(128) and `BUCKET_MESSAGES` (a million) set the sizes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from benchmarks.bucket_objects import Bucket, bucket
from benchmarks.cold_spark import into_noop
from benchmarks.harness import compare
from benchmarks.maven_jars import jars
from benchmarks.rows import ENTRY_BYTES, ROW_BYTES
from benchmarks.spark_queries import session
from streaming_examples.s3_server import ACCESS_KEY, SECRET_KEY

S3A = Path(__file__).parent / "s3a" / "hadoop.xml"
ENTRIES = int(os.environ.get("BUCKET_ENTRIES") or 128)
MESSAGES, MESSAGE_BYTES = int(os.environ.get("BUCKET_MESSAGES") or 1_000_000), 250


def measured(spark: Any, there: Bucket, name: str, ledger: str, work_bytes: int) -> None:
    """Return the ratio of one ledger."""

    def frame() -> Any:
        return spark.read.format("ledger").options(**there.options()).load(ledger)

    table = f"s3a://bench/parquet/{ledger}"
    frame().write.mode("overwrite").parquet(table)
    compare(
        name,
        lambda: into_noop(frame()),
        lambda: into_noop(spark.read.parquet(table)),
        work_bytes=work_bytes,
    )


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
        there.put_columns("columns", ENTRIES, ROW_BYTES["1KiB"])
        there.put_messages("messages", MESSAGES, MESSAGE_BYTES, "lz4")
        spark = session(jars(S3A), s3a(there.server.endpoint))
        measured(spark, there, "bucket_scan_pulsar", "messages", MESSAGES * MESSAGE_BYTES)
        measured(spark, there, "bucket_scan", "columns", ENTRIES * ENTRY_BYTES)
        spark.stop()


if __name__ == "__main__":
    main()
