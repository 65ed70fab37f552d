"""The bounded read, `spark.read.format("ledger").load("orders")`: its start and end are pinned when it is planned.

Rule: filters are not taken over (`pushFilters` stays as it is): in Spark 4.2 what one scan pushed would leak into later
scans of the same DataFrame. Narrow a read by its options.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.bounds import ReadEdges
from pyspark_ledger.connector.read.data_loss import loss_in
from pyspark_ledger.connector.read.ledger.scan import LedgerRead
from pyspark_ledger.connector.read.ledger.task import LedgerPartition, fetch
from pyspark_ledger.connector.read.offsets import LedgerRange
from pyspark_ledger.connector.read.task_split import SizedRange
from pyspark_ledger.connector.spark_errors import spark_face
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.reads import ReadProgress

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)


@spark_face
class LedgerBatchReader(DataSourceReader):
    """Plans a range on the driver, reads its parts in tasks."""

    def __init__(self, options: LedgerOptions, schema: StructType | None = None) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The parts of the range, as the logs stand now; an empty range has none."""
        read, edges = LedgerRead(self._options, self._schema), ReadEdges(self._options, stream=False)
        names = read.names()
        survey = read.survey(edges.first_readings(names), of=names)
        read.require_all(survey)
        readings = {
            log.name: ReadProgress(edges.begin(log, len(survey.logs)), log.incarnation, until=log.stop)
            for log in survey.logs
        }
        return [
            LedgerPartition(part)
            for part in read.tasks(self._pinned(read, readings, strict=self._options.fail_on_data_loss))
        ]

    @staticmethod
    def _pinned(read: LedgerRead, readings: Mapping[str, ReadProgress], *, strict: bool) -> list[SizedRange]:
        """What there is to read, measured; raises DataLoss, or leaves out, what has gone since the first look."""
        survey = read.survey(readings, of=list(readings))
        for name, reading in readings.items():
            wanted = PositionRange(reading.position or EARLIEST, reading.until or LATEST)
            loss = loss_in(name, reading.incarnation, wanted, survey) if wanted else None
            if loss is not None and strict:
                raise loss.error()
            if loss is not None:
                _log.warning("%s", loss)
        logs = [log for log in survey.logs if log.incarnation == readings[log.name].incarnation]
        return [
            SizedRange(
                LedgerRange(log.name, log.incarnation, PositionRange(log.begin, log.stop)), log.entries, log.size_bytes
            )
            for log in logs
        ]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """On an executor: the rows of a part. For an empty range Spark sends `InputPartition(None)`, 4.0 None alone."""
        return iter(()) if partition is None or partition.value is None else fetch(partition.value)
