"""Shared setup of the comparisons with Kafka: a session with both connectors, a store, a Kafka, and equal rows.

Rows have one binary column, `value`, of 120 bytes or 1 KiB, random and distinct. Both sides are Spark queries of one
run, in turns. The measured time is `triggerExecution` of their batches, without the first, which starts processes.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.kafka_broker import Kafka, jars, kafka
from benchmarks.raw_disk import bench_dir
from benchmarks.spark_queries import Took, drained, session, start
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.message.arrow_payload import arrow_metadata
from pyspark_ledger.ledger.message.column_encoding import RowEncoder
from pyspark_ledger.ledger.message.columns import schema_bytes
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol.actions import CreateLedger, RegisterSchema, StopBroker

MIB = 1024 * 1024
SCHEMA = pa.schema([("value", pa.binary())])
ENTRY_BYTES = 4 * MIB
ROUNDS = int(os.environ.get("KAFKA_ROUNDS", "7"))


@dataclass
class Peers:
    """Session, store and Kafka of a comparison."""

    spark: SparkSession
    client: Client
    store: Path
    kafka: Kafka
    folder: Path
    serial: Iterator[int]

    def fresh(self) -> Path:
        """Return an unused path."""
        return self.folder / f"{next(self.serial)}"

    def ledger_stream(self, ledger: str, batch_rows: int) -> DataFrame:
        """Return a stream of a ledger from its start."""
        reader = self.spark.readStream.format("ledger").option("store", str(self.store))
        return reader.option("startingPosition", "earliest").option("maxRowsPerTrigger", batch_rows).load(ledger)

    def kafka_stream(self, topic: str, batch_rows: int) -> DataFrame:
        """Return a stream of a topic from its start."""
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.kafka.address)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        return reader.option("maxOffsetsPerTrigger", batch_rows).load()

    def to_kafka(self, rows: DataFrame, topic: str) -> None:
        """Write rows with a column `value` to a topic."""
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", self.kafka.address)
        writer.option("topic", topic).save()

    def read(self, frame: DataFrame) -> float:
        """Return the seconds per batch of an AvailableNow query into noop."""
        took = drained(start(frame, self.fresh(), available_now=True))
        return per_batch(took)


def per_batch(took: Took) -> float:
    """Return the seconds per batch."""
    return sum(took.seconds) / len(took.seconds)


@contextmanager
def peers(*, with_kafka: bool = True) -> Iterator[Peers]:
    """Yield a session, a store with its broker, and a Kafka. All end with the block, also after SIGTERM."""
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(1))
    with tempfile.TemporaryDirectory(dir=bench_dir(), ignore_cleanup_errors=True) as text:
        folder = Path(text).resolve()
        client = connect(folder / "store").client
        try:
            spark = session(jars("connector") if with_kafka else [])
            if with_kafka:
                with kafka(folder / "kafka") as broker:
                    yield Peers(spark, client, folder / "store", broker, folder, count())
                    spark.stop()
            else:
                yield Peers(spark, client, folder / "store", Kafka(""), folder, count())
                spark.stop()
        finally:
            client.ask(StopBroker())
            time.sleep(1)


def values(first: int, rows: int, row_bytes: int) -> pa.RecordBatch:
    """Return rows numbered from `first`, of random bytes that depend on the arguments only."""
    data = np.random.Generator(np.random.SFC64(first)).bytes(rows * row_bytes)
    offsets = np.arange(0, (rows + 1) * row_bytes, row_bytes, dtype=np.int32)
    column = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([column], schema=SCHEMA)


def fill(client: Client, ledger: str, rows: int, row_bytes: int) -> None:
    """Create a ledger of `rows` rows, in entries of the sink's size."""
    name = canonical_name(ledger)
    client.ask(CreateLedger(name))
    version = client.ask(RegisterSchema(name, schema_bytes(SCHEMA))).version
    per_entry, encoder = ENTRY_BYTES // row_bytes, RowEncoder()
    with client.producer(name) as producer:
        for first in range(0, rows, per_entry):
            batch = values(first, min(per_entry, rows - first), row_bytes)
            metadata = arrow_metadata("bench", first, 1, batch.num_rows, version)
            producer.append(*encode_entry(metadata, encoder.encode([batch])))
