"""Time of a micro-batch over 1,000 ledgers, against a micro-batch over a single ledger with the same number of rows.

Our query selects its ledgers by a pattern. Each batch has 1,000 new entries of 100 rows: one in each of the 1,000
ledgers, or all in the single ledger. They are appended untimed, and a query into noop reads them in one batch. Rounds
of three batches alternate between both sides, and each query continues from its checkpoint. The first batch of a round
does not count. The ratio is of times: it compares the medians.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from benchmarks.harness import ROUNDS_MIN
from benchmarks.rows import create, rows_of
from benchmarks.spark_queries import start, step, took
from benchmarks.stream_read import Bench, prepared
from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.client.producer import Producer
from pyspark_ledger.ledger.message.arrow_payload import arrow_metadata, encode_rows
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.names import canonical_name

LEDGERS, ENTRY_ROWS, ROW_BYTES = 1_000, 100, 120
BATCHES = 3
MIN_ROWS = str(LEDGERS * ENTRY_ROWS)


@dataclass
class Side:
    """Side of the comparison: a query, and the producers of its ledgers."""

    bench: Bench
    options: dict[str, str]
    producers: list[Producer]
    version: int
    checkpoint: Path
    numbers: Iterator[int]

    def append(self) -> None:
        """Append the entries of one batch, durable on return."""
        each = LEDGERS // len(self.producers)
        sent = [producer.append(*self.entry()) for producer in self.producers for _ in range(each)]
        for future in sent:
            future.result()

    def entry(self) -> list[Buffer]:
        """Return a new distinct entry."""
        number = next(self.numbers)
        metadata = arrow_metadata("bench", number, 1, ENTRY_ROWS, self.version)
        return encode_entry(metadata, encode_rows([rows_of(number * ENTRY_ROWS, ENTRY_ROWS, ROW_BYTES)]))

    def round(self) -> tuple[float, ...]:
        """Return the seconds of the counted batches."""
        reader = self.bench.spark.readStream.format("ledger").option("store", str(self.bench.store))
        reader = reader.options(startingPosition="earliest", minRowsPerTrigger=MIN_ROWS, maxTriggerDelay="1h")
        query = start(reader.options(**self.options).load(), self.checkpoint, available_now=False)
        try:
            for _ in range(BATCHES):
                step(query, self.append)
            return took(query).seconds
        finally:
            query.stop()


def side(bench: Bench, stack: ExitStack, names: list[str], **options: str) -> Side:
    """Return a side over new ledgers."""
    versions = {create(bench.client, canonical_name(name)) for name in names}
    producers = [
        stack.enter_context(bench.client.producer(canonical_name(name), max_in_flight_bytes=1 << 20)) for name in names
    ]
    return Side(bench, options, producers, max(versions), bench.fresh(), count())


def main() -> None:
    """Print each round, then the medians. The last line is their ratio."""
    of_many: list[float] = []
    of_one: list[float] = []
    with prepared(mapping="auto", with_server=False) as bench, ExitStack() as stack:
        many = side(bench, stack, [f"many-{number:04}" for number in range(LEDGERS)], ledgersPattern="many-.*")
        one = side(bench, stack, ["one"], ledger="one")
        for number in range(ROUNDS_MIN + 1):
            round_many, round_one = many.round(), one.round()
            ratio = statistics.median(round_many) / statistics.median(round_one)
            print(f"  round {number}: {ratio:.3f}{'' if number else ', not counted'}", flush=True)
            if number:
                of_many += round_many
                of_one += round_one
    for label, seconds in (("1,000 ledgers", of_many), ("one ledger", of_one)):
        print(f"{label}: {len(seconds)} batches, median {statistics.median(seconds) * 1e3:.0f} ms")
    print(f"ratio tasks {statistics.median(of_many) / statistics.median(of_one):.3f}")


if __name__ == "__main__":
    main()
