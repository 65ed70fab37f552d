"""The bounded read of a table and the log behind it: `spark.read.format("ledger").option("history", table)`.

Rules
- The version of the table is pinned first, the logs are looked at after it: what is published meanwhile is still read
  from the log. What was published and taken off the log in between is found in the next version.
- Every row is read once: from the table up to the last ledger that is in that version, from the log after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from connector.batch_reader import LedgerBatchReader, LedgerPartition
from connector.history_edges import HistoryEdges
from connector.history_partition import HistoryPart, fetch_history
from connector.history_table import WHOLE, HistoryRead, HistoryTable
from connector.ledger_read import LedgerRead
from connector.spark_face import spark_face
from ledger.errors import DataLoss
from ledger.survey_calls import Reading, Survey
from offload.table_rows import LogRows


@dataclass(frozen=True)
class HistoryPartition(InputPartition):
    """One task's share of the table."""

    value: HistoryPart


@spark_face
class HistoryBatchReader(LedgerBatchReader):
    """Plans both on the driver, reads their parts in tasks."""

    def partitions(self) -> Sequence[InputPartition]:
        """The parts of the table and of the logs, as they stand now; an empty range has none."""
        read, edges = LedgerRead(self._options, self._schema), HistoryEdges(self._options, stream=False)
        names, history = read.names(), HistoryRead(read)
        survey = read.survey({}, WHOLE, of=names)
        read.require_all(survey)
        table, strict = history.newest_of_its_own(survey.logs), True
        while True:
            survey = read.survey(edges.first_readings(names), of=names)
            table.require_reached(survey.logs)
            try:
                return self._both(read, edges, survey, history, table, strict=strict)
            except DataLoss:
                newest = history.newest(read.survey({}, WHOLE, of=names).logs)
                if newest.snapshot.version > table.snapshot.version:
                    table = newest
                elif self._options.fail_on_data_loss or not strict:
                    raise
                else:
                    strict = False

    def _both(
        self,
        read: LedgerRead,
        edges: HistoryEdges,
        survey: Survey,
        history: HistoryRead,
        table: HistoryTable,
        *,
        strict: bool,
    ) -> list[InputPartition]:
        published, left = {}, {}
        for log in survey.logs:
            whole = edges.range_of(log, len(survey.logs), table)
            there, rest = table.split(log.name, whole)
            published[log.name] = LogRows(log.incarnation, there)
            if rest:
                left[log.name] = Reading(rest.start, log.incarnation, until=rest.end)
        found: list[InputPartition] = [HistoryPartition(part) for part in history.parts(table, published)]
        return [*found, *(LedgerPartition(part) for part in read.tasks(self._pinned(read, left, strict=strict)))]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """On an executor: the rows of a part, of the table or of the log."""
        if partition is not None and isinstance(partition.value, HistoryPart):
            return fetch_history(partition.value)
        return super().read(partition)
