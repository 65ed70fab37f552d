"""Start and end bounds of a read of a published table and its ledgers.

Rules
- A row has the same position in table and ledger. A position before the ledger's start is valid if the table has it.
- A read with a start time starts at the first row at or after this time. The time of a row in the ledger is the time at
  which the broker stored its entry. The time of a row that only the table has is its publish time. An end time is
  compared in the same way.
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
    """Start and end bounds of a read of a table. The default start is the earliest position, also for a stream."""

    beginning = BEGINNING  # may be in the table

    def __init__(self, options: LedgerOptions, *, stream: bool) -> None:
        super().__init__(options, stream=stream)
        self._default = Bound(EARLIEST)

    def read_range(self, log: LogStatus, logs: int, table: HistoryTable) -> PositionRange:
        """Return the range of a ledger that is read. `logs` is the number of ledgers in the read.

        `log` is the broker's answer to the first status request of the read, made with `initial_progress`.

        Raises DataLoss if neither ledger nor table has the start position.
        """
        if log.name not in table.up_to:
            return PositionRange(self.start_position(log, logs), log.stop)
        start, end = self.start(log.name), self.end(log.name)
        first = BEGINNING if start.position == EARLIEST else log.begin
        first = first if start.timestamp_ms is None else _time_position(log, start.timestamp_ms, log.begin, table)
        stop = log.stop if end.timestamp_ms is None else _time_position(log, end.timestamp_ms, log.stop, table)
        begin = self.start_position(replace(log, start=BEGINNING, begin=first, stop=stop), logs)
        if begin < log.start and start.is_entry and not table.contains_from(log.name, begin):
            raise DataLoss(
                f"option {start.option!r} is {begin}, ledger {log.name} begins at {log.start}, and {table.snapshot} "
                "begins later, too",
                hint="Give a position that the table has, or earliest",
            )
        return PositionRange(begin, max(begin, stop))

    def end_position(self, log: LogStatus, table: HistoryTable) -> Position:
        """Return the end of a ledger in this read, as the position of an entry."""
        end = self.end(log.name).timestamp_ms
        return log.stop if end is None else _time_position(log, end, log.stop, table)


def _time_position(log: LogStatus, timestamp_ms: int, log_position: Position, table: HistoryTable) -> Position:
    """Return the position of a time. A position that only the table has takes precedence over `log_position`."""
    if log_position > log.start:
        return log_position
    before = PositionRange(BEGINNING, min(log.start, table.after(log)))
    earlier = table.splitter.find_time(LogRows(log.incarnation, before), timestamp_ms) if before else None
    return log_position if earlier is None else earlier
