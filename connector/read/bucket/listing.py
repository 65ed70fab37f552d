"""Listing of a bucket as a DataFrame, `spark.read.format("ledger").option("offload", "s3://bucket").load()`.

The listing has one row for each upload of a segment (*attempt*). The driver creates the rows when Spark plans the read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.bucket.scan import require_bucket
from pyspark_ledger.connector.read.planner import BatchPlanner
from pyspark_ledger.connector.schema import spark_schema
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


@dataclass(frozen=True, slots=True)
class ListingTask:
    """Task with the rows of the listing."""

    rows: pa.RecordBatch

    def read(self) -> Iterator[pa.RecordBatch]:
        yield self.rows


class ListingScan(BatchPlanner):
    """Plan of the listing."""

    def __init__(self, options: LedgerOptions) -> None:
        self._options = options

    def schema(self) -> StructType:
        return spark_schema(LISTING, "the listing")

    def tasks(self) -> list[ListingTask]:
        return [ListingTask(listing(self._options))]


def listing(options: LedgerOptions) -> pa.RecordBatch:
    """Return a row for each offload attempt in the bucket of `options`."""
    catalogue = read_catalogue(require_bucket(options).store())
    return pa.RecordBatch.from_pylist([_row(attempt) for attempt in catalogue.attempts], schema=LISTING)


def _row(attempt: Attempt) -> dict[str, object]:
    index = attempt.index
    short = index is not None and index.stored_entries < index.entries
    return {
        "topic": spelled(attempt.topic) or None,
        "cluster": attempt.cluster or None,
        "ledgerId": attempt.key.ledger_id,
        "entries": index.entries if index else attempt.entries if attempt.entries >= 0 else None,
        "heldEntries": index.stored_entries if index else None,
        "blocks": len(index.blocks) if index else None,
        "bytes": attempt.data_bytes if attempt.data_bytes >= 0 else None,
        "state": attempt.fault or ("short: the offloader stopped without an error" if short else "complete"),
        "object": attempt.data_name,
    }
