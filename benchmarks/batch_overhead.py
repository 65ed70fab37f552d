"""Time of micro-batches of one entry, against micro-batches of a Python source that reads nothing.

Before each of our batches, one entry of one row is appended. The base advances its offset and yields one row from
memory. Rounds of twenty batches alternate between both sides. Only one query runs at a time, because an idle query
requests offsets and would slow down the other query. The first batch of each query does not count.

The ratio is our median batch time divided by the base's. 1.0 means no overhead, and lower is better.
"""

from __future__ import annotations

import statistics

from benchmarks.harness import ROUNDS_MIN
from benchmarks.repeated_rows import allow
from benchmarks.rows import create, rows_of
from benchmarks.spark_queries import start, step, took
from benchmarks.stream_read import Bench, prepared
from pyspark_ledger.ledger.client.producer import Producer
from pyspark_ledger.ledger.message.arrow_payload import arrow_metadata, encode_rows
from pyspark_ledger.ledger.message.entry import encode_entry
from pyspark_ledger.ledger.names import canonical_name

BATCHES = 20
ROW_BYTES = 120


def append_one(producer: Producer, number: int, version: int) -> None:
    """Append one entry of one row, durable on return."""
    metadata = arrow_metadata("bench", number, 1, 1, version)
    producer.append(*encode_entry(metadata, encode_rows([rows_of(number, 1, ROW_BYTES)]))).result()


def ours(bench: Bench) -> tuple[float, ...]:
    """Return the seconds of each batch of a new ledger."""
    ledger = f"one_row{next(bench.serial)}"
    name = canonical_name(ledger)
    version = create(bench.client, name)
    reader = bench.spark.readStream.format("ledger").option("store", str(bench.store))
    query = start(reader.option("startingPosition", "earliest").load(ledger), bench.fresh(), available_now=False)
    try:
        with bench.client.producer(name) as producer:
            for number in range(BATCHES + 1):
                step(query, lambda number=number: append_one(producer, number, version))
        return took(query).seconds
    finally:
        query.stop()


def base(bench: Bench) -> tuple[float, ...]:
    """Return the seconds of each batch of the source that reads nothing."""
    allowed = bench.fresh()
    allow(allowed, 0)
    options = {"rows": 1, "tasks": 1, "batchRows": 1, "rowBytes": ROW_BYTES, "allowed": str(allowed)}
    frame = bench.spark.readStream.format("repeated").options(**options).load()
    query = start(frame, bench.fresh(), available_now=False)
    try:
        for number in range(BATCHES + 1):
            step(query, lambda number=number: allow(allowed, number + 1))
        return took(query).seconds
    finally:
        query.stop()


def main() -> None:
    """Print each round, then medians and tails. The last line is the ratio of the medians."""
    of_ours: list[float] = []
    of_base: list[float] = []
    with prepared(mapping="auto", with_server=False) as bench:
        ours(bench)
        base(bench)
        for number in range(1, ROUNDS_MIN + 1):
            round_ours, round_base = ours(bench), base(bench)
            ratio = statistics.median(round_ours) / statistics.median(round_base)
            print(f"  round {number}: {ratio:.3f} of {len(round_ours)} and {len(round_base)} batches", flush=True)
            of_ours += round_ours
            of_base += round_base
    for label, seconds in (("ours", of_ours), ("base", of_base)):
        tenths = statistics.quantiles(seconds, n=10)
        middle = statistics.median(seconds)
        print(f"{label}: {len(seconds)} batches, median {middle * 1e3:.0f} ms, p90 {tenths[8] * 1e3:.0f} ms")
    print(f"ratio batch_overhead {statistics.median(of_ours) / statistics.median(of_base):.3f}")


if __name__ == "__main__":
    main()
