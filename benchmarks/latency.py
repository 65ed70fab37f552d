"""Latency from the append of a small message to `foreachBatch`, at ten messages per second.

The base is a Python source that reads no messages. Its offset is the number of the last message, read from a file, and
its task counts up to this number. So the ratio shows the project's work: append with sync, the request for the end of
the log, planning and reading. Both queries trigger without an interval, and `foreachBatch` collects the rows.

Each side runs for `LATENCY_SECONDS` in turns, seven times. The ratio is of times: it compares the medians. With
`LATENCY_KAFKA=1`, Kafka is measured in the same way, for information. It runs once with default settings, and once with
`fetch.max.wait.ms=10`.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from benchmarks.beside_kafka import ROUNDS, Peers, peers
from benchmarks.repeated_rows import allow
from pyspark_ledger.ledger.message.arrow_payload import arrow_metadata, encode_rows
from pyspark_ledger.ledger.message.columns import schema_bytes
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.protocol.actions import CreateLedger, RegisterSchema

SECONDS = float(os.environ.get("LATENCY_SECONDS", "6"))
KAFKA = os.environ.get("LATENCY_KAFKA") == "1"
PERIOD = 0.1
_UNCOUNTED = 10
_WAIT_SECONDS = 60.0
SCHEMA = pa.schema([("n", pa.int64())])
Send = Callable[[int], None]


class CountingSource(DataSource):
    """Source of the numbers up to the number in a file."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "counting"

    def schema(self) -> str:
        """Return the schema: one number."""
        return "n bigint"

    def streamReader(self, schema: StructType) -> CountingReader:  # noqa: N802, ARG002 — Spark's signature
        """Return the reader."""
        return CountingReader(Path(self.options["file"]))


