"""The bounded read, `spark.read.format("ledger")`: Spark's reader over a planner.

Filters are not pushed down: the class does not override `pushFilters`. Reason: in Spark 4.2 the pushed filters of one
scan leak into later scans of the same DataFrame. Options such as `startingTimestamp` limit a read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_ledger.connector.read.planner import BatchPlanner, partitions_of, read_partition
from pyspark_ledger.connector.spark_errors import plain_errors


@plain_errors
class LedgerBatchReader(DataSourceReader):
    """Spark's reader of a bounded read: plans on the driver, reads tasks on executors."""

    def __init__(self, planner: BatchPlanner) -> None:
        self._planner = planner

    def __getstate__(self) -> dict[str, object]:
        return {}  # a task has all that an executor needs

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks of the range by the current state of the ledgers; none for an empty range."""
        return partitions_of(self._planner.tasks())

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)
