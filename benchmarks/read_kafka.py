"""Rows per second of `format("ledger")` against Spark's Kafka source, over the same rows, both into noop.

`AvailableNow` reads a backlog in batches of 384 MiB, from a topic with two partitions and from one ledger. The query
needs only the value. Kafka's source always returns its seven columns. The ledger's source returns only the value.
"""

from __future__ import annotations

import os

from benchmarks.beside_kafka import MIB, ROUNDS, fill, peers
from benchmarks.harness import compare

BATCH_BYTES = int(os.environ.get("KAFKA_BATCH_MB", "384")) * MIB
BATCHES = 3


def report(name: str, row_bytes: int) -> None:
    """Measure with rows of this size. The last line is the ratio."""
    rows = BATCH_BYTES // row_bytes
    with peers() as both:
        fill(both.client, "rows", rows * BATCHES, row_bytes)
        both.kafka.create("rows")
        both.to_kafka(both.spark.read.format("ledger").option("store", str(both.store)).load("rows"), "rows")
        compare(
            name,
            lambda: both.read(both.ledger_stream("rows", rows)),
            lambda: both.read(both.kafka_stream("rows", rows)),
            rounds=ROUNDS,
            work_bytes=BATCH_BYTES,
        )
