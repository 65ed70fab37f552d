"""The batch sink: `df.write.format("ledger").mode("append").save("orders")` appends all rows or none.

Rules: a write is a run of its own, named when the writer is made on the driver; Spark pickles the writer once, so tasks
and commit agree on the name. With `txnAppId` and `txnVersion` it has the name that they give it, and is written once
however often it is made: that is for `foreachBatch`. Overwriting is refused before anything is staged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter

from pyspark_ledger.connector.spark_errors import spark_face
from pyspark_ledger.connector.write.commit import (
    PartMessage,
    abort_parts,
    application_query,
    commit_parts,
    is_written,
    nothing_staged,
    running_task,
    stage_rows,
)
from pyspark_ledger.connector.write.target import SinkTarget
from pyspark_ledger.ledger.clock import new_id

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage


@spark_face
class LedgerBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame. `application`: its `txnAppId` and `txnVersion`, None for a write that stands alone."""

    def __init__(self, target: SinkTarget, version: str, application: tuple[str, int] | None = None) -> None:
        self._target = target
        self._version = version
        self._once = application is None
        app_id, self._batch = application or ("", 0)
        self._query = f"batch-{new_id()}" if self._once else application_query(target, app_id)
        self._repeated = not self._once and is_written(target, self._query, self._batch)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: stage the rows of one task; pull none where the batch is in the log already."""
        if self._repeated:
            return nothing_staged(self._target, self._version, self._query, self._batch)
        return stage_rows(self._target, self._version, self._query, self._batch, iterator, running_task())

    def commit(self, messages: list[PartMessage | None]) -> None:  # type: ignore[override]
        """On the driver: make all rows visible at once."""
        commit_parts(self._target, self._version, messages, self._batch, once=self._once)

    def abort(self, messages: list[PartMessage | None]) -> None:  # type: ignore[override]
        """On the driver: throw away what was staged."""
        abort_parts(self._target, messages, self._batch)
