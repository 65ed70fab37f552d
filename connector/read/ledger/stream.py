"""Streams of ledgers: the driver's planner of batches, with the query's ledgers, subscription and last batch.

The page docs/concepts.md explains the words entry, cursor, lease, incarnation and delivery record.

Invariants
- The start of a query is determined once: by its checkpoint, else by its subscription's cursors, else by the options.
  With a subscription, the cursors store the start before batch 0 exists. Otherwise the offset at the end of batch 0
  also contains the start, because Spark stores no start.
- `tasks(start, end)` depends only on its arguments and on stored entries, which never change. Sizes that were measured
  when the batch was planned are reused, and do not change the result.
- If there are no rows to deliver, `latest` returns None, and there is no batch. The offset of the next batch also
  records the ledgers that were created or deleted meanwhile.
- A ledger that is found while the query runs is read from its beginning. Trigger.AvailableNow reads only the ledgers
  that existed at its start.
- A query acknowledges only entries of batches that Spark has committed. When Spark plans a batch, all entries before
  the start of this batch are committed. When Spark reports a commit, all entries up to the reported end are.
- Lost entries raise DataLoss. With `failOnDataLoss` false they are logged and reported once. They are never skipped
  silently.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_ledger.connector.connection import print_once
from pyspark_ledger.connector.options.options import LedgerOptions
from pyspark_ledger.connector.read.bounds import ReadBounds, subscription_warning
from pyspark_ledger.connector.read.data_loss import DataLossRange, find_loss, loss_of
from pyspark_ledger.connector.read.ledger.deliveries import NO_LIMIT, Deliveries, RedeliveryLimits
from pyspark_ledger.connector.read.ledger.prefetch_client import PrefetchClient
from pyspark_ledger.connector.read.ledger.scan import LedgerRead, sized_range, with_added_columns
from pyspark_ledger.connector.read.ledger.subscription import SubscribedLedgers
from pyspark_ledger.connector.read.limits import Delay, LedgerBacklog, Limits, Reason, admit_rows
from pyspark_ledger.connector.read.offsets import (
    LedgerOffset,
    LedgerRange,
    StreamOffset,
    batch_ranges,
    delivered,
    require_addressed,
    require_no_table,
    require_store,
    require_subscription,
)
from pyspark_ledger.connector.read.planner import StreamPlanner, Task
from pyspark_ledger.connector.read.progress import (
    ALL_AVAILABLE,
    AVAILABLE_NOW,
    ENDING,
    WAITING,
    LedgerLag,
    SourceIdentity,
    cache_between,
    reads_between,
    stream_report,
)
from pyspark_ledger.connector.read.redelivery import split_limits
from pyspark_ledger.connector.read.task_split import SizedRange
from pyspark_ledger.connector.rows.dead_letters import prepare_dead_letters
from pyspark_ledger.connector.spark_features import spark_features
from pyspark_ledger.ledger.errors import DataLoss
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.cache import CacheReads
from pyspark_ledger.ledger.protocol.cursors import UNLIMITED, Due
from pyspark_ledger.ledger.protocol.reads import LogStatus, LogStatuses, ReadProgress, SplitPart

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogStates:
    """States of a query's ledgers at one trigger: unread entries, changed start positions, deleted ledgers, losses."""

    statuses: LogStatuses
    backlogs: list[LedgerBacklog]
    logs: dict[str, LogStatus]
    start_positions: dict[str, Position] = field(default_factory=dict)
    deleted: Collection[str] = ()
    losses: Sequence[DataLossRange] = ()


class SizedRanges(NamedTuple):
    """Remaining ranges of a batch with their sizes, the lost entries, and the leases that the batch needs."""

    ranges: list[SizedRange]
    losses: list[DataLossRange]
    leases: dict[str, tuple[str, Position]]