class CountingReader(DataSourceStreamReader):
    """Reader whose offsets are numbers."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the offset before the first number."""
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802, ARG002
        """Return the number in the file."""
        return {"n": max(start["n"], int(self._file.read_text()))}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return no limit."""
        return ReadAllAvailable()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return one partition."""
        return [InputPartition((start["n"], end["n"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the numbers."""
        yield pa.RecordBatch.from_arrays([pa.array(range(*partition.value), pa.int64())], schema=SCHEMA)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the source keeps no state."""

    def stop(self) -> None:
        """Do nothing: the source holds no resource."""


class Arrivals:
    """Times at which each number was sent and received."""

    def __init__(self) -> None:
        self._sent: dict[int, float] = {}
        self._came: dict[int, float] = {}

    def batch(self, rows: DataFrame, _batch: int) -> None:
        """Record the rows of a batch. Called by `foreachBatch`."""
        numbers = [int(row.n) for row in rows.collect()]
        now = time.perf_counter()
        for number in numbers:
            self._came.setdefault(number, now)

    def measure(self, query: StreamingQuery, send: Send) -> list[float]:
        """Send at a steady rate. Return the seconds of each number, without the first numbers."""
        try:
            self._send(0, send)
            self._wait(query, 1)
            start, total = time.perf_counter(), _UNCOUNTED + int(SECONDS / PERIOD)
            for number in range(1, total):
                time.sleep(max(0.0, start + number * PERIOD - time.perf_counter()))
                self._send(number, send)
            self._wait(query, total)
        finally:
            query.stop()
        return [self._came[number] - self._sent[number] for number in range(_UNCOUNTED, total)]

    def _send(self, number: int, send: Send) -> None:
        self._sent[number] = time.perf_counter()
        send(number)

    def _wait(self, query: StreamingQuery, count: int) -> None:
        until = time.monotonic() + _WAIT_SECONDS
        while len(self._came) < count:
            error = query.exception()
            if error is not None:
                raise error
            if time.monotonic() > until:
                raise TimeoutError(f"{len(self._came)} of {count} messages came: {query.status}")
            time.sleep(0.01)


def run(both: Peers, rows: DataFrame, send: Send) -> list[float]:
    """Return the seconds of each message through a query."""
    arrivals = Arrivals()
    writer = rows.writeStream.foreachBatch(arrivals.batch).option("checkpointLocation", str(both.fresh()))
    return arrivals.measure(writer.trigger(processingTime="0 seconds").start(), send)


def ours(both: Peers) -> list[float]:
    """Measure a ledger of its own."""
    ledger = f"small{next(both.serial)}"
    name = canonical_name(ledger)
    both.client.ask(CreateLedger(name))
    version = both.client.ask(RegisterSchema(name, schema_bytes(SCHEMA))).version
    reader = both.spark.readStream.format("ledger").option("store", str(both.store))
    with both.client.producer(name) as producer:

        def send(number: int) -> None:
            batch = pa.RecordBatch.from_arrays([pa.array([number], pa.int64())], schema=SCHEMA)
            metadata = arrow_metadata("bench", number, 1, 1, version)
            producer.append(*encode_entry(metadata, encode_rows([batch]))).result()

        return run(both, reader.option("startingPosition", "earliest").load(ledger), send)


def base(both: Peers) -> list[float]:
    """Measure the source that reads nothing."""
    file = both.fresh()
    allow(file, 0)
    rows = both.spark.readStream.format("counting").option("file", str(file)).load()
    return run(both, rows, lambda number: allow(file, number + 1))


def kafka(both: Peers, wait_ms: str | None) -> list[float]:
    """Measure Kafka with its Java producer, one acknowledged message at a time."""
    topic = f"small{next(both.serial)}"
    both.kafka.create(topic)
    jvm: Any = both.spark.sparkContext._jvm  # noqa: SLF001  # there is no Python client of Kafka here
    settings = jvm.java.util.Properties()
    serializer = "org.apache.kafka.common.serialization.StringSerializer"
    for key, value in (("bootstrap.servers", both.kafka.address), ("key.serializer", serializer),
                       ("value.serializer", serializer)):  # fmt: skip
        settings.put(key, value)
    producer = jvm.org.apache.kafka.clients.producer.KafkaProducer(settings)
    record = jvm.org.apache.kafka.clients.producer.ProducerRecord
    reader = both.spark.readStream.format("kafka").option("kafka.bootstrap.servers", both.kafka.address)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    if wait_ms is not None:
        reader = reader.option("kafka.fetch.max.wait.ms", wait_ms)
    rows = reader.load().selectExpr("cast(cast(value as string) as bigint) as n")
    try:
        return run(both, rows, lambda number: producer.send(record(topic, str(number))).get())
    finally:
        producer.close()


def tell(label: str, seconds: list[float]) -> None:
    """Print the median and the tail of one side."""
    p99 = statistics.quantiles(seconds, n=100)[98]
    print(f"{label}: {len(seconds)} messages, p50 {statistics.median(seconds) * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms")


def main() -> None:
    """Print each round, then both sides. The last line is the ratio of the medians."""
    sides: dict[str, Callable[[Peers], list[float]]] = {"ours": ours, "base": base}
    if KAFKA:
        sides["kafka"] = lambda both: kafka(both, None)
        sides["kafka, waiting 10 ms"] = lambda both: kafka(both, "10")
    found: dict[str, list[float]] = {label: [] for label in sides}
    with peers(with_kafka=KAFKA) as both:
        both.spark.dataSource.register(CountingSource)
        for number in range(ROUNDS + 1):
            took = {label: side(both) for label, side in sides.items()}
            medians = "  ".join(f"{label} {statistics.median(seconds) * 1e3:.0f} ms" for label, seconds in took.items())
            print(f"  round {number}: {medians}{'  (not counted)' if not number else ''}", flush=True)
            for label, seconds in took.items():
                found[label] += seconds if number else []
    for label, seconds in found.items():
        tell(label, seconds)
    print(f"ratio latency {statistics.median(found['ours']) / statistics.median(found['base']):.3f}")


if __name__ == "__main__":
    main()
