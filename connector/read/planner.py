"""Interfaces between Spark's two readers and the sources. Planners plan on the driver, and tasks read on executors.

The page docs/concepts.md explains the words entry, lease and subscription.

    planner                     source                               tasks
    LedgerScan, LedgerStream    ledgers of a store, by its broker    ledger.task.LedgerTask
    HomeScan, LedgerStream      ledgers of a store, by its bucket    home.task.HomeTask
    BucketScan, BucketStream    a topic of a bucket                  bucket.task.BucketTask
    TableScan, TableStream      a published table and the log        table.task.TableTask, LedgerTask
    BucketTableScan             a published table and a bucket       table.task.TableTask, BucketTask
    ListingScan, StoreTable     metadata of a bucket or a store      ListingTask, RowsTask, AckedRangesTask

Rules
- A planner lives in one process of the driver. Planners are never pickled.
- A task is a value: Spark pickles the task, and another process reads it.
- `tasks` of a stream depends only on its arguments and on immutable entries. A repeated batch has the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_ledger.connector.pipelines import require_complete_batch
from pyspark_ledger.connector.read.offsets import StreamOffset
from pyspark_ledger.connector.task_client import require_release
from pyspark_ledger.connector.triggers import task_batch
from pyspark_ledger.ledger.logs.batch import each_in_batch, in_batch
from pyspark_ledger.ledger.logs.json_lines import log_connector_by
from pyspark_ledger.ledger.logs.steps import timed_step
from pyspark_ledger.ledger.version import __version__

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Task(Protocol):
    """Part of a read that one task reads on an executor."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Called on an executor, on an unpickled copy of the task."""
        ...


class BatchPlanner(Protocol):
    """Plan of a batch read."""

    def schema(self) -> StructType:
        """Return the columns for Spark. Raises Refused if the user's schema differs."""
        ...

    def tasks(self) -> Sequence[Task]:
        """Return the tasks of the current range; none for an empty range."""
        ...

    def findings(self) -> Any:
        """Return results for another process, such as the listing of a bucket. None if there are none.

        Spark gets the schema in one process and plans the read in another process.
        """
        return None


class StreamPlanner(Protocol):
    """Plan of one execution of a query."""

    start_warning: str = ""
    """Warning that a start option is ignored because a cursor exists; empty if no option is ignored."""

    def initial(self) -> StreamOffset:
        """Return the start of a query without a checkpoint. Every call returns the same offset."""
        ...

    def latest(self, start: StreamOffset, *, limited: bool) -> StreamOffset | None:
        """Return the end of the next batch from `start`, or None if there is no batch.

        With `limited`, the limits of a batch apply.
        """
        ...

    def tasks(self, start: StreamOffset, end: StreamOffset) -> Sequence[Task]:
        """Return the tasks of a batch."""
        ...

    def pin_end(self) -> None:
        """Let the run end at the present end of the log (Trigger.AvailableNow). Later entries are for the next run."""
        ...

    def acknowledge(self, end: StreamOffset) -> None:
        """Acknowledge up to `end`, the end of a batch that Spark has committed."""

    def report(self) -> dict[str, Any] | None:
        """Return the progress of the last trigger as JSON values, or None."""
        return None

    def stop(self) -> None:
        """Release the query's leases, and end its registrations with the broker's cache.

        Spark may kill the process during this call.
        """


@dataclass(frozen=True)
class TaskPartition(InputPartition):
    """Task as a partition of Spark, with the driver's release."""

    value: Task
    release: str = __version__
    batch: str = field(default="", compare=False)
    """Id of the batch of the task, for logs."""
    limits: str = field(default="", compare=False)
    """Names of the options that can end the batch, if a pipeline refuses them (`connector.pipelines`)."""


def partitions_of(tasks: Sequence[Task], batch: str = "", limits: str = "") -> list[InputPartition]:
    """Return a partition for each task."""
    return [TaskPartition(task, batch=batch, limits=limits) for task in tasks]


def read_partition(partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition. Raises Unsupported if the driver has another release, Refused in some pipelines.

    Spark passes `InputPartition(None)` for an empty range; Spark 4.0 passes None.
    """
    if not isinstance(partition, TaskPartition):
        return iter(())
    require_release(partition.release)
    require_complete_batch(partition.limits)
    log_connector_by()
    batch = task_batch(partition.batch)
    with in_batch(batch):
        rows = partition.value.read()
    return each_in_batch(batch, _counted(rows))


def _counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task, and log their rows at the end."""
    rows = 0
    with timed_step("read") as figures:
        for batch in batches:
            rows += batch.num_rows
            yield batch
        figures["rows"] = rows
