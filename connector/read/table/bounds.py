"""Where a read of a table and its log begins and ends in each log: values, but for times that only the table knows.

Rules
- Positions are positions, wherever the rows are: one before the log's beginning is good while the table reaches it.
- Of what the log still holds, times are the broker's, as in every read. Of what is only in the table there is the time
  of publishing, and it stands in: the first position that was published at or after the time that is wanted.
"""

from __future__ import annotations

from msgspec.structs import replace

from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.bounds import Bound, ReadBounds
from pyspark_ledger.connector.read.table.published_table import BEGINNING, HistoryTable
from pyspark_ledger.ledger.errors import DataLoss
from pyspark_ledger.ledger.position import EARLIEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import LogStatus
from pyspark_ledger.offload.table.rows import LogRows


class TableBounds(ReadBounds):
    """Both ends of such a read. A stream, too, begins with the first row unless something else is said."""

    def __init__(self, options: LedgerOptions, *, stream: bool) -> None:
        super().__init__(options, stream=stream)
        self._default = Bound(EARLIEST)

    def read_range(self, log: LogStatus, logs: int, table: HistoryTable) -> PositionRange:
        """What is read of a log, by its first reading of `logs` at once and by the table. Not empty backwards."""
        if log.name not in table.up_to:
            return PositionRange(self.start_position(log, logs), log.stop)
        start, end = self.start(log.name), self.end(log.name)
        first = BEGINNING if start.position == EARLIEST else log.begin
        first = first if start.timestamp_ms is None else _timed(log, start.timestamp_ms, log.begin, table)
        stop = log.stop if end.timestamp_ms is None else _timed(log, end.timestamp_ms, log.stop, table)
        begin = self.start_position(replace(log, start=BEGINNING, begin=first, stop=stop), logs)
        if begin < log.start and start.is_entry and not table.contains_from(log.name, begin):
            raise DataLoss(
                f"option {start.option!r} is {begin}, ledger {log.name} begins at {log.start}, and {table.snapshot} "
                "does not reach back to it",
                hint="Give a position within, or earliest",
            )
        return PositionRange(begin, max(begin, stop))

    def end_position(self, log: LogStatus, table: HistoryTable) -> Position:
        """Where a log ends for this read; LATEST is never an answer."""
        end = self.end(log.name).timestamp_ms
        return log.stop if end is None else _timed(log, end, log.stop, table)


def _timed(log: LogStatus, timestamp_ms: int, found: Position, table: HistoryTable) -> Position:
    """The position of a time, where the log says `found`: the table's, if it lies before all that the log holds."""
    if found > log.start:
        return found
    before = PositionRange(BEGINNING, min(log.start, table.after(log)))
    earlier = table.splitter.find_time(LogRows(log.incarnation, before), timestamp_ms) if before else None
    return found if earlier is None else earlier
