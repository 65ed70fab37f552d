"""The bounded read of a bucket: `spark.read.format("ledger").option("offload", "s3://bucket").load("orders")`.

Without a ledger it lists what the bucket holds, one row for each attempt to offload a ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.bucket.scan import BucketRead, BucketSeen, require_bucket
from pyspark_ledger.connector.read.bucket.task import BucketPart, fetch_part
from pyspark_ledger.connector.spark_errors import spark_face
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import PositionRange
from pyspark_ledger.offload.bucket.catalogue import Attempt
from pyspark_ledger.offload.bucket.listing import read_catalogue
from pyspark_ledger.offload.bucket.topic_name import spelled

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LISTING = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("cluster", pa.string()),
        pa.field("ledgerId", pa.int64()),
        pa.field("entries", pa.int64()),
        pa.field("heldEntries", pa.int64()),
        pa.field("blocks", pa.int32()),
        pa.field("bytes", pa.int64()),
        pa.field("state", pa.string()),
        pa.field("object", pa.string()),
    ]
)


@dataclass(frozen=True)
class BucketPartition(InputPartition):
    """One task's share."""

    value: BucketPart


@dataclass(frozen=True)
class ListingPartition(InputPartition):
    """The listing, made on the driver."""

    value: pa.RecordBatch


@spark_face
class BucketReader(DataSourceReader):
    """Plans parts of objects on the driver, reads them in tasks."""

    def __init__(
        self, options: LedgerOptions, schema: StructType | None = None, seen: BucketSeen | None = None
    ) -> None:
        self._options = options
        self._schema = schema
        self._seen = seen

    def partitions(self) -> Sequence[InputPartition]:
        """The parts of the range, as the bucket stood when it was seen; an empty range has none."""
        read = BucketRead(self._options, self._schema, self._seen)
        found: list[InputPartition] = []
        for log in read.logs:
            start, end = read.starting(log), read.ending(log)
            if start > end:
                raise Refused(f"the read of {log.topic.name} begins at {start} and ends before it, at {end}")
            found += [BucketPartition(part) for part in read.parts(log, PositionRange(start, end))]
        return found

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """On an executor: the rows of a part. Spark sends `InputPartition(None)` for an empty range."""
        return iter(()) if partition is None or partition.value is None else fetch_part(partition.value)


@spark_face
class ListingReader(DataSourceReader):
    """What a bucket holds, as rows."""

    def __init__(self, options: LedgerOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One: the listing is short beside what it lists."""
        return [ListingPartition(listing(self._options))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows."""
        yield partition.value


def listing(options: LedgerOptions) -> pa.RecordBatch:
    """One row for each attempt that the bucket of these options holds."""
    catalogue = read_catalogue(require_bucket(options).store())
    return pa.RecordBatch.from_pylist([_line(attempt) for attempt in catalogue.attempts], schema=LISTING)


def _line(attempt: Attempt) -> dict[str, object]:
    index = attempt.index
    short = index is not None and index.held_entries < index.entries
    return {
        "topic": spelled(attempt.topic) or None,
        "cluster": attempt.cluster or None,
        "ledgerId": attempt.key.ledger_id,
        "entries": index.entries if index else attempt.entries if attempt.entries >= 0 else None,
        "heldEntries": index.held_entries if index else None,
        "blocks": len(index.blocks) if index else None,
        "bytes": attempt.data_bytes if attempt.data_bytes >= 0 else None,
        "state": attempt.fault or ("short: the offloader stopped in silence" if short else "complete"),
        "object": attempt.data_name,
    }
