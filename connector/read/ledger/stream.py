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
from pyspark_ledger.connector.read.bounds import ReadBounds, overruled_by_subscription
from pyspark_ledger.connector.read.data_loss import DataLossRange, loss_in, loss_of
from pyspark_ledger.connector.read.ledger.deliveries import NO_LIMIT, Deliveries, RedeliveryLimits
from pyspark_ledger.connector.read.ledger.prefetch_client import PrefetchClient
from pyspark_ledger.connector.read.ledger.scan import LedgerRead, sized, with_added_columns
from pyspark_ledger.connector.read.ledger.subscription import SubscribedLedgers
from pyspark_ledger.connector.read.limits import Delay, LedgerBacklog, Limits, Reason, admitted
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
from pyspark_ledger.connector.read.redelivery import shared_limits
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

    survey: LogStatuses
    backlogs: list[LedgerBacklog]
    logs: dict[str, LogStatus]
    began: dict[str, Position] = field(default_factory=dict)
    gone: Collection[str] = ()


class LedgerStream(StreamPlanner):
    """Plan of one run of one query of ledgers."""

    def __init__(self, options: LedgerOptions, schema: StructType | None = None) -> None:
        self.read = LedgerRead(options, schema)
        self.held = SubscribedLedgers(self.read.connection, options.subscription)
        if self.held.following is not None:
            self.read.reader = self.held.following.reader
        if options.dead_letter_ledger:
            self.read.connection.call(lambda client: prepare_dead_letters(client, options.dead_letter_ledger))
        self.limits = Limits(options.max_rows_per_trigger, options.max_bytes_per_trigger)
        self.delay = Delay(options.min_rows_per_trigger or 0, options.max_trigger_delay)
        self.pinned: dict[str, Position] | None = None
        self._pinned_ms: dict[str, int] = {}
        self.losses: dict[DataLossRange, None] = {}
        self._edges = ReadBounds(options, stream=True)
        self._initial: StreamOffset | None = None
        self._last: StreamOffset | None = None
        self._looked: LogStates | None = None
        self._taken: dict[str, SplitPart] = {}
        self._reached: dict[str, Position] = {}
        self._reason: Reason = "nothing"
        self._counted: CacheReads | None = None
        self._planned: dict[LedgerRange, SizedRange] = {}
        self._explicit = options.ack_mode == "explicit"
        self._new_first = False
        self._hints = PrefetchClient(
            self.read.connection, self.read.reader, paced=options.pacing, mapping=options.mapping == "auto"
        )

    def initial(self) -> StreamOffset:
        """Where the query begins without a checkpoint; the same answer however often it is asked."""
        if self._initial is None:
            names = self.read.names()
            survey = self.read.survey(self._edges.first_readings(names), of=names)
            self.read.require_all(survey)
            begins = self._begins(survey)
            offsets = {log.name: LedgerOffset(begins[log.name], log.incarnation) for log in survey.logs}
            if self._explicit:
                offsets = {name: self._newest(name, at) for name, at in offsets.items()}
            self._initial = StreamOffset(offsets, initial=True)
        return self._initial

    def latest(self, start: StreamOffset, *, limited: bool) -> StreamOffset | None:
        """The end of the next batch from `start`; None when there is no row to deliver, or not yet."""
        look = self._look(start)
        self.held.hold({name: (log.incarnation, log.begin) for name, log in look.logs.items()})
        self.acknowledge(start)
        self._looked, self._taken, self._reached, self._reason = look, {}, {}, "waiting"
        held = limited and self.pinned is None and self.delay.holds(look.backlogs, look.survey.now_ms)
        # Rows that come back were waited for already.
        if held and not (self._explicit and any(due.rows for due in self._due(start, look).values())):
            return None
        new: Limits | None = self.limits if limited else Limits()
        back = NO_LIMIT
        if self._explicit and new:
            new, back = self._shared(start, look, new)
        if new is not None:
            self._taken, self._reason = admitted(look.backlogs, new, self.read.quotas)
        moved = self._decided(start, look, back) if self.held.name is not None else self._plain(look)
        if not moved:
            return None
        self._hints.say(
            {
                name: (PositionRange(look.logs[name].begin, at.position), look.logs[name].size_bytes)
                for name, at in moved.items()
            }
        )
        return self._end(start, look, moved)

    def latest_without_start(self) -> StreamOffset:
        """The same for a Spark that does not say where its batch starts; only `commit` acknowledges then."""
        if self._explicit:
            raise Unsupported("ackMode 'explicit' needs Spark 4.2", hint="This Spark does not say where a batch starts")
        start = self._last or self._initial
        if start is None:
            # Such a Spark asks for an end first. Where the query begins is decided, and its cursors are made, before.
            with suppress(DataLoss):  # of a restart, which its checkpoint tells where to go on
                self.initial()
            survey = self.read.survey({})
            ends = {log.name: LedgerOffset(log.end, log.incarnation) for log in survey.logs}
            self.held.hold({log.name: (log.incarnation, log.end) for log in survey.logs})
            self._last = StreamOffset(ends)
            return self._last
        look = self._look(start)
        self.held.hold({name: (log.incarnation, log.begin) for name, log in look.logs.items()})
        self._looked = look
        self._taken, self._reason = admitted(look.backlogs, Limits(), self.read.quotas)
        self._last = self._end(start, look, self._plain(look)) if self._taken else start
        return self._last

    def tasks(self, start: StreamOffset, end: StreamOffset) -> Sequence[Task]:
        self._require_addressed(end)
        require_no_table(end)
        ranges = batch_ranges(start, end)
        known = [self._planned[one] for one in ranges if one in self._planned]
        measured = known if len(known) == len(ranges) else self._measured(ranges)
        parts = self.read.tasks(measured)
        for name, at in self._still_there(delivered(start, end)).items():
            self.held.hold({name: (at.incarnation, at.position)})
            parts += self._deliveries(name, at.incarnation).tasks(at.delivery)
        return parts

    def acknowledge(self, offset: StreamOffset) -> None:
        """`offset` is the end of what Spark has committed: the cursors may follow, where rows do not say it."""
        if self._explicit:
            self.held.require_held()
        else:
            self.held.acknowledge(offset)

    def report(self) -> dict[str, Any] | None:
        """Where the logs ended at this trigger, what of them the batch leaves behind: see `stream_report`."""
        if self._looked is None:
            return None
        logs, connection = self._looked.logs, self.read.connection
        reached = {
            name: self._taken[name].range.end if name in self._taken else log.begin for name, log in logs.items()
        }
        cursor = self.held.name or ""
        readings = {
            name: ReadProgress(at, logs[name].incarnation, cursor=cursor)
            for name, at in reached.items()
            if at < logs[name].end
        }
        left = self.read.survey(readings, of=list(readings)) if readings else self._looked.survey
        behind = {log.name: log for log in left.logs if log.name in readings}
        lags = [LedgerLag(log, behind.get(name), left.now_ms) for name, log in logs.items()]
        counted: CacheReads = connection.call(lambda client: client.call("cache.reads", Empty()))
        reads, cache = reads_between(self._counted, counted), cache_between(self._counted, counted)
        self._counted = counted
        options = self.read.options
        # Who listens to progress acknowledges what a subscription has committed. Here only rows may be acknowledged, by
        # name, and whoever moved the cursor to the end of a batch would lose all of its rows that are not.
        subscription = None if self._explicit else options.subscription
        origin = SourceIdentity.of(connection.location, connection.client.store_id, subscription, options.credentials())
        report = stream_report(origin, lags, self._ended_by(), reads, cache, list(self.losses))
        return with_added_columns(report, self.read)

    def pin_end(self) -> None:
        """AvailableNow: nothing beyond the ends as they are now, no ledger that comes later, no row twice."""
        survey = self.read.survey({})
        self.pinned = {log.name: log.end for log in survey.logs}
        for log in survey.logs if self._explicit else ():
            known = self.held.known(log.name) is not None
            newest = self._deliveries(log.name, log.incarnation).newest() if known else None
            self._pinned_ms[log.name] = survey.now_ms if newest is None else newest.now_ms

    def stop(self) -> None:
        self.held.stop()

    def _begins(self, survey: LogStatuses) -> dict[str, Position]:
        """Where each ledger begins: at its cursor, if the subscription has one there, else as the options say."""
        known = {log.name: state for log in survey.logs if (state := self.held.known(log.name)) is not None}
        begins = {name: state.next_position for name, state in known.items()}
        logs = len(survey.logs)
        begins |= {log.name: self._edges.begin(log, logs) for log in survey.logs if log.name not in known}
        opened = self.held.hold({log.name: (log.incarnation, begins[log.name]) for log in survey.logs})
        begins |= {name: state.next_position for name, state in opened.items()}
        cursors = {name: begins[name] for name in opened if name in known}
        self.overruled = overruled_by_subscription(self.held.name or "", cursors, self._edges)
        return begins

    def _look(self, start: StreamOffset) -> LogStates:
        """How the ledgers stand for a batch from `start`; raises DataLoss, or notes what is lost."""
        self._require_addressed(start)
        names = self.read.names()
        readings = {name: self._reading(name, None) for name in names}
        readings |= {name: self._reading(name, at) for name, at in start.ledgers.items()}
        survey = self.read.survey(readings, ReadProgress(), of=names)
        logs = {log.name: log for log in survey.logs if self.pinned is None or log.name in self.pinned}
        began: dict[str, Position] = {}
        for name, log in logs.items():
            at = start.ledgers.get(name)
            loss = None if at is None else loss_of(log, at.incarnation, PositionRange(at.position, LATEST))
            if loss is not None:
                self._note(loss)
            if at is None or loss is not None:
                began[name] = log.begin
        gone = set(start.ledgers) - {log.name for log in survey.logs}
        for name in sorted(gone):
            self._note(DataLossRange(name, "deleted", PositionRange(start.ledgers[name].position, LATEST)))
        return LogStates(survey, [LedgerBacklog.of(log) for log in logs.values()], logs, began, gone)

    def _reading(self, name: str, at: LedgerOffset | None) -> ReadProgress:
        end = self._edges.end(name)
        until = end.position
        if self.pinned is not None and name in self.pinned:
            until = min(until or LATEST, self.pinned[name])
        position, incarnation = (None, "") if at is None else (at.position, at.incarnation)
        return ReadProgress(position, incarnation, until=until, until_ms=end.timestamp_ms, cursor=self.held.name or "")

    def _plain(self, look: LogStates) -> dict[str, LedgerOffset]:
        return {name: LedgerOffset(part.range.end, look.logs[name].incarnation) for name, part in self._taken.items()}

    def _shared(self, start: StreamOffset, look: LogStates, limits: Limits) -> tuple[Limits | None, RedeliveryLimits]:
        """What of the limits is for new rows (None: nothing this time), and what for rows that come back."""
        shared = shared_limits(limits, look.backlogs, self._due(start, look), new_first=self._new_first)
        if shared.turns:
            self._new_first = not self._new_first
            self._reason = "limits"
        back = shared.back
        return shared.new, RedeliveryLimits(0, 0, first=False) if back is None else RedeliveryLimits(
            back.rows_most, back.bytes_most
        )

    def _due(self, start: StreamOffset, look: LogStates) -> dict[str, Due]:
        """What would come back of each ledger with the next batch."""
        return {
            name: self._deliveries(name, log.incarnation).due(_delivered(start, look, name))
            for name, log in look.logs.items()
        }

    def _decided(self, start: StreamOffset, look: LogStates, back: RedeliveryLimits) -> dict[str, LedgerOffset]:
        """The same with a subscription: the broker knows what else is in the batch, or is not any more."""
        moved = {}
        for name, log in look.logs.items():
            if name not in self._taken and not self._explicit:
                continue
            here = LedgerOffset(log.begin, log.incarnation, _delivered(start, look, name))
            end = self._taken[name].range.end if name in self._taken else log.begin
            decided = self._deliveries(name, log.incarnation).next(here, end, back)
            back = back.after(decided)
            if decided.record or (decided.position != here.position and not self._explicit):
                moved[name] = LedgerOffset(decided.position, log.incarnation, decided.record)
        return moved

    def _deliveries(self, name: str, incarnation: str) -> Deliveries:
        return Deliveries(self.read, self.held.name or "", name, incarnation, self._pinned_ms.get(name, UNLIMITED))

    def _newest(self, name: str, at: LedgerOffset) -> LedgerOffset:
        known = self._deliveries(name, at.incarnation).newest()
        return LedgerOffset(known.position, at.incarnation, known.record)

    def _end(self, start: StreamOffset, look: LogStates, moved: dict[str, LedgerOffset]) -> StreamOffset:
        began = {name: at for name, at in look.began.items() if name in moved}
        parts = [
            sized(name, look.logs[name].incarnation, part)
            for name, part in self._taken.items()
            if name in moved and not moved[name].delivery and moved[name].position == part.range.end
        ]
        self._planned = {part.range: part for part in parts}
        self._reached = {name: at.position for name, at in moved.items()}
        return start.advanced(moved, began, look.gone)

    def _still_there(self, offsets: dict[str, LedgerOffset]) -> dict[str, LedgerOffset]:
        """Those of ledgers that are what they were, also where they came while the query ran; the others are lost."""
        if not offsets:
            return {}
        require_subscription(offsets, self.held.name)
        survey, there = self.read.survey({}, of=list(offsets)), {}
        for name, at in offsets.items():
            loss = loss_in(name, at.incarnation, PositionRange(at.position, LATEST), survey)
            if loss is None:
                there[name] = at
            else:
                self._note(loss)
        return there

    def _measured(self, ranges: list[LedgerRange]) -> list[SizedRange]:
        """The ranges of a batch that was planned by another process, as far as they are left."""
        readings = {one.ledger: ReadProgress(one.range.start, one.incarnation, until=one.range.end) for one in ranges}
        survey = self.read.survey(readings, of=list(readings))
        logs = {log.name: log for log in survey.logs}
        found = []
        for one in ranges:
            log = logs.get(one.ledger)
            loss = (
                DataLossRange(one.ledger, "deleted", one.range)
                if log is None
                else loss_of(log, one.incarnation, one.range)
            )
            if loss is not None:
                self._note(loss)
            if log is None or log.incarnation != one.incarnation:
                continue
            _require_reached(log, one)
            self.held.hold({one.ledger: (one.incarnation, log.begin)})
            left = PositionRange(log.begin, one.range.end)
            found.append(SizedRange(LedgerRange(one.ledger, one.incarnation, left), log.entries, log.size_bytes))
        return found

    def _note(self, loss: DataLossRange) -> None:
        """Raise, or remember: a loss is met at every trigger until a batch has gone past it."""
        if self.read.options.fail_on_data_loss:
            raise loss.error()
        if loss not in self.losses:
            _log.warning("%s", loss)
            self.losses[loss] = None

    def _ended_by(self) -> str:
        """Why the batch ends where it does, in the words of the options."""
        if self._reason == "waiting":
            return WAITING
        if self._reason == "limits":
            return str(self.limits)
        if self._reason == "one entry":
            return f"one entry above {self.limits}"
        logs = () if self._looked is None else self._looked.logs.values()
        if all(log.stop >= log.end for log in logs):
            return ALL_THERE_WAS
        return ENDING if self.pinned is None else AVAILABLE_NOW

    def _require_addressed(self, offset: StreamOffset) -> None:
        addressed = [name for name in offset.ledgers if self.read.addressing.addresses(name)]
        require_addressed(offset, addressed, self.read.name)


def _delivered(start: StreamOffset, look: LogStates, name: str) -> int:
    """The record that a ledger's reading stands at; 0: none, also of a ledger that was made again."""
    at = start.ledgers.get(name)
    return at.delivery if at is not None and at.incarnation == look.logs[name].incarnation else 0


def _require_reached(log: LogStatus, planned: LedgerRange) -> None:
    if planned.range.end > log.end:
        raise DataLoss(
            f"ledger {log.name} ends at {log.end}, the checkpoint is at {planned.range.end}",
            hint="The store was restored from an older copy; start with a new checkpoint",
        )
