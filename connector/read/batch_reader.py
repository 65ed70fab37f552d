"""Batch reads, `spark.read.format("ledger")`: Spark's reader, which gets its tasks from a planner (see `planner`).

Filters are not pushed down: the class does not override `pushFilters`. Reason: Spark 4.2 applies the pushed filters of
one scan also to later scans of the same DataFrame. Options such as `startingTimestamp` limit a read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_ledger.connector.read.planner import BatchPlanner, partitions_of, read_partition
from pyspark_ledger.connector.spark_errors import plain_errors
from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.logs.batch import BatchId, in_batch
from pyspark_ledger.ledger.logs.json_lines import log_connector_by
from pyspark_ledger.ledger.logs.steps import timed_step


@plain_errors
class LedgerBatchReader(DataSourceReader):
    """Spark's reader of a batch read. It plans on the driver, and reads tasks on executors."""

    def __init__(self, planner: BatchPlanner) -> None:
        self._planner = planner

    def __getstate__(self) -> dict[str, object]:
        return {}  # a task has all that an executor needs

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks of the read for the current state of the ledgers; none for an empty range."""
        log_connector_by()
        batch = new_id()
        with in_batch(BatchId(batch)), timed_step("plan") as figures:
            tasks = self._planner.tasks()
            figures["tasks"] = len(tasks)
        return partitions_of(tasks, batch)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_partition(partition)
