"""Read of a store in a bucket without its broker, against boto3 alone in the same kind of source.

The store has sealed segments of 64 MiB, and 48 MiB that are only in its log. Its broker has ended, and its disk is
deleted. Both sides are Python data sources into noop, with the same tasks over the same bytes of the same objects.
Our time includes the plan, which reads manifest, snapshot and log twice: for the columns, and for the end of the read.
The base gets the places of the entries in advance. It fetches adjacent bytes with one GET, unpacks the entries and
yields Arrow, without checksums.

`BUCKET_ENTRIES` (368) sets the number of sealed entries, of 4 MiB each.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from benchmarks.bare_s3 import BareStoreSource
from benchmarks.bucket_objects import PROVIDER
from benchmarks.bucket_store import BUCKET, BucketBench, bucket_bench
from benchmarks.cold_spark import into_noop
from benchmarks.harness import compare
from benchmarks.rows import ENTRY_BYTES, ROW_BYTES, SCHEMA, entry
from benchmarks.spark_queries import session
from pyspark_ledger.connector.default_source import DefaultSource
from pyspark_ledger.ledger.clock import pause
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.columns import schema_bytes
from pyspark_ledger.ledger.protocol.actions import CreateLedger, RegisterSchema
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix

ENTRIES, TAIL, SEGMENT = int(os.environ.get("BUCKET_ENTRIES") or 368), 12, 16
NAME, PREFIX, SIZE = "columns", "read", ROW_BYTES["1KiB"]


def fill(bench: BucketBench) -> None:
    """Write the store. Its sealed segments are uploaded, and its log is collected before the tail."""
    with bench.open(PREFIX) as opened:
        log = opened.store.create_ledger(CreateLedger(NAME, max_entries_per_ledger=SEGMENT))
        version = opened.store.register_schema(RegisterSchema(NAME, schema_bytes(SCHEMA))).version
        opened.store.offloads.start()

        def append(first: int, count: int) -> None:
            for number in range(first, first + count):
                log.append([b"".join(map(memoryview, entry(number, SIZE, version)))]).result()

        append(0, ENTRIES)
        log.roll_over()
        while opened.store.offloads.status(NAME).offloaded < len(log.snapshot.segments):
            with suppress(Refused):  # an offload is under way
                opened.store.offloads.offload(OffloadPrefix(NAME, None))
            pause(5)
        opened.collector.collect()
        append(ENTRIES, TAIL)


def places(options: dict[str, str]) -> list[list[list[list[Any]]]]:
    """Return the tasks of the base: the groups of adjacent bytes that our tasks read."""
    source = DefaultSource({**options, "path": NAME})
    parts = source.reader(source.schema()).partitions()
    return [
        _groups([range_ for blocks in part.value.blocks for block in blocks for range_ in block.ranges])
        for part in parts
    ]


def _groups(ranges: list[Any]) -> list[list[list[Any]]]:
    """Join adjacent ranges of an object. A segment's ranges are groups alone, those of the log are one group."""
    joined: list[list[Any]] = []
    for name, start, end in ranges:
        if joined and (joined[-1][0], joined[-1][2]) == (name, start):
            joined[-1][2] = end
        else:
            joined.append([name, start, end])
    tail = [place for place in joined if place[0].startswith("wal/")]
    groups = [[place] for place in joined if place not in tail] + ([tail] if tail else [])
    return [[[f"{PREFIX}/{name}", start, end] for name, start, end in group] for group in groups]


def main() -> None:
    """Print the ratio."""
    with bucket_bench() as bench:
        fill(bench)
        access = {"offloadEndpoint": bench.server.endpoint, "credentialProvider": PROVIDER}
        options = {"store": f"s3://{BUCKET}/{PREFIX}", "broker": "none", **access}
        tasks = places(options)
        spark = session()
        spark.dataSource.register(BareStoreSource)

        def mine() -> Any:
            return spark.read.format("ledger").options(**options).load(NAME)

        def bare() -> Any:
            said = {"endpoint": bench.server.endpoint, "bucket": BUCKET, "tasks": json.dumps(tasks)}
            return spark.read.format("bare_store").options(**said).load()

        wanted = (ENTRIES + TAIL) * (ENTRY_BYTES // SIZE)
        counts = (mine().count(), bare().count())
        if counts != (wanted, wanted):
            message = f"{counts} rows were read, {wanted} were written"
            raise RuntimeError(message)
        print(f"{len(tasks)} tasks")
        compare(
            "bucket_read",
            lambda: into_noop(mine()),
            lambda: into_noop(bare()),
            work_bytes=(ENTRIES + TAIL) * ENTRY_BYTES,
        )
        spark.stop()


if __name__ == "__main__":
    main()
