"""Seam between Spark's two readers and what they read: planners plan on the driver, tasks read on executors.

    planner                     of                                   tasks
    LedgerScan, LedgerStream    ledgers of a store, by its broker    ledger.task.LedgerTask
    BucketScan, BucketStream    a topic of a bucket                  bucket.task.BucketTask
    TableScan, TableStream      a published table and the log        table.task.TableTask, LedgerTask
    BucketTableScan             a published table and a bucket       table.task.TableTask, BucketTask
    ListingScan, StoreTable     a bucket or a store as rows          of their own

Rules
- A planner lives in one process of the driver. Planners are never pickled.
- A task is configuration: Spark pickles the task and reads it in another process.
- `tasks` of a stream is a function of its arguments and of logs that do not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_ledger.connector.read.offsets import StreamOffset

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Task(Protocol):
    """Share of a read that one executor reads."""

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Called on an executor, on a copy of the planned task."""
        ...


class BatchPlanner(Protocol):
    """Plan of a bounded read."""

    def schema(self) -> StructType:
        """Return the columns that Spark gets; Refused if the user's schema is another."""
        ...

    def tasks(self) -> Sequence[Task]:
        """Return the tasks of the range as it stands now; none for an empty range."""
        ...

    def findings(self) -> Any:
        """Return findings that the process that plans the read takes over, or None."""
        return None


class StreamPlanner(Protocol):
    """Plan of one run of one query."""

    start_warning: str = ""
    """Warning about a start option that a cursor overrules; empty if none is start_warning."""

    def initial(self) -> StreamOffset:
        """Return the start of a query without a checkpoint; the same at each call."""
        ...

    def latest(self, start: StreamOffset, *, limited: bool) -> StreamOffset | None:
        """Return the end of the next batch from `start`; None if no batch is due. `limited`: the limits count."""
        ...

    def latest_without_start(self) -> StreamOffset:
        """Return the end of everything there is, for a Spark that does not say where its batch starts."""
        return self.latest(self.initial(), limited=False) or self.initial()

    def tasks(self, start: StreamOffset, end: StreamOffset) -> Sequence[Task]:
        """Return the tasks of a batch."""
        ...

    def pin_end(self) -> None:
        """Pin the end for AvailableNow: later entries belong to the next run."""
        ...

    def acknowledge(self, end: StreamOffset) -> None:
        """Take note that Spark has committed the batch that ended at `end`."""

    def report(self) -> dict[str, Any] | None:
        """Return the progress of the last trigger, as JSON values; None if there is nothing to say."""
        return None

    def stop(self) -> None:
        """Release what the run holds. Spark may kill the process at any moment of this."""


@dataclass(frozen=True)
class TaskPartition(InputPartition):
    """One task as Spark's partition."""

    value: Task


def partitions_of(tasks: Sequence[Task]) -> list[InputPartition]:
    """Return a partition for each task."""
    return [TaskPartition(task) for task in tasks]


def read_partition(partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition. Spark sends `InputPartition(None)` for an empty range, 4.0 None alone."""
    return iter(()) if partition is None or partition.value is None else partition.value.read()
