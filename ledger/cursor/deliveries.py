"""Batches that are more than a range: decided once, durable before a reader's checkpoint names them, read as decided.

Invariants
- A batch that is planned again, by any process, delivers exactly the rows of its record, whatever was acknowledged.
- What a record may still deliver is kept by the log: the cursor's replay floor is at or before its first row.
- With `explicit` every row that was delivered is outstanding until it is acknowledged; it is delivered again, with
  its count, or buried as a dead letter, and never forgotten. After a reset of the cursor nothing is outstanding.
- What a record leaves out, because it is acknowledged, is durably acknowledged before the record is kept: else a crash
  would leave rows that neither are acknowledged nor come back.
- A clock that is set back holds nothing up: ages go on from where they were.
- Rows that were given back and not delivered again before the broker died come back at their timeout.
- Who never delivered with `explicit` has nothing that could come back, and is told so: else it would wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec
import pyarrow as pa

from pyspark_ledger.ledger.clock import Clock, ForwardClock
from pyspark_ledger.ledger.cursor.acknowledgements import AcknowledgementTable
from pyspark_ledger.ledger.cursor.redelivery import (
    BatchBudget,
    RedeliveryDecision,
    RedeliveryPolicy,
    complement,
    decide,
    has_rows_left,
    skipped_rows,
    unacknowledged_share,
)
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused
from pyspark_ledger.ledger.log.queries import head_left
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord
from pyspark_ledger.ledger.metadata.delivery_records import DEAD, DeliveryRecord
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.cursors import (
    AckDeadLetters,
    AskDelivery,
    AskDue,
    DecidedDelivery,
    DeliveredRange,
    Delivery,
    Due,
    NextDelivery,
)


class DeliveryTable:
    """The deliveries of a store's cursors. Any thread may call any method."""

    def __init__(
        self,
        metadata: Metadata,
        clock: Clock,
        snapshot_of: Callable[[str], LogSnapshot],
        acknowledgements: AcknowledgementTable,
    ) -> None:
        self._metadata = metadata
        self._records = metadata.deliveries
        self._time = ForwardClock(clock)
        self._snapshot_of = snapshot_of
        self._acknowledgements = acknowledgements
        self._lock = threading.Lock()
        self._given_back: dict[tuple[str, str], PositionSet] = {}
        self._redelivered_rows: dict[tuple[str, str], tuple[int, PositionSet]] = {}
        self._explicit_cursors: set[tuple[str, str]] = set()
        """Cursors that a reader has asked for an `explicit` batch of; one that was reset since has no record."""

    def next(self, request: NextDelivery) -> DecidedDelivery:
        snapshot = self._snapshot_of(request.ledger)
        with self._lock:
            cursor = self._cursor(snapshot.name, request.cursor)
            previous = self._records.get(snapshot.name, cursor.name, request.after) if request.after else None
            cursor, acknowledged, _ = self._acknowledgements.state(cursor, snapshot, durable=True)
            start = self._read_position(request, previous, cursor)
            new = PositionRange(max(start, snapshot.start), max(start, request.end))
            if not request.explicit:
                self._explicit_cursors.discard((cursor.ledger, cursor.name))
                return self._plain(request, cursor, new, acknowledged, snapshot)
            self._explicit_cursors.add((cursor.ledger, cursor.name))
            return self._explicit(request, cursor, new, previous, acknowledged, snapshot)

    def redelivered(self, request: NextDelivery, decided: DecidedDelivery) -> PositionSet:
        """The rows of a batch that was decided, and of its dead letters, that were delivered before."""
        snapshot = self._snapshot_of(request.ledger)
        wanted = [record for record, some in ((decided.record, decided.back_rows), (DEAD, decided.dead)) if some]
        records = [self._records.get(snapshot.name, request.cursor, record) for record in wanted]
        found = PositionSet()
        for share in (share for record in records if record is not None for share in record.shares if share.count):
            found.update(complement(skipped_rows(share), share.range, snapshot))
        return found

    def due(self, request: AskDue) -> Due:
        """What would come back with the batch after a record; nothing changes."""
        snapshot = self._snapshot_of(request.ledger)
        with self._lock:
            cursor = self._cursor(snapshot.name, request.cursor)
            previous = self._records.get(snapshot.name, cursor.name, request.after) if request.after else None
            budget = BatchBudget()
            cursor, acknowledged, _ = self._acknowledgements.state(cursor, snapshot)
            due = self._decision(request, cursor, previous, acknowledged, snapshot, budget).due
            head = head_left(snapshot, due[0].range, skipped_rows(due[0])) if due else None
        head_rows, head_bytes = (0, 0) if head is None else head[:2]
        return Due(budget.taken_rows, budget.taken_bytes, head_rows, head_bytes)

    def get(self, request: AskDelivery) -> Delivery:
        """A record as it was decided; DataLoss when it is gone."""
        ledger = self._snapshot_of(request.ledger).name
        cursor = self._cursor(ledger, request.cursor)
        if request.record == 0:
            found = self._records.newest(ledger, cursor.name)
            with self._lock:
                now_ms = self._now(found)
            if found is None:
                return Delivery(0, cursor.next_position, now_ms=now_ms)
            return Delivery(found.record, found.position, now_ms=now_ms)
        found = self._records.get(ledger, cursor.name, request.record)
        if found is None:
            raise DataLoss(
                f"cursor {cursor.name!r} of {ledger!r} has no record {request.record} of a batch any more",
                hint="The cursor was reset or the store restored from a copy: start with a new checkpoint",
            )
        return Delivery(found.record, found.position, found.shares)

    def give_back(self, ledger: str, name: str, batches: Iterable[pa.RecordBatch]) -> PositionSet:
        """Rows that come back with the next batch, answered as a set; what is not outstanding is ignored.

        Refused where nothing can come back.
        """
        snapshot = self._snapshot_of(ledger)
        self.require_explicit(snapshot.name, name)
        nacked = self._acknowledgements.require_positions(batches, snapshot)
        with self._lock:
            cursor = self._cursor(snapshot.name, name)
            self._given_back.setdefault((cursor.ledger, cursor.name), PositionSet()).update(nacked)
        return nacked

    def require_explicit(self, ledger: str, name: str) -> None:
        """Refuse a cursor of which no batch was ever delivered with `explicit`."""
        if (ledger, name) in self._explicit_cursors:
            return
        newest = self._records.newest(ledger, self._cursor(ledger, name).name)
        # Only what is outstanding has a time. A batch without holes has no record unless it is explicit.
        if newest is None or not any(share.at_ms for share in (*newest.shares, *newest.waiting)):
            raise Refused(
                f"no row of {ledger!r} was delivered to subscription {name!r} with ackMode 'explicit': none can be "
                "given back",
                hint="Read with option ackMode 'explicit'; what any other query has not acknowledged, it reads again",
            )

    @contextmanager
    def forgetting(self, ledger: str, cursor: str) -> Iterator[None]:
        """Nothing is outstanding any more, and no batch is decided while a cursor is reset or deleted within."""
        with self._lock:
            # First: without its record a reader goes on where the cursor is, wherever a crash leaves that.
            self._records.forget(ledger, cursor)
            self._given_back.pop((ledger, cursor), None)
            self._redelivered_rows.pop((ledger, cursor), None)
            yield

    def ack_dead_letters(self, request: AckDeadLetters) -> None:
        """The dead letters stand elsewhere: acknowledge them. May be repeated."""
        snapshot = self._snapshot_of(request.ledger)
        with self._lock:
            cursor = self._cursor(snapshot.name, request.cursor)
            dead = self._records.get(snapshot.name, cursor.name, DEAD)
            if dead is None or dead.record != request.dead:
                return
            dead_rows = PositionSet()
            for share in dead.shares:
                dead_rows.update(complement(skipped_rows(share), share.range, snapshot))
            self._acknowledgements.acknowledge_positions(cursor, dead_rows, snapshot)
            self._acknowledgements.state(cursor, snapshot, durable=True)
            self._records.forget(snapshot.name, cursor.name, dead_only=True)

    def _plain(
        self,
        request: NextDelivery,
        cursor: CursorRecord,
        new: PositionRange,
        acknowledged: PositionSet,
        snapshot: LogSnapshot,
    ) -> DecidedDelivery:
        # What was acknowledged row by row may have joined mark-delete, ahead of where the reader is.
        left = PositionRange(max(new.start, cursor.next_position), new.end)
        acked = acknowledged.within(left) if left else PositionSet()
        if left.start == new.start and not acked:
            return DecidedDelivery(0, new.end)
        if not has_rows_left(left, acked, snapshot):
            return DecidedDelivery(0, request.start)
        return self._store_record(
            request, cursor, new.end, [unacknowledged_share(left, acked)], [], floor=min(left.start, new.start)
        )

    def _explicit(
        self,
        request: NextDelivery,
        cursor: CursorRecord,
        new: PositionRange,
        previous: DeliveryRecord | None,
        acknowledged: PositionSet,
        snapshot: LogSnapshot,
    ) -> DecidedDelivery:
        key = (cursor.ledger, cursor.name)
        now = self._now(previous)
        budget = BatchBudget(request.back_rows, request.back_bytes, request.back_first)
        decision = self._decision(request, cursor, previous, acknowledged, snapshot, budget)
        self._redelivered_rows[key] = request.after, self._nacked_rows(key, request.after)
        self._given_back.pop(key, None)
        if decision.given_back:
            self._given_back[key] = decision.given_back
        dead = self._dead_letter_record(cursor, decision.dead)
        due = decision.due
        fresh = PositionRange(max(new.start, cursor.next_position), new.end)
        if fresh and has_rows_left(fresh, acknowledged.within(fresh), snapshot):
            due = [*due, unacknowledged_share(fresh, acknowledged, 0, now)]
        if not due:
            # What the reader has committed is not read again: nothing before mark-delete is needed any more.
            if cursor.replay_floor is not None and cursor.replay_floor < cursor.next_position:
                self._acknowledgements.set_replay_floor(cursor, cursor.next_position)
            return DecidedDelivery(0, new.start, dead)
        # Dead letters are outstanding until they are buried: else a crash before that would forget them.
        waiting = [*decision.waiting, *decision.dead]
        floor = min(share.range.start for share in due)
        decided = self._store_record(request, cursor, new.end, due, waiting, floor=floor, dead=dead)
        return msgspec.structs.replace(decided, back_rows=budget.taken_rows, back_bytes=budget.taken_bytes)

    def _now(self, previous: DeliveryRecord | None) -> int:
        shares = [] if previous is None else [*previous.waiting, *previous.shares]
        return self._time(max((share.at_ms for share in shares), default=0))

    def _decision(
        self,
        request: NextDelivery | AskDue,
        cursor: CursorRecord,
        previous: DeliveryRecord | None,
        acknowledged: PositionSet,
        snapshot: LogSnapshot,
        budget: BatchBudget,
    ) -> RedeliveryDecision:
        outstanding = [] if previous is None else [*previous.waiting, *previous.shares]
        back = self._nacked_rows((cursor.ledger, cursor.name), request.after)
        return decide(
            outstanding, acknowledged, cursor.next_position, back, snapshot, self._now(previous),
            RedeliveryPolicy(request.ack_timeout_ms, request.max_redeliveries, request.before_ms), budget,
        )  # fmt: skip

    def _nacked_rows(self, key: tuple[str, str], after: int) -> PositionSet:
        """What was given back before the batch after a record, also when that batch is decided once more."""
        back = self._given_back.get(key, PositionSet()).copy()
        decided, rows = self._redelivered_rows.get(key, (-1, back))
        if decided == after:
            back.update(rows)
        return back

    def _store_record(
        self,
        request: NextDelivery,
        cursor: CursorRecord,
        position: Position,
        shares: list[DeliveredRange],
        waiting: list[DeliveredRange],
        *,
        floor: Position,
        dead: int = 0,
    ) -> DecidedDelivery:
        self._acknowledgements.set_replay_floor(cursor, floor)
        newest = self._records.newest(cursor.ledger, cursor.name)
        number = max(request.after, 0 if newest is None else newest.record) + 1
        record = DeliveryRecord(number, position, shares, waiting)
        self._records.put(cursor.ledger, cursor.name, record, request.after)
        return DecidedDelivery(number, position, dead)

    def _dead_letter_record(self, cursor: CursorRecord, shares: list[DeliveredRange]) -> int:
        """The number of the dead letters that are to be buried: those that wait already go first."""
        kept = self._records.get(cursor.ledger, cursor.name, DEAD)
        if kept is not None:
            return kept.record
        if not shares:
            return 0
        number = self._metadata.allocate_ledger_id()  # rises for good, as the number of a batch of one query must
        self._records.put_dead(cursor.ledger, cursor.name, DeliveryRecord(number, cursor.next_position, shares))
        return number

    @staticmethod
    def _read_position(request: NextDelivery, previous: DeliveryRecord | None, cursor: CursorRecord) -> Position:
        if previous is not None:
            return previous.position
        # A record that is gone is of a time before the cursor was reset.
        return cursor.next_position if request.after and request.explicit else request.start

    def _cursor(self, ledger: str, name: str) -> CursorRecord:
        found = self._metadata.cursors.get(ledger, name)
        if found is None:
            raise NotFound(f"ledger {ledger!r} has no cursor {name!r}")
        return found.cursor
