"""Streams that start in a published table and continue in the ledgers (option `history`).

The page docs/concepts.md explains the words segment, entry and lease.

Invariants
- An offset is a position, as in every stream. A row has the same position in the table and in the ledger.
- The end offset of a batch has the version of the table that the batch reads. So a repeated batch has the same rows.
- The version of the table in an offset is the *pinned* version. Batches read this version in the order of positions and
  within the limits. Without limits, the first batch reads all of the table, and then the ledger.
- When the query has read the table, its batches read only the ledger. Retention may delete (*trim*) published segments
  from the ledger. So before the stream reports trimmed entries as lost, it looks for them in the newest version of the
  table.
- Positions in the table are not acknowledged. A subscription's cursor is in the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace as replaced

from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.data_loss import DataLossRange, recreated_loss
from pyspark_ledger.connector.read.ledger.stream import LedgerStream, LogStates, SizedRanges, deleted_losses
from pyspark_ledger.connector.read.limits import Limits, share_limits
from pyspark_ledger.connector.read.offsets import HistoryPin, LedgerOffset, LedgerRange, StreamOffset, batch_ranges
from pyspark_ledger.connector.read.planner import StreamPlanner, Task
from pyspark_ledger.connector.read.table.bounds import TableBounds
from pyspark_ledger.connector.read.table.published_table import BEGINNING, FROM_BEGINNING, HistoryRead, HistoryTable
from pyspark_ledger.ledger.position import LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.reads import LogStatus, LogStatuses
from pyspark_ledger.offload.table.limit_splitter import LimitSplit
from pyspark_ledger.offload.table.rows import LogRows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class _LogPlan:
    """Positions of one ledger in a batch: the start of the batch, the end of the table, and the end of the read."""

    log: LogStatus
    begin: Position
    table_end: Position
    stop: Position

    @property
    def published(self) -> LogRows:
        """Rows of the batch that are in the table."""
        return LogRows(self.log.incarnation, PositionRange(self.begin, min(self.table_end, self.stop)))

    @property
    def after_table(self) -> LedgerOffset:
        """Offset of the ledger after its published rows."""
        return LedgerOffset(max(self.begin, min(self.table_end, self.stop)), self.log.incarnation)


class TableStream(StreamPlanner):
    """Plan of one execution of a query. The query reads a table, and the ledgers that are published to this table."""

    def __init__(self, options: LedgerOptions, schema: StructType | None = None) -> None:
        self._bounds = TableBounds(options, stream=True)
        self._log = LedgerStream(options, schema, self._bounds)
        self._read = self._log.read
        self._history = HistoryRead(self._read)
        self._table: HistoryTable | None = None
        self._has_started = False

    def initial(self) -> StreamOffset:
        return self._log.initial_at(self._start_positions)

    def latest(self, start: StreamOffset, *, limited: bool) -> StreamOffset | None:
        """Return the end of the next batch from `start`; None if there are no rows, or too few rows yet."""
        start = self._log.accepted(start)
        self._history.remember(start.history)
        if not self._has_started:
            self._table, self._has_started = self._first_table(start), True
        end = self._next(start, limited=limited)
        if end is None or end.history is not None or not self._history.table_id:
            return end
        return replace(end, history=HistoryPin(self._history.table_id))

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[Task]:
        self._log.accepted(end)
        self._history.remember(end.history)
        ranges = batch_ranges(start, end)
        table = self._planned_table(end)
        published, measured = self._measured(ranges, table)
        newer = self._newer_table(table, measured.losses)
        if newer is not None:
            table = newer
            published, measured = self._measured(ranges, table)
        log_tasks = self._read.tasks(self._log.require(measured))
        return [*([] if table is None else self._history.tasks(table, published)), *log_tasks]

    def pin_end(self) -> None:
        self._log.pin_end()

    def acknowledge(self, end: StreamOffset) -> None:
        self._log.acknowledge(end)

    def report(self) -> dict[str, Any] | None:
        return self._log.report()

    def stop(self) -> None:
        self._log.stop()

    def _start_positions(self, statuses: LogStatuses) -> dict[str, Position]:
        """Return the start of each ledger, in the table or in the ledger."""
        names = [log.name for log in statuses.logs]
        table = self._history.newest_for_start(self._read.statuses({}, FROM_BEGINNING, of=names).logs)
        table.require_reached(self._read.statuses({}, of=names).logs)
        starts = {log.name: self._bounds.read_range(log, len(statuses.logs), table).start for log in statuses.logs}
        self._log.subscriptions.acquire(
            {log.name: (log.incarnation, max(starts[log.name], log.start)) for log in statuses.logs}
        )
        return starts

    def _first_table(self, start: StreamOffset) -> HistoryTable | None:
        """Return the newest version for a query that starts or continues in the table; None if it reads the ledger.

        The last batch may have read an older version. Positions are the same in all versions.
        """
        reads_table = start.initial or (start.history is not None and start.history.version >= 0)
        return self._newest_table() if reads_table else None

    def _planned_table(self, end: StreamOffset) -> HistoryTable | None:
        """Return the version that a batch was planned with. Without `failOnDataLoss`, return the newest version."""
        pin, incarnations = end.history, _incarnations(end)
        if pin is None or pin.version < 0:
            return None
        if self._table is not None and self._table.snapshot.version == pin.version:
            return HistoryTable(self._table.snapshot, pin.up_to, incarnations)
        if self._read.options.fail_on_data_loss:
            return self._history.pinned(pin, incarnations)
        return HistoryTable(self._history.newest([]).snapshot, pin.up_to, incarnations)

    def _newest_table(self) -> HistoryTable:
        return self._history.newest(self._read.statuses({}, FROM_BEGINNING, of=self._read.names()).logs)

    def _newer_table(self, current: HistoryTable | None, losses: Sequence[DataLossRange]) -> HistoryTable | None:
        """Return the newest version of the table if it has the first trimmed entries, which `current` lacks."""
        loss = next((loss for loss in losses if loss.cause == "trimmed"), None)
        if loss is None:
            return None
        newest = self._newest_table()
        return newest if _reaches_further(newest, current, loss) else None

    def _moves_on(self, losses: Sequence[DataLossRange]) -> bool:
        """Use the newest version of the table if it has trimmed entries. Then the batch is planned again."""
        newer = self._newer_table(self._table, losses)
        if newer is not None:
            self._table = newer
        return newer is not None

    def _next(self, start: StreamOffset, *, limited: bool) -> StreamOffset | None:
        """Return the end of a batch that reads the current version of the table, then the ledgers."""
        table = self._table
        if table is not None:
            plans, deleted, losses = self._log_plans(start, table)
            if self._moves_on(losses):
                return self._next(start, limited=limited)
            self._log.report_losses(losses)
            if any(plan.begin < min(plan.table_end, plan.stop) for plan in plans.values()):
                return self._next_of_table(start, table, plans, deleted, limited=limited)
            self._table = None
        states = self._log.refresh(start)
        if self._moves_on(states.losses):
            return self._next(start, limited=limited)
        return self._log.plan_batch(start, states, limited=limited)

    def _next_of_table(
        self, start: StreamOffset, table: HistoryTable, plans: dict[str, _LogPlan], deleted: set[str], *, limited: bool
    ) -> StreamOffset | None:
        limits = self._log.limits if limited else Limits()
        parts = _split_table(table, plans, limits)
        rows, whole = sum(part.rows for part in parts.values()), all(part.whole for part in parts.values())
        if rows and (limits or not whole):
            self._set_table_report(plans)
            offsets = {
                name: plan.after_table if parts[name].whole else LedgerOffset(parts[name].end, plan.log.incarnation)
                for name, plan in plans.items()
            }
            return _pinned_end(start, StreamOffset(offsets), plans, table, deleted)
        after_table = StreamOffset({name: plan.after_table for name, plan in plans.items()})
        states = self._log.refresh(after_table)
        if self._moves_on(states.losses):
            return self._next(start, limited=limited)
        end = self._log.plan_batch(after_table, states, limited=limited)
        if end is None and not rows:
            return None
        deleted |= set() if end is None else set(after_table.ledgers) - set(end.ledgers)
        return _pinned_end(start, end or after_table, plans, table, deleted)

    def _log_plans(
        self, start: StreamOffset, table: HistoryTable
    ) -> tuple[dict[str, _LogPlan], set[str], list[DataLossRange]]:
        """Return the plans of a batch's ledgers, the deleted ledgers, and the lost entries.

        Lost entries are neither in the table nor in the ledger.
        """
        names = self._read.names()
        statuses = self._read.statuses(
            {name: replaced(self._log.read_progress(name, None), count=False) for name in names}, of=names
        )
        table.require_reached(statuses.logs)
        plans: dict[str, _LogPlan] = {}
        losses, pinned_ends = list[DataLossRange](), self._log.pinned_ends
        for log in statuses.logs:
            if pinned_ends is not None and log.name not in pinned_ends:
                continue
            at = start.ledgers.get(log.name)
            begin, table_end = BEGINNING if at is None else at.position, table.after(log)
            if at is not None and at.incarnation != log.incarnation:
                losses.append(recreated_loss(log, at.incarnation, PositionRange(begin, LATEST)))
                begin = table_end = BEGINNING
            elif begin < min(table_end, log.start) and not table.contains_from(log.name, begin):
                losses.append(DataLossRange(log.name, "trimmed", PositionRange(begin, min(table_end, log.start))))
            stop = self._bounds.end_position(log, table)
            stop = stop if pinned_ends is None else min(stop, pinned_ends[log.name])
            plans[log.name] = _LogPlan(log, begin, table_end, max(stop, begin))
        deleted = set(start.ledgers) - {log.name for log in statuses.logs}
        return plans, deleted, [*losses, *deleted_losses(start, deleted)]

    def _set_table_report(self, plans: Mapping[str, _LogPlan]) -> None:
        """Set the state for the progress report of a batch that reads only the table, and renew leases."""
        logs = {name: replaced(plan.log, begin=plan.after_table.position) for name, plan in plans.items()}
        self._log.subscriptions.acquire({name: (log.incarnation, log.begin) for name, log in logs.items()})
        states = LogStates(self._read.statuses({}, of=list(logs)), [], logs)
        self._log.set_report(states, "limits" if self._log.limits else "everything")

    def _measured(
        self, ranges: Sequence[LedgerRange], table: HistoryTable | None
    ) -> tuple[dict[str, LogRows], SizedRanges]:
        """Return the rows of planned ranges that are in the table, and the sizes of the other ranges."""
        published, unpublished = {}, []
        for planned in ranges:
            in_table, rest = (PositionRange(planned.range.start, planned.range.start), planned.range)
            if table is not None:
                in_table, rest = table.split(planned.ledger, planned.range)
            published[planned.ledger] = LogRows(planned.incarnation, in_table)
            unpublished += [LedgerRange(planned.ledger, planned.incarnation, rest)] if rest else []
        return published, self._log.measure(unpublished)


def _split_table(table: HistoryTable, plans: Mapping[str, _LogPlan], limits: Limits) -> dict[str, LimitSplit]:
    """Return the part of each ledger that a batch reads from the table."""

    def take(plan: _LogPlan, rows: int, size_bytes: int) -> tuple[LimitSplit, int, int]:
        part = table.splitter.split(plan.published, rows, size_bytes)
        return part, part.rows, part.size_bytes

    parts = share_limits(list(plans.values()), limits, take)
    return {name: part for name, (part, _, _) in zip(plans, parts, strict=True)}


def _pinned_end(
    start: StreamOffset, end: StreamOffset, plans: Mapping[str, _LogPlan], table: HistoryTable, deleted: Collection[str]
) -> StreamOffset:
    """Return the end of a batch that reads the table. It has the table's version, and the starts of new ledgers."""
    incarnations = {name: at.incarnation for name, at in start.ledgers.items()}
    starts = {name: at for name, at in end.start_positions.items() if name not in plans}
    starts |= {name: plan.begin for name, plan in plans.items() if incarnations.get(name) != plan.log.incarnation}
    up_to = {name: table.up_to[name] for name, plan in plans.items() if plan.table_end != BEGINNING}
    pin = HistoryPin(table.snapshot.table_id, table.snapshot.version, up_to)
    return replace(start.advanced(end.ledgers, starts, deleted), history=pin)


def _incarnations(offset: StreamOffset) -> dict[str, str]:
    return {name: at.incarnation for name, at in offset.ledgers.items()}


def _reaches_further(newest: HistoryTable, current: HistoryTable | None, loss: DataLossRange) -> bool:
    """Return whether the newest version of the table has the trimmed entries, and the current version lacks them."""
    name, start = loss.ledger, loss.range.start
    if current is not None and newest.up_to.get(name, -1) <= current.up_to.get(name, -1):
        return False
    return newest.up_to.get(name, -1) >= start.ledger_id and newest.contains_from(name, start)
