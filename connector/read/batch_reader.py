"""Batch reads, `spark.read.format("ledger")`: Spark's reader, which gets its tasks from a planner (see `planner`).

Filters are not pushed down: the class does not override `pushFilters`. Reason: Spark 4.2 applies the pushed filters of
one scan also to later scans of the same DataFrame. Options such as `startingTimestamp` limit a read.

Spark plans a batch read once for each DataFrame. If it is the static side of a join with a stream, later micro-batches
run the same tasks again, and so miss newer rows. Only the tasks can notice it. Each batch read has an id, and a
worker remembers in which micro-batch it first saw the id.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_ledger.connector.connection import print_once
from pyspark_ledger.connector.read.planner import BatchPlanner, TaskPartition, partitions_of, read_partition
from pyspark_ledger.connector.spark_errors import plain_errors
from pyspark_ledger.connector.triggers import running_query
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
        if isinstance(partition, TaskPartition):
            warn_of_old_plan(partition.batch, *running_query())
        return read_partition(partition)


_PLANS_MAX = 1000
_micro_batches: dict[str, tuple[str, str]] = {}


def warn_of_old_plan(plan: str, query: str | None, batch: str | None) -> None:
    """Print a line if an earlier micro-batch has run this plan of a batch read; once for each query.

    In local mode the line appears on the driver, else in the log of an executor.
    """
    if query is None or batch is None:
        return
    if len(_micro_batches) >= _PLANS_MAX:
        del _micro_batches[next(iter(_micro_batches))]
    if _micro_batches.setdefault(plan, (query, batch)) != (query, batch):
        print_once(
            f"query {query} reads a static ledger again as it was when Spark planned the read: rows that were written "
            "since are missing. To read them in each micro-batch, call load() inside foreachBatch"
        )
