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
from pyspark_ledger.connector.write.checkpoint import Checkpoint
from pyspark_ledger.connector.write.commit import (
    BatchEvidence,
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

    from pyspark_ledger.ledger.protocol.commits import RepeatedBatches


@plain_errors
class LedgerBatchWriter(DataSourceArrowWriter):
    """Writer of a DataFrame. `application` is the write's `txnAppId` and `txnVersion`, None for an unnamed write."""

    def __init__(self, target: SinkTarget, version: str, application: tuple[str, int] | None) -> None:
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
        evidence = BatchEvidence(query=self._query, named=not self._once)
        commit_parts(self._target, self._version, messages, self._batch, evidence, once=self._once)

    def abort(self, messages: list[PartMessage | None]) -> None:  # type: ignore[override]
        abort_parts(self._target, messages, self._batch)


@plain_errors
class LedgerStreamWriter(*stream_writer_classes()):  # type: ignore[misc]  # the classes of the running Spark
    """Writer of micro-batches to a ledger, each exactly once. `checkpoint` is option `checkpointLocation`, or empty."""

    def __init__(
        self, target: SinkTarget, version: str, checkpoint: str = "", repeated: RepeatedBatches = "refuse"
    ) -> None:
        self._target = target
        self._version = version
        self._checkpoint = checkpoint
        self._repeated = repeated
        # Called on the driver for each batch, when Spark has recorded the offsets of the batch.
        self._readable_query = self._opened().query()

    def _opened(self) -> Checkpoint:
        return Checkpoint(self._checkpoint, self._target.uploads)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task on an executor. Consumes no rows if offsets will show that they are stored."""
        query, batch = running_batch()
        knows_offsets = self._readable_query == query
        may_skip = knows_offsets and self._repeated != "append"
        if may_skip and is_repeated_task(sink_client(self._target).ask, self._target, query, batch):
            return nothing_staged(self._target, self._version, query, batch)
        summed = not knows_offsets
        return stage_rows(self._target, self._version, query, batch, iterator, running_task(), summed=summed)

    def commit(self, messages: list[PartMessage | None], batchId: int) -> None:  # noqa: N803
        """Make the rows of the batch visible. Repeated calls append nothing. Runs on the driver."""
        evidence = BatchEvidence(self._opened(), self._repeated)
        commit_parts(self._target, self._version, messages, batchId, evidence)

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
