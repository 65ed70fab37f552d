"""The batch sink: `df.write.format("ledger").mode("append").save("orders")` appends all rows or none.

Rules: a write is a run of its own, named when the writer is made on the driver; Spark pickles the writer once, so tasks
and commit agree on the name. Overwriting is refused before anything is staged: a log is appended to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter

from connector.sink_run import PartMessage, SinkTarget, abort_parts, commit_parts, stage_rows
from ledger.clock import new_id

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage

_BATCH = 0


class LedgerBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame to a ledger."""

    def __init__(self, target: SinkTarget, version: str) -> None:
        self._target = target
        self._version = version
        self._write = f"batch-{new_id()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: stage the rows of one task."""
        return stage_rows(self._target, self._version, self._write, _BATCH, iterator)

    def commit(self, messages: list[PartMessage | None]) -> None:  # type: ignore[override]
        """On the driver: make all rows visible at once."""
        commit_parts(self._target, self._version, messages, _BATCH, once=True)

    def abort(self, messages: list[PartMessage | None]) -> None:  # type: ignore[override]
        """On the driver: throw away what was staged."""
        abort_parts(self._target, messages, _BATCH)
