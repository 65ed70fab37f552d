"""The bounded read, `spark.read.format("ledger").load("orders")`: its start and end are pinned when it is planned.

Rule: filters are not taken over (`pushFilters` stays as it is): in Spark 4.2 what one scan pushed would leak into later
scans of the same DataFrame. Narrow a read by its options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from connector.ledger_read import LedgerRead
from connector.options import LedgerOptions
from connector.partition_fetch import FetchRange, fetch
from ledger.errors import Refused
from ledger.position import EARLIEST, LATEST, PositionRange

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class LedgerPartition(InputPartition):
    """One task's share."""

    value: FetchRange


class LedgerBatchReader(DataSourceReader):
    """Plans a range on the driver, reads its parts in tasks."""

    def __init__(self, options: LedgerOptions, schema: StructType | None = None) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The parts of the range, as the log stands now; an empty range has none."""
        read = LedgerRead(self._options, self._schema)
        log = read.end()
        start = read.starting(EARLIEST)
        wanted = self._options.ending_position
        end = log.end if wanted == LATEST else read.require_within(wanted, log, "endingPosition")
        if start > end and wanted != LATEST:
            raise Refused(f"the read of {read.name} begins at {start} and ends before it, at {end}")
        if start >= end:
            return []
        return [LedgerPartition(part) for part in read.partitions(PositionRange(start, end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor: the rows of a part. Spark sends `InputPartition(None)` for an empty range."""
        return iter(()) if partition.value is None else fetch(partition.value)
