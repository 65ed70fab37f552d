"""What a running query holds on the driver that begins in a published table and goes on in the log.

Invariants
- An offset is a position, as in every stream: where its rows are, in the table or in the log, is another matter, and
  can change while the query runs. A batch is a range of positions and says in its end which version of the table its
  first part is read from; so it is the same batch whenever it is planned again.
- A batch is of the table, in the order of positions and by the same limits, until all is read that was published when
  that version was pinned. Without limits it goes on in the log at once.
- What follows is read from the log. Where the log has let go of it, which it may once it is published, the newest
  version of the table is asked before anything is called lost.
- Nothing is acknowledged: a table holds nothing back, and a subscription's place is in the log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec.structs import replace as replaced

from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.data_loss import DataLossRange, recreated_loss
from pyspark_ledger.connector.read.ledger.stream import LedgerStream, LogStates
from pyspark_ledger.connector.read.limits import Limits, share_limits
from pyspark_ledger.connector.read.offsets import HistoryPin, LedgerOffset, LedgerRange, StreamOffset, batch_ranges
from pyspark_ledger.connector.read.planner import Task
from pyspark_ledger.connector.read.table.bounds import TableBounds
from pyspark_ledger.connector.read.table.published_table import BEGINNING, FROM_BEGINNING, HistoryRead, HistoryTable
from pyspark_ledger.ledger.errors import Unsupported
from pyspark_ledger.ledger.position import LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import LogStatus, LogStatuses, ReadProgress
from pyspark_ledger.offload.table.limit_splitter import LimitSplit
from pyspark_ledger.offload.table.rows import LogRows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class _Trimmed(Exception):
    """The log lacks what was to be read, and a table may have it."""

    def __init__(self, loss: DataLossRange) -> None:
        super().__init__(str(loss))
        self.loss = loss


@dataclass(frozen=True, slots=True)
class _LogPlan:
    """One log in a batch: where the batch begins, where the table's part of it ends, where the log's begins."""

    log: LogStatus
    begin: Position
    table_end: Position
    stop: Position

    @property
    def published(self) -> LogRows:
        return LogRows(self.log.incarnation, PositionRange(self.begin, min(self.table_end, self.stop)))

    @property
    def behind(self) -> LedgerOffset:
        """Where the log goes on once that is read."""
        return LedgerOffset(max(self.begin, min(self.table_end, self.stop)), self.log.incarnation)


class TableStream(LedgerStream):
    """Plan of one run of one query of a table and of the ledgers that are published to it."""

    def __init__(self, options: LedgerOptions, schema: StructType | None = None) -> None:
        super().__init__(options, schema)
        self._bounds = self._table_bounds = TableBounds(options, stream=True)
        self._history = HistoryRead(self.read)
        self._table: HistoryTable | None = None
        self._has_started = False
        self._may_retry = False

    def latest(self, start: StreamOffset, *, limited: bool) -> StreamOffset | None:
        """The end of the next batch from `start`; None when there is no row to deliver, or not yet."""
        self._require_addressed(start)
        self._history.remember(start.history)
        if not self._has_started:
            self._table, self._has_started = self._first_table(start), True
        while True:
            self._may_retry = True
            try:
                end = self._next(start, limited=limited)
            except _Trimmed as found:
                newest = self._newest_table()
                self._may_retry = False
                if _reaches_further(newest, self._table, found.loss):
                    self._table = newest
                    continue
                end = self._next(start, limited=limited)
            if end is None or end.history is not None or not self._history.table_id:
                return end
            return replace(end, history=HistoryPin(self._history.table_id))

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[Task]:
        self._require_addressed(end)
        self._history.remember(end.history)
        ranges = batch_ranges(start, end)
        table = self._planned_table(end)
        self._may_retry = True
        try:
            return self._planned_tasks(ranges, table)
        except _Trimmed as found:
            newest = self._newest_table()
            self._may_retry = False
            return self._planned_tasks(ranges, newest if _reaches_further(newest, table, found.loss) else table)

    def latest_without_start(self) -> StreamOffset:
        """Refused: such a Spark does not say where a batch begins."""
        raise Unsupported("option 'history' of a stream needs Spark 4.2", hint="Read the table and the log in a batch")

    def _start_positions(self, statuses: LogStatuses) -> dict[str, Position]:
        """Where each log begins, in the table or in the log."""
        names = [log.name for log in statuses.logs]
        table = self._history.newest_for_start(self.read.statuses({}, FROM_BEGINNING, of=names).logs)
        table.require_reached(self.read.statuses({}, of=names).logs)
        begins = {
            log.name: self._table_bounds.read_range(log, len(statuses.logs), table).start for log in statuses.logs
        }
        self.subscriptions.acquire(
            {log.name: (log.incarnation, max(begins[log.name], log.start)) for log in statuses.logs}
        )
        return begins

    def _first_table(self, start: StreamOffset) -> HistoryTable | None:
        """The version that a query begins or goes on with; None for one that reads the log by now.

        The newest, also where the last batch read another: that one is done, and positions are the same in all.
        """
        reads_table = start.initial or (start.history is not None and start.history.version >= 0)
        return self._newest_table() if reads_table else None

    def _planned_table(self, end: StreamOffset) -> HistoryTable | None:
        """The version that a batch was planned with; without `failOnDataLoss` the newest, where it is planned again."""
        pin, incarnations = end.history, _incarnations(end)
        if pin is None or pin.version < 0:
            return None
        if self._table is not None and self._table.snapshot.version == pin.version:
            return HistoryTable(self._table.snapshot, pin.up_to, incarnations)
        if self.read.options.fail_on_data_loss:
            return self._history.pinned(pin, incarnations)
        return HistoryTable(self._history.newest([]).snapshot, pin.up_to, incarnations)

    def _newest_table(self) -> HistoryTable:
        return self._history.newest(self.read.statuses({}, FROM_BEGINNING, of=self.read.names()).logs)

    def _next(self, start: StreamOffset, *, limited: bool) -> StreamOffset | None:
        """The end of a batch by what is known of the table; raises _Trimmed when that might be too old."""
        table = self._table
        if table is None:
            return super().latest(start, limited=limited)
        places, gone = self._log_plans(start, table)
        if all(one.begin >= min(one.table_end, one.stop) for one in places.values()):
            self._table = None
            return super().latest(start, limited=limited)
        limits = self.limits if limited else Limits()
        taken = _admitted(table, places, limits)
        rows, whole = sum(one.rows for one in taken.values()), all(one.whole for one in taken.values())
        if rows and (limits or not whole):
            self._set_table_report(places)
            moved = {
                name: one.behind if taken[name].whole else LedgerOffset(taken[name].end, one.log.incarnation)
                for name, one in places.items()
            }
            return _pinned_end(start, StreamOffset(moved), places, table, gone)
        behind = StreamOffset({name: one.behind for name, one in places.items()})
        end = super().latest(behind, limited=limited)
        if end is None and not rows:
            return None
        gone |= set() if end is None else set(behind.ledgers) - set(end.ledgers)
        return _pinned_end(start, end or behind, places, table, gone)

    def _log_plans(self, start: StreamOffset, table: HistoryTable) -> tuple[dict[str, _LogPlan], set[str]]:
        """Where the logs of a batch are read, and which are gone; notes what is in neither place."""
        names = self.read.names()
        statuses = self.read.statuses(
            {name: replaced(self._read_progress(name, None), count=False) for name in names}, of=names
        )
        table.require_reached(statuses.logs)
        places = {}
        for log in statuses.logs:
            if self.pinned_ends is not None and log.name not in self.pinned_ends:
                continue
            at = start.ledgers.get(log.name)
            begin, table_end = BEGINNING if at is None else at.position, table.after(log)
            if at is not None and at.incarnation != log.incarnation:
                self._report_loss(recreated_loss(log, at.incarnation, PositionRange(begin, LATEST)))
                begin = table_end = BEGINNING
            elif begin < min(table_end, log.start) and not table.contains_from(log.name, begin):
                self._report_loss(DataLossRange(log.name, "trimmed", PositionRange(begin, min(table_end, log.start))))
            stop = self._table_bounds.end_position(log, table)
            stop = stop if self.pinned_ends is None else min(stop, self.pinned_ends[log.name])
            places[log.name] = _LogPlan(log, begin, table_end, max(stop, begin))
        gone = set(start.ledgers) - {log.name for log in statuses.logs}
        for name in sorted(gone):
            self._report_loss(DataLossRange(name, "deleted", PositionRange(start.ledgers[name].position, LATEST)))
        return places, gone

    def _set_table_report(self, places: Mapping[str, _LogPlan]) -> None:
        """What progress says of a batch that is of the table alone; that the query is alive."""
        logs = {name: replaced(one.log, begin=one.behind.position) for name, one in places.items()}
        self.subscriptions.acquire({name: (log.incarnation, log.begin) for name, log in logs.items()})
        self._log_states = LogStates(self.read.statuses({}, of=list(logs)), [], logs)
        self._parts, self._size_reason = {}, "limits" if self.limits else "everything"

    def _planned_tasks(self, ranges: Sequence[LedgerRange], table: HistoryTable | None) -> list[Task]:
        wanted, left = {}, []
        for one in ranges:
            there, rest = (PositionRange(one.range.start, one.range.start), one.range)
            if table is not None:
                there, rest = table.split(one.ledger, one.range)
            wanted[one.ledger] = LogRows(one.incarnation, there)
            left += [LedgerRange(one.ledger, one.incarnation, rest)] if rest else []
        known = [self._sized_ranges[one] for one in left if one in self._sized_ranges]
        measured = known if len(known) == len(left) else self._measure(left)
        published = [] if table is None else self._history.tasks(table, wanted)
        return [*published, *self.read.tasks(measured)]

    def _read_progress(self, name: str, at: LedgerOffset | None) -> ReadProgress:
        """A log that is found while the query runs has its beginning in the table, if the log has let go of it."""
        reading = super()._read_progress(name, at)
        return replaced(reading, position=BEGINNING) if at is None else reading

    def _refresh(self, start: StreamOffset) -> LogStates:
        states = super()._refresh(start)
        for name, log in states.logs.items():
            if name not in start.ledgers and log.trimmed is not None:
                self._report_loss(DataLossRange.of_trimmed(name, log.trimmed))
        return states

    def _report_loss(self, loss: DataLossRange) -> None:
        """Before anything is called lost the newest version of the table is asked."""
        if self._may_retry and loss.cause == "trimmed":
            raise _Trimmed(loss)
        super()._report_loss(loss)


def _admitted(table: HistoryTable, places: Mapping[str, _LogPlan], limits: Limits) -> dict[str, LimitSplit]:
    """Return what a batch takes of the table, by log."""

    def reach(place: _LogPlan, rows: int, size_bytes: int) -> tuple[LimitSplit, int, int]:
        reached = table.splitter.split(place.published, rows, size_bytes)
        return reached, reached.rows, reached.size_bytes

    taken = share_limits(list(places.values()), limits, reach)
    return {name: reached for name, (reached, _, _) in zip(places, taken, strict=True)}


def _pinned_end(
    start: StreamOffset, end: StreamOffset, places: Mapping[str, _LogPlan], table: HistoryTable, gone: Collection[str]
) -> StreamOffset:
    """The end of a batch of which a part is in the table; where logs begin that `start` does not have is in it."""
    known = {name: at.incarnation for name, at in start.ledgers.items()}
    began = {name: at for name, at in end.start_positions.items() if name not in places}
    began |= {name: one.begin for name, one in places.items() if known.get(name) != one.log.incarnation}
    up_to = {name: table.up_to[name] for name, one in places.items() if one.table_end != BEGINNING}
    pin = HistoryPin(table.snapshot.table_id, table.snapshot.version, up_to)
    return replace(start.advanced(end.ledgers, began, gone), history=pin)


def _incarnations(offset: StreamOffset) -> dict[str, str]:
    return {name: at.incarnation for name, at in offset.ledgers.items()}


def _reaches_further(newest: HistoryTable, known: HistoryTable | None, loss: DataLossRange) -> bool:
    """Whether a version of the table has what the log lacks, and the one that was asked did not say so."""
    name, start = loss.ledger, loss.range.start
    if known is not None and newest.up_to.get(name, -1) <= known.up_to.get(name, -1):
        return False
    return newest.up_to.get(name, -1) >= start.ledger_id and newest.contains_from(name, start)
