"""Sinks of Spark, for batch writes and streaming writes. `connector.write.commit` explains how they write exactly once.

`df.write.format("ledger").mode("append").save("orders")` appends all rows or none. To *stage* rows is to write them to
files that readers do not see before the commit.

Rules of the batch sink
- A write is a query with a single batch. The driver names the query when it creates the writer. Spark pickles this
  writer, so tasks and commit have the same name.
- The options `txnAppId` and `txnVersion` name the write. A write of the same name is stored once, however often it is
  repeated, for example in `foreachBatch`.
- Overwriting is refused before anything is staged.

Rules of the streaming sink
- Spark creates one writer for the tasks of a query, and another writer for the commit of each batch. So `self` keeps
  nothing between batches.
- A task reads the query and the batch from Spark's task context, and puts both into its message to the commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter

from pyspark_ledger.connector.spark_errors import plain_errors
from pyspark_ledger.connector.spark_features import stream_writer_classes
from pyspark_ledger.connector.triggers import running_query
from pyspark_ledger.connector.write.commit import (
    PartMessage,
    abort_parts,
    application_query,
    commit_parts,
    is_repeated_task,
    is_written,
    nothing_staged,
    running_task,
    sink_client,
    stage_rows,
)
from pyspark_ledger.connector.write.target import SinkTarget
from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.errors import Unsupported

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage


@plain_errors
class LedgerBatchWriter(DataSourceArrowWriter):
    """Writer of a DataFrame. `application` is the write's `txnAppId` and `txnVersion`, None for an unnamed write."""

    def __init__(self, target: SinkTarget, version: str, application: tuple[str, int] | None = None) -> None:
        self._target = target
        self._version = version
        self._once = application is None
        app_id, self._batch = application or ("", 0)
        self._query = f"batch-{new_id()}" if self._once else application_query(target, app_id)
        self._repeated = not self._once and is_written(target, self._query, self._batch)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task on an executor. Consumes no rows if the batch was committed before."""
        if self._repeated:
            return nothing_staged(self._target, self._version, self._query, self._batch)
        return stage_rows(self._target, self._version, self._query, self._batch, iterator, running_task())

    def commit(self, messages: list[PartMessage | None]) -> None:  # type: ignore[override]
        """Make all rows visible at once. Runs on the driver."""
        commit_parts(self._target, self._version, messages, self._batch, once=self._once)

    def abort(self, messages: list[PartMessage | None]) -> None:  # type: ignore[override]
        abort_parts(self._target, messages, self._batch)


@plain_errors
class LedgerStreamWriter(*stream_writer_classes()):  # type: ignore[misc]  # the classes of the running Spark
    """Writer of micro-batches to a ledger, each exactly once."""

    def __init__(self, target: SinkTarget, version: str) -> None:
        self._target = target
        self._version = version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task on an executor. Consumes no rows if the batch was committed before."""
        query, batch = running_batch()
        if is_repeated_task(sink_client(self._target).call, self._target, query, batch):
            return nothing_staged(self._target, self._version, query, batch)
        return stage_rows(self._target, self._version, query, batch, iterator, running_task())

    def commit(self, messages: list[PartMessage | None], batchId: int) -> None:  # noqa: N803
        """Make the rows of the batch visible. Repeated calls append nothing. Runs on the driver."""
        commit_parts(self._target, self._version, messages, batchId)

    def abort(self, messages: list[PartMessage | None], batchId: int) -> None:  # noqa: N803
        abort_parts(self._target, messages, batchId)


def running_batch() -> tuple[str, int]:
    """Return the query and batch of the running task."""
    query, batch = running_query()
    if not query or batch is None:
        raise Unsupported(
            f"this task of a streaming write has query {query!r} and batch {batch!r} in its Spark context",
            hint="Exactly-once writes need query and batch. Use a Spark release that sets them, such as 4.2",
        )
    return query, int(batch)
