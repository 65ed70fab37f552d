"""Rows per second of a stream without a broker (`broker` = `none`), against a Python source that only calls boto3.

Both read the same ranges of the same objects in the same micro-batches and tasks, into noop. The base sends one request
for each range, one after the other, and yields one prebuilt batch until it has the rows of the range. It decodes
nothing. Ours reads distinct rows, verifies every CRC, and looks for new rows at each trigger. The store has sealed
segments in the bucket, and newer rows in the log. SeaweedFS and both sources share the machine.

The lines before the last are the requests of an idle trigger, and the seconds of a stream's first look at the store.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from benchmarks.bucket_store import BUCKET, BucketBench, bucket_bench
from benchmarks.harness import compare
from benchmarks.repeated_rows import repeated
from benchmarks.rows import SCHEMA, entry, entry_rows
from benchmarks.spark_queries import drained, session, start
from pyspark_ledger.connector.data_source import LedgerSource
from pyspark_ledger.connector.read.home.task import HomeTask
from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.message.columns import schema_bytes
from pyspark_ledger.ledger.metrics.counters import OBJECT_REQUESTS
from pyspark_ledger.ledger.protocol.actions import CreateLedger, RegisterSchema
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix
from streaming_examples.s3_server import ACCESS_KEY, SECRET_KEY

ROW_BYTES = 120
ENTRIES = int(os.environ.get("NONE_ENTRIES", "320"))
SEGMENT_ENTRIES = 16
BATCH_ENTRIES = 32
PROVIDER = "streaming_examples.s3_server:credentials"
Ranges = list[list[Any]]
"""Ranges of a task: key, start, end and rows of each."""


class BotoSource(DataSource):
    """Data source `boto3`, with the option `plan`: a file with the ranges of each task of each micro-batch."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "boto3"

    def schema(self) -> str:
        """Return the columns of `benchmarks.rows`."""
        return "a bigint, b bigint, body binary"

    def streamReader(self, schema: StructType) -> BotoReader:  # noqa: N802, ARG002 — Spark's signature
        """Return the reader, made from the options only."""
        return BotoReader(self.options["plan"], self.options["endpoint"])


class BotoReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader whose offsets are numbers of micro-batches."""

    def __init__(self, plan: str, endpoint: str) -> None:
        self._batches: list[list[Ranges]] = json.loads(Path(plan).read_text())
        self._endpoint = endpoint

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the offset before the first micro-batch."""
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802, ARG002
        """Return the offset after one more micro-batch."""
        return {"n": min(start["n"] + 1, len(self._batches))}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return no limit."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: the plan has an end."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch."""
        return [InputPartition(task) for batch in self._batches[start["n"] : end["n"]] for task in batch]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Get each range, and yield the prebuilt batch until its rows are returned."""
        if partition.value is None:
            return
        client = _client(self._endpoint)
        for key, first, end, rows in partition.value:
            found = client.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={first}-{end - 1}")
            assert len(found["Body"].read()) == end - first  # noqa: S101 — the whole range
            yield from repeated(rows, 10_000, ROW_BYTES)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: the source keeps no state."""

    def stop(self) -> None:
        """Do nothing: the source holds no resource."""


_clients: dict[str, Any] = {}


def _client(endpoint: str) -> Any:
    import boto3

    if endpoint not in _clients:
        _clients[endpoint] = boto3.client(
            "s3", endpoint_url=endpoint, aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        )  # fmt: skip
    return _clients[endpoint]


def fill(opened: BucketStore) -> None:
    """Append entries to the ledger `rows`, and upload all sealed segments."""
    log = opened.store.create_ledger(CreateLedger("rows", max_entries_per_ledger=SEGMENT_ENTRIES))
    version = opened.store.register_schema(RegisterSchema("rows", schema_bytes(SCHEMA))).version
    for number in range(ENTRIES + SEGMENT_ENTRIES // 2):
        log.append([b"".join(map(bytes, entry(number, ROW_BYTES, version)))]).result()
    opened.store.offloads.offload(OffloadPrefix("rows", None))
    opened.store.offloads.round()


def plan_of(options: dict[str, str], prefix: str) -> list[list[Ranges]]:
    """Return the ranges of the stream's tasks, by its own planning."""
    source = LedgerSource(options, "0.1.0")
    stream = source.stream_reader(source.schema())
    at, batches = stream.initialOffset(), []
    while (end := stream.latestOffset(at, stream.getDefaultReadLimit())) != at:
        tasks: list[HomeTask] = [part.value for part in stream.partitions(at, end)]
        batches.append(
            [
                [place for blocks in task.blocks for block in blocks for place in _ranges(block, prefix)]
                for task in tasks
            ]
        )
        at = end
    return batches


def _ranges(block: Any, prefix: str) -> Ranges:
    """Return the ranges of a block. The rows are those of its entries, and belong to the last range."""
    rows = [0] * (len(block.ranges) - 1) + [block.entries * entry_rows(ROW_BYTES)]
    return [
        [f"{prefix}/{part.name}", part.start, part.end, some] for part, some in zip(block.ranges, rows, strict=True)
    ]


def measure(bench: BucketBench, prefix: str, folder: Path) -> None:
    """Compare the streams, and print the requests of an idle trigger."""
    options = {
        "store": f"s3://{BUCKET}/{prefix}", "path": "rows", "broker": "none", "startingPosition": "earliest",
        "credentialProvider": PROVIDER, "offloadEndpoint": bench.server.endpoint,
        "maxRowsPerTrigger": str(BATCH_ENTRIES * entry_rows(ROW_BYTES)),
    }  # fmt: skip
    plan = folder / "plan.json"
    before = time.perf_counter()
    batches = plan_of(options, prefix)
    print(
        f"  {len(batches)} batches of {len(batches[0])} tasks, planned in {time.perf_counter() - before:.2f} s",
        flush=True,
    )
    plan.write_text(json.dumps(batches))
    print(f"ratio bucket_stream_none_idle_requests {idle_requests(options):.3f}", flush=True)
    spark = session()
    spark.dataSource.register(BotoSource)
    paths = (folder / f"checkpoint-{number}" for number in count())

    def seconds(frame: DataFrame) -> float:
        took = drained(start(frame, next(paths), available_now=True))
        return sum(took.seconds) / took.rows * 1e6

    def ours() -> float:
        return seconds(spark.readStream.format("ledger").options(**options).load())

    def base() -> float:
        return seconds(spark.readStream.format("boto3").options(plan=str(plan), endpoint=bench.server.endpoint).load())

    compare("bucket_stream_none", ours, base, work_bytes=1_000_000 * ROW_BYTES)
    spark.stop()


def idle_requests(options: dict[str, str]) -> float:
    """Return the requests of an idle trigger."""
    source = LedgerSource({**options, "startingPosition": "latest"}, "0.1.0")
    stream = source.stream_reader(source.schema())
    at = stream.initialOffset()
    before = _requests()
    for _ in range(10):
        stream.latestOffset(at, stream.getDefaultReadLimit())
        stream.reportLatestOffset()
    return (_requests() - before) / 10


def _requests() -> int:
    return sum(requests.count for requests in OBJECT_REQUESTS.state())


def main() -> None:
    """Fill a store, close its broker, and measure."""
    with tempfile.TemporaryDirectory() as folder, bucket_bench() as bench:
        with bench.open("none") as opened:
            fill(opened)
        measure(bench, "none", Path(folder))


if __name__ == "__main__":
    main()