class LedgerStream(StreamPlanner):
    """Plan of one execution of a query of ledgers.

    `latest` and `tasks` use the parts `refresh`, `plan_batch`, `measure` and `require`. A stream that also reads a
    table uses these parts in another order (`connector.read.table.stream`).
    """

    def __init__(
        self,
        options: LedgerOptions,
        schema: StructType | None = None,
        bounds: ReadBounds | None = None,
        *,
        read: LedgerRead | None = None,
    ) -> None:
        """`bounds` replaces the bounds that the options set, and `read` the read through the broker."""
        self.read = read or LedgerRead(options, schema)
        broker = self.read.broker
        self.subscriptions = SubscribedLedgers(broker, options.subscription)
        if self.subscriptions.anonymous_reader is not None:
            self.read.reader = self.subscriptions.anonymous_reader.reader
        if options.dead_letter_ledger:
            self.read.connection.call(lambda client: prepare_dead_letters(client, options.dead_letter_ledger))
        self.limits = Limits(options.max_rows_per_trigger, options.max_bytes_per_trigger)
        self.delay = Delay(options.min_rows_per_trigger or 0, options.max_trigger_delay)
        self.pinned_ends: dict[str, Position] | None = None
        self._pinned_ms: dict[str, int] = {}
        self.losses: dict[DataLossRange, None] = {}
        self._bounds = bounds or ReadBounds(options, stream=True)
        self._initial: StreamOffset | None = None
        self._log_states: LogStates | None = None
        self._parts: dict[str, SplitPart] = {}
        self._size_reason: Reason = "nothing"
        self._last_cache_reads: CacheReads | None = None
        self._sized_ranges: dict[LedgerRange, SizedRange] = {}
        self._explicit = options.ack_mode == "explicit"
        self._new_first = False
        self._prefetch_client = (
            None
            if broker is None
            else PrefetchClient(
                broker,
                self.read.reader,
                paced=options.pacing,
                mapping=options.mapping == "auto",
                direct=options.direct is not None,
            )
        )

    def initial(self) -> StreamOffset:
        """Return the start of a query without a checkpoint. Every call returns the same offset."""
        return self.initial_at(self._start_positions)

    def initial_at(self, start_positions: Callable[[LogStatuses], dict[str, Position]]) -> StreamOffset:
        """Return the start of a query without a checkpoint. `start_positions` returns the start of each ledger."""
        if self._initial is None:
            names = self.read.names()
            statuses = self.read.statuses(self._bounds.initial_progress(names), of=names)
            self.read.require_found(statuses)
            starts = start_positions(statuses)
            offsets = {log.name: LedgerOffset(starts[log.name], log.incarnation) for log in statuses.logs}
            if self._explicit:
                offsets = {name: self._resume_offset(name, at) for name, at in offsets.items()}
            self._initial = self.accepted(StreamOffset(offsets, initial=True))
        return self._initial

    def latest(self, start: StreamOffset, *, limited: bool) -> StreamOffset | None:
        """Return the end of the next batch from `start`; None if there are no rows, or too few rows yet."""
        start = self.accepted(start)
        return self.plan_batch(start, self.refresh(start), limited=limited)

    def plan_batch(self, start: StreamOffset, states: LogStates, *, limited: bool) -> StreamOffset | None:
        """Return the end of the next batch. `states` are the states of the ledgers from `start` on."""
        self.report_losses(states.losses)
        self.subscriptions.acquire({name: (log.incarnation, log.begin) for name, log in states.logs.items()})
        self.acknowledge(start)
        self.set_report(states, "waiting")
        must_wait = (
            limited and self.pinned_ends is None and self.delay.must_wait(states.backlogs, states.statuses.now_ms)
        )
        # Redelivered rows are not delayed, because they have waited for their timeout already.
        if must_wait and not (self._explicit and any(due.rows for due in self._due(start, states).values())):
            return None
        new_limits: Limits | None = self.limits if limited else Limits()
        redelivery_limits = NO_LIMIT
        if self._explicit and new_limits:
            new_limits, redelivery_limits = self._split_limits(start, states, new_limits)
        if new_limits is not None:
            self._parts, self._size_reason = admit_rows(states.backlogs, new_limits, self.read.split_by_limits)
        ends = (
            self._decide(start, states, redelivery_limits)
            if self.subscriptions.name is not None
            else self._range_ends(states)
        )
        if not ends:
            return None
        if self._prefetch_client is not None:
            self._prefetch_client.prefetch(
                {
                    name: (PositionRange(states.logs[name].begin, at.position), states.logs[name].size_bytes)
                    for name, at in ends.items()
                }
            )
        return self._batch_end(start, states, ends)

    def tasks(self, start: StreamOffset, end: StreamOffset) -> Sequence[Task]:
        self.accepted(end)
        require_no_table(end)
        tasks: list[Task] = self.read.tasks(self.require(self.measure(batch_ranges(start, end))))
        for name, at in self._existing(delivered(start, end)).items():
            self.subscriptions.acquire({name: (at.incarnation, at.position)})
            tasks += self._deliveries(name, at.incarnation).tasks(at.delivery)
        return tasks

    def acknowledge(self, offset: StreamOffset) -> None:
        """Acknowledge up to `offset`, the end of a batch that Spark has committed.

        With `ackMode` = `explicit` this method only checks the leases, because the sink acknowledges the rows.
        """
        if self._explicit:
            self.subscriptions.require_leases()
        else:
            self.subscriptions.acknowledge(offset)

    def set_report(self, states: LogStates, reason: Reason) -> None:
        """Set the state for the progress report of a batch that reads no entry of a ledger, and why it ends there."""
        self._log_states, self._parts, self._size_reason = states, {}, reason

    def report(self) -> dict[str, Any] | None:
        """Return the progress report of this trigger (`stream_report`); None before the first trigger."""
        if self._log_states is None:
            return None
        logs = self._log_states.logs
        ends = {name: self._parts[name].range.end if name in self._parts else log.begin for name, log in logs.items()}
        cursor = self.subscriptions.name or ""
        progress = {
            name: ReadProgress(at, logs[name].incarnation, cursor=cursor)
            for name, at in ends.items()
            if at < logs[name].end
        }
        left = self.read.statuses(progress, of=list(progress)) if progress else self._log_states.statuses
        backlogs = {log.name: log for log in left.logs if log.name in progress}
        lags = [LedgerLag(log, backlogs.get(name), left.now_ms) for name, log in logs.items()]
        cache_reads = self.read.cache_reads()
        reads, cache = (
            reads_between(self._last_cache_reads, cache_reads),
            cache_between(self._last_cache_reads, cache_reads),
        )
        self._last_cache_reads = cache_reads
        options = self.read.options
        # The session's listener acknowledges each subscription in the report, up to the committed end. With `ackMode` =
        # `explicit` this would include rows that the sink did not acknowledge. So the subscription is not reported
        # then.
        subscription = None if self._explicit else options.subscription
        store_id = self.read.store().store_id
        identity = SourceIdentity.of(self.read.location, store_id, subscription, options.credentials())
        # Spark without progress reports stores the report in the offset, from which `catch_up` takes the ends.
        complete = not spark_features().progress_report
        report = stream_report(identity, lags, self._ended_by(), reads, cache, list(self.losses), complete=complete)
        return with_added_columns(report, self.read)

    def pin_end(self) -> None:
        """Let this execution of the query end at the present end of each ledger (Trigger.AvailableNow).

        Later ledgers are not read. Each row is delivered at most once. The next execution redelivers rows if necessary.
        """
        self.read.refresh()
        statuses = self.read.statuses({})
        self.pinned_ends = {log.name: log.end for log in statuses.logs}
        for log in statuses.logs if self._explicit else ():
            has_cursor = self.subscriptions.cursor(log.name) is not None
            newest = self._deliveries(log.name, log.incarnation).newest() if has_cursor else None
            self._pinned_ms[log.name] = statuses.now_ms if newest is None else newest.now_ms

    def stop(self) -> None:
        self.subscriptions.stop()

    def _start_positions(self, statuses: LogStatuses) -> dict[str, Position]:
        """Return the start of each ledger: its cursor's position if it has a cursor, else the bound of the options."""
        cursors = {
            log.name: state for log in statuses.logs if (state := self.subscriptions.cursor(log.name)) is not None
        }
        starts = {name: state.next_position for name, state in cursors.items()}
        logs = len(statuses.logs)
        starts |= {log.name: self._bounds.start_position(log, logs) for log in statuses.logs if log.name not in cursors}
        leased = self.subscriptions.acquire({log.name: (log.incarnation, starts[log.name]) for log in statuses.logs})
        starts |= {name: state.next_position for name, state in leased.items()}
        existing = {name: starts[name] for name in leased if name in cursors}
        self.start_warning = subscription_warning(self.subscriptions.name or "", existing, self._bounds)
        return starts

    def refresh(self, start: StreamOffset) -> LogStates:
        """Return the states of the ledgers for a batch from `start`, with the lost entries."""
        self.read.refresh()
        names = self.read.names()
        progress = {name: self.read_progress(name, None) for name in names}
        progress |= {name: self.read_progress(name, at) for name, at in start.ledgers.items()}
        statuses = self.read.statuses(progress, ReadProgress(), of=names)
        logs = {log.name: log for log in statuses.logs if self.pinned_ends is None or log.name in self.pinned_ends}
        start_positions: dict[str, Position] = {}
        losses: list[DataLossRange] = []
        for name, log in logs.items():
            at = start.ledgers.get(name)
            incarnation, position = (log.incarnation, EARLIEST) if at is None else (at.incarnation, at.position)
            loss = loss_of(log, incarnation, PositionRange(position, LATEST))
            if loss is not None:
                losses.append(loss)
            if at is None or loss is not None:
                start_positions[name] = log.begin
        deleted = set(start.ledgers) - {log.name for log in statuses.logs}
        losses += deleted_losses(start, deleted)
        backlogs = [LedgerBacklog.of(log) for log in logs.values()]
        return LogStates(statuses, backlogs, logs, start_positions, deleted, losses)

    def read_progress(self, name: str, at: LedgerOffset | None) -> ReadProgress:
        """Return start and end of the read of a ledger. A ledger without an offset is read from its beginning."""
        end = self._bounds.end(name)
        until = end.position
        if self.pinned_ends is not None and name in self.pinned_ends:
            until = min(until or LATEST, self.pinned_ends[name])
        position, incarnation = (self._bounds.beginning, "") if at is None else (at.position, at.incarnation)
        return ReadProgress(
            position, incarnation, until=until, until_ms=end.timestamp_ms, cursor=self.subscriptions.name or ""
        )

    def _range_ends(self, states: LogStates) -> dict[str, LedgerOffset]:
        return {name: LedgerOffset(part.range.end, states.logs[name].incarnation) for name, part in self._parts.items()}

    def _split_limits(
        self, start: StreamOffset, states: LogStates, limits: Limits
    ) -> tuple[Limits | None, RedeliveryLimits]:
        """Return the limits of new rows (None: no new rows in this batch), and of redelivered rows."""
        shared = split_limits(limits, states.backlogs, self._due(start, states), new_first=self._new_first)
        if shared.alternates:
            self._new_first = not self._new_first
            self._size_reason = "limits"
        redelivery = shared.redelivered
        return shared.new, RedeliveryLimits(0, 0, first=False) if redelivery is None else RedeliveryLimits(
            redelivery.rows_max, redelivery.bytes_max
        )

    def _due(self, start: StreamOffset, states: LogStates) -> dict[str, Due]:
        """Return the rows of each ledger that are due for redelivery in the next batch, without a limit."""
        return {
            name: self._deliveries(name, log.incarnation).due(_delivered(start, states, name))
            for name, log in states.logs.items()
        }

    def _decide(self, start: StreamOffset, states: LogStates, limits: RedeliveryLimits) -> dict[str, LedgerOffset]:
        """Let the broker choose the rows of the batch in each ledger (`ackMode` = `explicit`). Return the ends."""
        ends = {}
        for name, log in states.logs.items():
            if name not in self._parts and not self._explicit:
                continue
            current = LedgerOffset(log.begin, log.incarnation, _delivered(start, states, name))
            end = self._parts[name].range.end if name in self._parts else log.begin
            decided = self._deliveries(name, log.incarnation).next(current, end, limits)
            limits = limits.remaining_after(decided)
            if decided.record or (decided.position != current.position and not self._explicit):
                ends[name] = LedgerOffset(decided.position, log.incarnation, decided.record)
        return ends

    def _deliveries(self, name: str, incarnation: str) -> Deliveries:
        return Deliveries(
            self.read, self.subscriptions.name or "", name, incarnation, self._pinned_ms.get(name, UNLIMITED)
        )

    def _resume_offset(self, name: str, at: LedgerOffset) -> LedgerOffset:
        newest = self._deliveries(name, at.incarnation).newest()
        return LedgerOffset(newest.position, at.incarnation, newest.record)

    def _batch_end(self, start: StreamOffset, states: LogStates, ends: dict[str, LedgerOffset]) -> StreamOffset:
        starts = {name: at for name, at in states.start_positions.items() if name in ends}
        parts = [
            sized_range(name, states.logs[name].incarnation, part)
            for name, part in self._parts.items()
            if name in ends and not ends[name].delivery and ends[name].position == part.range.end
        ]
        self._sized_ranges = {part.range: part for part in parts}
        return start.advanced(ends, starts, states.deleted)

    def _existing(self, offsets: dict[str, LedgerOffset]) -> dict[str, LedgerOffset]:
        """Return the offsets of ledgers with the same incarnation as before. Report all other ledgers as data loss."""
        if not offsets:
            return {}
        require_subscription(offsets, self.subscriptions.name)
        statuses, existing = self.read.statuses({}, of=list(offsets)), {}
        for name, at in offsets.items():
            loss = find_loss(name, at.incarnation, PositionRange(at.position, LATEST), statuses)
            if loss is None:
                existing[name] = at
            else:
                self.report_losses([loss])
        return existing

    def measure(self, ranges: list[LedgerRange]) -> SizedRanges:
        """Return the sizes of planned ranges. Entries lost since an earlier process planned a range are left out."""
        known = [self._sized_ranges[planned] for planned in ranges if planned in self._sized_ranges]
        if len(known) == len(ranges):
            return SizedRanges(known, [], {})
        progress = {log.ledger: ReadProgress(log.range.start, log.incarnation, until=log.range.end) for log in ranges}
        statuses = self.read.statuses(progress, of=list(progress))
        logs = {log.name: log for log in statuses.logs}
        measured = SizedRanges([], [], {})
        for planned in ranges:
            log = logs.get(planned.ledger)
            loss = (
                DataLossRange(planned.ledger, "deleted", planned.range)
                if log is None
                else loss_of(log, planned.incarnation, planned.range)
            )
            if loss is not None:
                measured.losses.append(loss)
            if log is None or log.incarnation != planned.incarnation:
                continue
            _require_reached(log, planned)
            measured.leases[planned.ledger] = (planned.incarnation, log.begin)
            left = PositionRange(log.begin, planned.range.end)
            measured.ranges.append(
                SizedRange(LedgerRange(planned.ledger, planned.incarnation, left), log.entries, log.size_bytes)
            )
        return measured

    def require(self, measured: SizedRanges) -> list[SizedRange]:
        """Report the losses of measured ranges, acquire their leases, and return the ranges."""
        self.report_losses(measured.losses)
        if measured.leases:
            self.subscriptions.acquire(measured.leases)
        return measured.ranges

    def report_losses(self, losses: Sequence[DataLossRange]) -> None:
        """Raise DataLoss if `failOnDataLoss` is set; else log each loss once.

        The same loss is found at every trigger until a batch ends after it.
        """
        for loss in losses:
            if self.read.options.fail_on_data_loss:
                raise loss.error()
            if loss not in self.losses:
                _log.warning("%s", loss)
                self.losses[loss] = None

    def _ended_by(self) -> str:
        """Return the reason of the batch's end, with the names of the options."""
        if self._size_reason == "waiting":
            return WAITING
        if self._size_reason == "limits":
            return str(self.limits)
        if self._size_reason == "one entry":
            return f"one entry above {self.limits}"
        logs = () if self._log_states is None else self._log_states.logs.values()
        if all(log.stop >= log.end for log in logs):
            return ALL_AVAILABLE
        return ENDING if self.pinned_ends is None else AVAILABLE_NOW

    def accepted(self, offset: StreamOffset) -> StreamOffset:
        """Return the offset as one of this store. Raises Refused if it is of another store or another query."""
        store = self.read.store()
        require_store(offset.store, store, self.read.former_ids)
        if offset.store is not None and offset.store.store_id != store.store_id:
            print_once(
                f"the checkpoint of {self.read.name} is of store {offset.store.store_id} at {offset.store.place}. "
                f"{store.place} is a copy of that store, and the next batch makes the checkpoint the copy's"
            )
        addressed = [name for name in offset.ledgers if self.read.addressing.addresses(name)]
        require_addressed(offset, addressed, self.read.name)
        return replace(offset, store=store)


def deleted_losses(start: StreamOffset, deleted: Collection[str]) -> list[DataLossRange]:
    """Return the losses of a query whose ledgers were deleted."""
    return [
        DataLossRange(name, "deleted", PositionRange(start.ledgers[name].position, LATEST)) for name in sorted(deleted)
    ]


def _delivered(start: StreamOffset, states: LogStates, name: str) -> int:
    """Return the number of the delivery record in a ledger's offset; 0 without one, or for a new incarnation."""
    at = start.ledgers.get(name)
    return at.delivery if at is not None and at.incarnation == states.logs[name].incarnation else 0


def _require_reached(log: LogStatus, planned: LedgerRange) -> None:
    if planned.range.end > log.end:
        raise DataLoss(
            f"ledger {log.name} ends at {log.end}, the checkpoint is at {planned.range.end}",
            hint="The store was restored from an older copy; start with a new checkpoint",
        )
