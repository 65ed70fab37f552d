"""Rows per second of the sink against Spark's Kafka sink: the same Parquet files, streamed into both.

A batch is two files of 64 MiB, so both sides have two tasks. The ledger's sink has synced every batch when it is
committed. Kafka is measured with `flush.messages=1`, which syncs each batch of its producers, and with its defaults,
which never sync. `WRITE_CASES` selects from `120B,1KiB`. There is a result for each of the two Kafkas: the lower ratio
of the two sizes of rows.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from benchmarks.beside_kafka import MIB, ROUNDS, Peers, peers, per_batch, values
from benchmarks.harness import Comparison
from benchmarks.raw_disk import warm_memory
from benchmarks.rows import ROW_BYTES
from benchmarks.spark_queries import drained
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol.actions import DeleteLedger

FILE_BYTES = 64 * MIB
FILES_PER_BATCH = 2
BATCHES = int(os.environ.get("WRITE_BATCHES", "2"))
CASES = os.environ.get("WRITE_CASES", ",".join(ROW_BYTES)).split(",")
SIDES = ("ours", "synced", "nosync")


def files(both: Peers, row_bytes: int) -> Path:
    """Return the files of all batches, with equally many rows each."""
    folder = both.fresh()
    folder.mkdir()
    rows = FILE_BYTES // row_bytes
    for number in range(BATCHES * FILES_PER_BATCH):
        batch = values(number * rows, rows, row_bytes)
        with pq.ParquetWriter(folder / f"{number:04}.parquet", batch.schema, compression="none") as writer:
            writer.write_batch(batch)
    return folder


def stream(both: Peers, folder: Path) -> DataFrame:
    """Return a stream of the files' rows, with two files per batch."""
    reader = both.spark.readStream.schema("value binary").option("maxFilesPerTrigger", FILES_PER_BATCH)
    return reader.parquet(str(folder))


def ours(both: Peers, folder: Path) -> float:
    """Return the seconds per batch into a new ledger."""
    ledger = f"out{next(both.serial)}"
    warm_memory(BATCHES * FILES_PER_BATCH * FILE_BYTES)
    os.sync()  # no side pays for dirty pages of the other
    writer = stream(both, folder).writeStream.format("ledger").option("store", str(both.store))
    writer = writer.option("checkpointLocation", str(both.fresh())).trigger(availableNow=True)
    took = per_batch(drained(writer.start(ledger)))
    both.client.ask(DeleteLedger(canonical_name(ledger)))
    return took


def theirs(both: Peers, folder: Path, topic: str) -> float:
    """Return the seconds per batch into a topic."""
    os.sync()
    writer = stream(both, folder).writeStream.format("kafka").option("kafka.bootstrap.servers", both.kafka.address)
    writer = writer.option("checkpointLocation", str(both.fresh())).option("topic", topic)
    return per_batch(drained(writer.trigger(availableNow=True).start()))


def case(both: Peers, kind: str) -> tuple[float, float]:
    """Return the ratios with rows of one size, against Kafka with and without syncs."""
    folder = files(both, ROW_BYTES[kind])
    both.kafka.create(f"synced_{kind}", {"flush.messages": "1"})
    both.kafka.create(f"nosync_{kind}")
    rounds = []
    for number in range(ROUNDS + 1):
        took = (ours(both, folder), theirs(both, folder, f"synced_{kind}"), theirs(both, folder, f"nosync_{kind}"))
        said = "  ".join(f"{side} {seconds:.3f} s" for side, seconds in zip(SIDES, took, strict=True))
        print(f"  {kind} round {number}: {said}{'  (not counted)' if not number else ''}", flush=True)
        rounds += [took] if number else []
    for topic in (f"synced_{kind}", f"nosync_{kind}"):
        both.kafka.delete(topic)
    against = [Comparison(side, tuple((took[0], took[i + 1]) for took in rounds)) for i, side in enumerate(SIDES[1:])]
    print(
        f"  {kind}: {against[0].ratio:.3f} against Kafka that syncs, {against[1].ratio:.3f} against one that does not"
    )
    return against[0].ratio, against[1].ratio


def main() -> None:
    """Print the comparisons. The last two lines are the ratios."""
    with peers() as both:
        found = [case(both, kind) for kind in CASES]
    part = "" if set(CASES) == set(ROW_BYTES) else "_in_part"
    print(f"ratio stream_write_kafka{part} {min(synced for synced, _ in found):.3f}")
    print(f"ratio stream_write_kafka_nosync{part} {min(nosync for _, nosync in found):.3f}")


if __name__ == "__main__":
    main()
