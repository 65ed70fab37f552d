"""What a running query holds on the driver: its ledgers, its subscription, and what was decided so far.

Invariants
- Where a query begins is decided once: by its checkpoint, else by its subscription's cursors, else by the options.
  With a subscription it is in the cursors before batch 0 exists; without one it travels in batch 0's end.
- `tasks(start, end)` is a function of its arguments and the logs alone; what was measured when the batch was
  planned is remembered, and gives the same answer.
- With nothing to deliver, `latest` answers None: the start stays as it came, whatever was found or lost meanwhile.
- A ledger that is found while the query runs is read from its beginning. AvailableNow knows those of its start only.
- Acknowledged is only what is in Spark's commit log: `start` of the next batch, or a committed end.
- Lost entries are an error, or counted once and reported. Nothing is passed over in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
    require_subscription,
)
from pyspark_ledger.connector.read.planner import StreamPlanner, Task
from pyspark_ledger.connector.read.progress import (
    ALL_THERE_WAS,
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
from pyspark_ledger.ledger.errors import DataLoss, Unsupported
from pyspark_ledger.ledger.position import LATEST, Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import Empty
from pyspark_ledger.ledger.protocol.cache import CacheReads
from pyspark_ledger.ledger.protocol.cursors import UNLIMITED, Due
from pyspark_ledger.ledger.protocol.reads import LogStatus, LogStatuses, ReadProgress, SplitPart

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogStates:
    """How the ledgers of a query stood when it asked: what each has left, where it goes on, which are gone."""

    statuses: LogStatuses
    backlogs: list[LedgerBacklog]
    logs: dict[str, LogStatus]
    start_positions: dict[str, Position] = field(default_factory=dict)
    deleted: Collection[str] = ()


class LedgerStream(StreamPlanner):
    """Plan of one run of one query of ledgers."""

    def __init__(self, options: LedgerOptions, schema: StructType | None = None) -> None:
        self.read = LedgerRead(options, schema)
        self.subscriptions = SubscribedLedgers(self.read.connection, options.subscription)
        if self.subscriptions.anonymous_reader is not None:
            self.read.reader = self.subscriptions.anonymous_reader.reader
        if options.dead_letter_ledger:
            self.read.connection.call(lambda client: prepare_dead_letters(client, options.dead_letter_ledger))
        self.limits = Limits(options.max_rows_per_trigger, options.max_bytes_per_trigger)
        self.delay = Delay(options.min_rows_per_trigger or 0, options.max_trigger_delay)
        self.pinned_ends: dict[str, Position] | None = None
        self._pinned_ms: dict[str, int] = {}
        self.losses: dict[DataLossRange, None] = {}
        self._bounds = ReadBounds(options, stream=True)
        self._initial: StreamOffset | None = None
        self._last_end: StreamOffset | None = None
        self._log_states: LogStates | None = None
        self._parts: dict[str, SplitPart] = {}
        self._size_reason: Reason = "nothing"
        self._last_cache_reads: CacheReads | None = None
        self._sized_ranges: dict[LedgerRange, SizedRange] = {}
        self._explicit = options.ack_mode == "explicit"
        self._new_first = False
        self._prefetch_client = PrefetchClient(
            self.read.connection, self.read.reader, paced=options.pacing, mapping=options.mapping == "auto"
        )

    def initial(self) -> StreamOffset:
        """Where the query begins without a checkpoint; the same answer however often it is asked."""
        if self._initial is None:
            names = self.read.names()
            statuses = self.read.statuses(self._bounds.initial_progress(names), of=names)
            self.read.require_found(statuses)
            begins = self._start_positions(statuses)
            offsets = {log.name: LedgerOffset(begins[log.name], log.incarnation) for log in statuses.logs}
            if self._explicit:
                offsets = {name: self._resume_offset(name, at) for name, at in offsets.items()}
            self._initial = StreamOffset(offsets, initial=True)
        return self._initial

    def latest(self, start: StreamOffset, *, limited: bool) -> StreamOffset | None:
        """The end of the next batch from `start`; None when there is no row to deliver, or not yet."""
        states = self._refresh(start)
        self.subscriptions.acquire({name: (log.incarnation, log.begin) for name, log in states.logs.items()})
        self.acknowledge(start)
        self._log_states, self._parts, self._size_reason = states, {}, "waiting"
        held = limited and self.pinned_ends is None and self.delay.must_wait(states.backlogs, states.statuses.now_ms)
        # Rows that are redelivered were waited for already.
        if held and not (self._explicit and any(due.rows for due in self._due(start, states).values())):
            return None
        new: Limits | None = self.limits if limited else Limits()
        redelivery = NO_LIMIT
        if self._explicit and new:
            new, redelivery = self._split_limits(start, states, new)
        if new is not None:
            self._parts, self._size_reason = admit_rows(states.backlogs, new, self.read.split_by_limits)
        moved = (
            self._decide(start, states, redelivery) if self.subscriptions.name is not None else self._range_ends(states)
        )
        if not moved:
            return None
        self._prefetch_client.prefetch(
            {
                name: (PositionRange(states.logs[name].begin, at.position), states.logs[name].size_bytes)
                for name, at in moved.items()
            }
        )
        return self._batch_end(start, states, moved)

    def latest_without_start(self) -> StreamOffset:
        """The same for a Spark that does not say where its batch starts; only `commit` acknowledges then."""
        if self._explicit:
            raise Unsupported("ackMode 'explicit' needs Spark 4.2", hint="This Spark does not say where a batch starts")
        start = self._last_end or self._initial
        if start is None:
            # Such a Spark asks for an end first. Where the query begins is decided, and its cursors are made, before.
            with suppress(DataLoss):  # of a restart, which its checkpoint tells where to go on
                self.initial()
            statuses = self.read.statuses({})
            ends = {log.name: LedgerOffset(log.end, log.incarnation) for log in statuses.logs}
            self.subscriptions.acquire({log.name: (log.incarnation, log.end) for log in statuses.logs})
            self._last_end = StreamOffset(ends)
            return self._last_end
        states = self._refresh(start)
        self.subscriptions.acquire({name: (log.incarnation, log.begin) for name, log in states.logs.items()})
        self._log_states = states
        self._parts, self._size_reason = admit_rows(states.backlogs, Limits(), self.read.split_by_limits)
        self._last_end = self._batch_end(start, states, self._range_ends(states)) if self._parts else start
        return self._last_end

    def tasks(self, start: StreamOffset, end: StreamOffset) -> Sequence[Task]:
        self._require_addressed(end)
        require_no_table(end)
        ranges = batch_ranges(start, end)
        known = [self._sized_ranges[one] for one in ranges if one in self._sized_ranges]
        measured = known if len(known) == len(ranges) else self._measure(ranges)
        parts = self.read.tasks(measured)
        for name, at in self._existing(delivered(start, end)).items():
            self.subscriptions.acquire({name: (at.incarnation, at.position)})
            parts += self._deliveries(name, at.incarnation).tasks(at.delivery)
        return parts

    def acknowledge(self, offset: StreamOffset) -> None:
        """`offset` is the end of what Spark has committed: the cursors may follow, where rows do not say it."""
        if self._explicit:
            self.subscriptions.require_leases()
        else:
            self.subscriptions.acknowledge(offset)

    def report(self) -> dict[str, Any] | None:
        """Where the logs ended at this trigger, what of them the batch leaves behind: see `stream_report`."""
        if self._log_states is None:
            return None
        logs, connection = self._log_states.logs, self.read.connection
        reached = {
            name: self._parts[name].range.end if name in self._parts else log.begin for name, log in logs.items()
        }
        cursor = self.subscriptions.name or ""
        readings = {
            name: ReadProgress(at, logs[name].incarnation, cursor=cursor)
            for name, at in reached.items()
            if at < logs[name].end
        }
        left = self.read.statuses(readings, of=list(readings)) if readings else self._log_states.statuses
        behind = {log.name: log for log in left.logs if log.name in readings}
        lags = [LedgerLag(log, behind.get(name), left.now_ms) for name, log in logs.items()]
        counted: CacheReads = connection.call(lambda client: client.call("cache.reads", Empty()))
        reads, cache = reads_between(self._last_cache_reads, counted), cache_between(self._last_cache_reads, counted)
        self._last_cache_reads = counted
        options = self.read.options
        # Who listens to progress acknowledges what a subscription has committed. Here only rows may be acknowledged, by
        # name, and whoever moved the cursor to the end of a batch would lose all of its rows that are not.
        subscription = None if self._explicit else options.subscription
        origin = SourceIdentity.of(connection.location, connection.client.store_id, subscription, options.credentials())
        report = stream_report(origin, lags, self._ended_by(), reads, cache, list(self.losses))
        return with_added_columns(report, self.read)

    def pin_end(self) -> None:
        """AvailableNow: nothing beyond the ends as they are now, no ledger that comes later, no row twice."""
        statuses = self.read.statuses({})
        self.pinned_ends = {log.name: log.end for log in statuses.logs}
        for log in statuses.logs if self._explicit else ():
            known = self.subscriptions.cursor(log.name) is not None
            newest = self._deliveries(log.name, log.incarnation).newest() if known else None
            self._pinned_ms[log.name] = statuses.now_ms if newest is None else newest.now_ms

    def stop(self) -> None:
        self.subscriptions.stop()

    def _start_positions(self, statuses: LogStatuses) -> dict[str, Position]:
        """Where each ledger begins: at its cursor, if the subscription has one there, else as the options say."""
        known = {log.name: state for log in statuses.logs if (state := self.subscriptions.cursor(log.name)) is not None}
        begins = {name: state.next_position for name, state in known.items()}
        logs = len(statuses.logs)
        begins |= {log.name: self._bounds.begin(log, logs) for log in statuses.logs if log.name not in known}
        opened = self.subscriptions.acquire({log.name: (log.incarnation, begins[log.name]) for log in statuses.logs})
        begins |= {name: state.next_position for name, state in opened.items()}
        cursors = {name: begins[name] for name in opened if name in known}
        self.start_warning = subscription_warning(self.subscriptions.name or "", cursors, self._bounds)
        return begins

    def _refresh(self, start: StreamOffset) -> LogStates:
        """How the ledgers stand for a batch from `start`; raises DataLoss, or notes what is lost."""
        self._require_addressed(start)
        names = self.read.names()
        readings = {name: self._read_progress(name, None) for name in names}
        readings |= {name: self._read_progress(name, at) for name, at in start.ledgers.items()}
        statuses = self.read.statuses(readings, ReadProgress(), of=names)
        logs = {log.name: log for log in statuses.logs if self.pinned_ends is None or log.name in self.pinned_ends}
        began: dict[str, Position] = {}
        for name, log in logs.items():
            at = start.ledgers.get(name)
            loss = None if at is None else loss_of(log, at.incarnation, PositionRange(at.position, LATEST))
            if loss is not None:
                self._report_loss(loss)
            if at is None or loss is not None:
                began[name] = log.begin
        gone = set(start.ledgers) - {log.name for log in statuses.logs}
        for name in sorted(gone):
            self._report_loss(DataLossRange(name, "deleted", PositionRange(start.ledgers[name].position, LATEST)))
        return LogStates(statuses, [LedgerBacklog.of(log) for log in logs.values()], logs, began, gone)

    def _read_progress(self, name: str, at: LedgerOffset | None) -> ReadProgress:
        end = self._bounds.end(name)
        until = end.position
        if self.pinned_ends is not None and name in self.pinned_ends:
            until = min(until or LATEST, self.pinned_ends[name])
        position, incarnation = (None, "") if at is None else (at.position, at.incarnation)
        return ReadProgress(
            position, incarnation, until=until, until_ms=end.timestamp_ms, cursor=self.subscriptions.name or ""
        )

    def _range_ends(self, states: LogStates) -> dict[str, LedgerOffset]:
        return {name: LedgerOffset(part.range.end, states.logs[name].incarnation) for name, part in self._parts.items()}

    def _split_limits(
        self, start: StreamOffset, states: LogStates, limits: Limits
    ) -> tuple[Limits | None, RedeliveryLimits]:
        """What of the limits is for new rows (None: nothing this time), and what for rows that are redelivered."""
        shared = split_limits(limits, states.backlogs, self._due(start, states), new_first=self._new_first)
        if shared.alternates:
            self._new_first = not self._new_first
            self._size_reason = "limits"
        redelivery = shared.redelivered
        return shared.new, RedeliveryLimits(0, 0, first=False) if redelivery is None else RedeliveryLimits(
            redelivery.rows_max, redelivery.bytes_max
        )

    def _due(self, start: StreamOffset, states: LogStates) -> dict[str, Due]:
        """What would are redelivered of each ledger with the next batch."""
        return {
            name: self._deliveries(name, log.incarnation).due(_delivered(start, states, name))
            for name, log in states.logs.items()
        }

    def _decide(self, start: StreamOffset, states: LogStates, redelivery: RedeliveryLimits) -> dict[str, LedgerOffset]:
        """The same with a subscription: the broker knows what else is in the batch, or is not any more."""
        moved = {}
        for name, log in states.logs.items():
            if name not in self._parts and not self._explicit:
                continue
            here = LedgerOffset(log.begin, log.incarnation, _delivered(start, states, name))
            end = self._parts[name].range.end if name in self._parts else log.begin
            decided = self._deliveries(name, log.incarnation).next(here, end, redelivery)
            redelivery = redelivery.remaining_after(decided)
            if decided.record or (decided.position != here.position and not self._explicit):
                moved[name] = LedgerOffset(decided.position, log.incarnation, decided.record)
        return moved

    def _deliveries(self, name: str, incarnation: str) -> Deliveries:
        return Deliveries(
            self.read, self.subscriptions.name or "", name, incarnation, self._pinned_ms.get(name, UNLIMITED)
        )

    def _resume_offset(self, name: str, at: LedgerOffset) -> LedgerOffset:
        known = self._deliveries(name, at.incarnation).newest()
        return LedgerOffset(known.position, at.incarnation, known.record)

    def _batch_end(self, start: StreamOffset, states: LogStates, moved: dict[str, LedgerOffset]) -> StreamOffset:
        began = {name: at for name, at in states.start_positions.items() if name in moved}
        parts = [
            sized_range(name, states.logs[name].incarnation, part)
            for name, part in self._parts.items()
            if name in moved and not moved[name].delivery and moved[name].position == part.range.end
        ]
        self._sized_ranges = {part.range: part for part in parts}
        return start.advanced(moved, began, states.deleted)

    def _existing(self, offsets: dict[str, LedgerOffset]) -> dict[str, LedgerOffset]:
        """Those of ledgers that are what they were, also where they came while the query ran; the others are lost."""
        if not offsets:
            return {}
        require_subscription(offsets, self.subscriptions.name)
        statuses, there = self.read.statuses({}, of=list(offsets)), {}
        for name, at in offsets.items():
            loss = find_loss(name, at.incarnation, PositionRange(at.position, LATEST), statuses)
            if loss is None:
                there[name] = at
            else:
                self._report_loss(loss)
        return there

    def _measure(self, ranges: list[LedgerRange]) -> list[SizedRange]:
        """The ranges of a batch that was planned by another process, as far as they are left."""
        readings = {one.ledger: ReadProgress(one.range.start, one.incarnation, until=one.range.end) for one in ranges}
        statuses = self.read.statuses(readings, of=list(readings))
        logs = {log.name: log for log in statuses.logs}
        found = []
        for one in ranges:
            log = logs.get(one.ledger)
            loss = (
                DataLossRange(one.ledger, "deleted", one.range)
                if log is None
                else loss_of(log, one.incarnation, one.range)
            )
            if loss is not None:
                self._report_loss(loss)
            if log is None or log.incarnation != one.incarnation:
                continue
            _require_reached(log, one)
            self.subscriptions.acquire({one.ledger: (one.incarnation, log.begin)})
            left = PositionRange(log.begin, one.range.end)
            found.append(SizedRange(LedgerRange(one.ledger, one.incarnation, left), log.entries, log.size_bytes))
        return found

    def _report_loss(self, loss: DataLossRange) -> None:
        """Raise, or remember: a loss is met at every trigger until a batch has gone past it."""
        if self.read.options.fail_on_data_loss:
            raise loss.error()
        if loss not in self.losses:
            _log.warning("%s", loss)
            self.losses[loss] = None

    def _ended_by(self) -> str:
        """Why the batch ends where it does, in the words of the options."""
        if self._size_reason == "waiting":
            return WAITING
        if self._size_reason == "limits":
            return str(self.limits)
        if self._size_reason == "one entry":
            return f"one entry above {self.limits}"
        logs = () if self._log_states is None else self._log_states.logs.values()
        if all(log.stop >= log.end for log in logs):
            return ALL_THERE_WAS
        return ENDING if self.pinned_ends is None else AVAILABLE_NOW

    def _require_addressed(self, offset: StreamOffset) -> None:
        addressed = [name for name in offset.ledgers if self.read.addressing.addresses(name)]
        require_addressed(offset, addressed, self.read.name)


def _delivered(start: StreamOffset, states: LogStates, name: str) -> int:
    """The record that a ledger's reading stands at; 0: none, also of a ledger that was made again."""
    at = start.ledgers.get(name)
    return at.delivery if at is not None and at.incarnation == states.logs[name].incarnation else 0


def _require_reached(log: LogStatus, planned: LedgerRange) -> None:
    if planned.range.end > log.end:
        raise DataLoss(
            f"ledger {log.name} ends at {log.end}, the checkpoint is at {planned.range.end}",
            hint="The store was restored from an older copy; start with a new checkpoint",
        )
