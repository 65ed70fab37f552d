"""The bounded read, `spark.read.format("ledger")`: Spark's reader over a planner.

Rule: filters are not taken over (`pushFilters` stays as it is): in Spark 4.2 what one scan pushed would leak into later
scans of the same DataFrame. Narrow a read by its options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_ledger.connector.read.planner import BatchPlanner, partitions_of, read_partition
from pyspark_ledger.connector.spark_errors import spark_face


@spark_face
class LedgerBatchReader(DataSourceReader):
    """Plans a read on the driver, reads its tasks on executors."""

    def __init__(self, planner: BatchPlanner) -> None:
        self._planner = planner

    def __getstate__(self) -> dict[str, object]:
        return {}  # tasks say all that an executor needs

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks of the range, as the ledgers stand now; an empty range has none."""
        return partitions_of(self._planner.tasks())

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)
