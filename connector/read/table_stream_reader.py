"""The stream that begins in a published table: `spark.readStream.format("ledger").option("history", table)`.

Rule: its offsets are those of every stream, and name the table beside. What is done is `connector.read.table.stream`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
from pyspark_ledger.connector.read.table.stream import HistoryDriver
from pyspark_ledger.connector.read.table.task import HistoryPart, fetch_history
from pyspark_ledger.connector.spark_errors import spark_face

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@spark_face
class HistoryStreamReader(LedgerStreamReader):
    """Spark's face of it."""

    def __init__(self, options: LedgerOptions, schema: StructType | None = None) -> None:
        super().__init__(options, schema)
        self._running: HistoryDriver | None = None

    @property
    def _driver(self) -> HistoryDriver:
        if self._running is None:
            self._running = HistoryDriver(self._options, self._schema)
        return self._running

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """On an executor: the rows of a part, of the table or of the log."""
        if partition is not None and isinstance(partition.value, HistoryPart):
            return fetch_history(partition.value)
        return super().read(partition)
