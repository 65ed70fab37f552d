"""Rows per second of `format("ledger")` against Spark's Kafka source, over the same rows, both into noop.

`AvailableNow` reads a backlog in batches of 384 MiB, from a topic with two partitions and from one ledger. The query
needs only the value. Kafka's source always returns its seven columns. The ledger's source returns only the value.
`READ_KAFKA_ROWS` selects from `small,1k`: rows of 120 bytes, and of 1 KiB.
"""

from __future__ import annotations

import os

from benchmarks.beside_kafka import MIB, ROUNDS, Peers, fill, peers
from benchmarks.harness import compare
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol.actions import DeleteLedger

BATCH_BYTES = int(os.environ.get("KAFKA_BATCH_MB", "384")) * MIB
BATCHES = 3
ROW_BYTES = {"small": 120, "1k": 1024}


def report(both: Peers, kind: str) -> None:
    """Measure with rows of one size, and print the ratio."""
    name, rows = f"stream_read_kafka_{kind}", BATCH_BYTES // ROW_BYTES[kind]
    fill(both.client, name, rows * BATCHES, ROW_BYTES[kind])
    both.kafka.create(name)
    both.to_kafka(both.spark.read.format("ledger").option("store", str(both.store)).load(name), name)
    compare(
        name,
        lambda: both.read(both.ledger_stream(name, rows)),
        lambda: both.read(both.kafka_stream(name, rows)),
        rounds=ROUNDS,
        work_bytes=BATCH_BYTES,
    )
    both.client.ask(DeleteLedger(canonical_name(name)))
    both.kafka.delete(name)


def main() -> None:
    """Print the ratio of each size of rows."""
    with peers() as both:
        for kind in os.environ.get("READ_KAFKA_ROWS", ",".join(ROW_BYTES)).split(","):
            report(both, kind)


if __name__ == "__main__":
    main()
