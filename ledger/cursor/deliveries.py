"""Delivery records of a store's cursors.

A *delivery record* has the rows of one batch, and the outstanding rows of earlier batches. An *outstanding* row was
delivered and is not acknowledged. A *negative acknowledgement* asks for the redelivery of a row before the timeout.

If a batch has only contiguous new rows, Spark's start and end offset describe it completely. A batch with skipped or
redelivered rows needs a record. The broker chooses the rows of such a batch once. It stores the record before a
checkpoint of Spark names the record.

Invariants
- If Spark runs a batch again, the batch delivers exactly the rows of its record. This holds in any process, even if
  some of the rows were acknowledged since.
- The log keeps all rows that a record may deliver. The cursor's replay floor, before which the log may be trimmed, is
  at or before the record's first row.
- With the read option `ackMode` = `explicit`, the user acknowledges rows. An outstanding row is redelivered, with the
  number of its deliveries, or becomes a dead letter: it is moved to another ledger. After a reset of the cursor no row
  is outstanding.
- A record contains no acknowledged rows. The acknowledgements are durable before the record, or in its transaction.
  Reason: a crash could otherwise lose the acknowledgement of a row. The row is in no record, so it would never be
  redelivered.
- If the host's clock is set back, redelivery is not delayed. The newest delivery time in the records then counts as
  the present time.
- Negative acknowledgements are kept in memory. If the broker dies, their rows are redelivered after the timeout.
  Exception: a loop keeps its own, and sends them with its next request.
- A loop of the Python API decides and acknowledges only while it has the cursor's lease. The lease is checked under the
  same lock as the decision. A loop repeats no batch, so its cursor needs no replay floor.
- A negative acknowledgement is refused if no batch was delivered with `explicit`. Reason: the caller would wait for a
  redelivery that never happens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec
import pyarrow as pa

from pyspark_ledger.ledger.clock import Clock, ForwardClock
from pyspark_ledger.ledger.cursor.acknowledgements import AcknowledgementTable
from pyspark_ledger.ledger.cursor.leases import require_lease
from pyspark_ledger.ledger.cursor.redelivery import (
    BatchBudget,
    RedeliveryDecision,
    RedeliveryPolicy,
    complement,
    decide,
    has_rows_left,
    shared_rows,
    skipped_rows,
    unacknowledged_share,
)
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused
from pyspark_ledger.ledger.log.acknowledged_positions import drop_rowless
from pyspark_ledger.ledger.log.remaining import head_left, measure_left
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord
from pyspark_ledger.ledger.metadata.delivery_records import DEAD, DeliveryRecord
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.cursors import (
    AckDeadLetters,
    AckDelivery,
    AskDelivery,
    AskDue,
    DecidedDelivery,
    DeliveredRange,
    Delivery,
    Due,
    NextDelivery,
)


class DeliveryTable:
    """Deliveries of a store's cursors. Thread-safe."""

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
        self._nacked: dict[tuple[str, str], PositionSet] = {}
        self._redelivered_rows: dict[tuple[str, str], tuple[int, PositionSet]] = {}
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}
        self._explicit_cursors: set[tuple[str, str]] = set()
        """Cursors with an `explicit` batch since the broker's start. Needed because a reset cursor has no record."""

    def next(self, request: NextDelivery) -> DecidedDelivery:
        snapshot = self._snapshot_of(request.ledger)
        with self._lock:
            cursor = self._cursor(snapshot.name, request.cursor)
            newest = self._records.newest(snapshot.name, cursor.name)
            if request.holder:
                require_lease(cursor, request.holder)
                done = _delivered_rows(request.done, newest, cursor, snapshot)
                cursor, acknowledged, _ = self._acknowledgements.acknowledge_with_record(cursor, done, snapshot)
            else:
                cursor, acknowledged, _ = self._acknowledgements.state(cursor, snapshot, durable=True)
            previous = newest
            if newest is None or newest.record != request.after:
                previous = self._records.get(snapshot.name, cursor.name, request.after) if request.after else None
            if previous is not None:
                start = previous.position
            else:  # the first read, or a reset of the cursor has deleted the record
                continues = request.explicit and (request.after or request.holder)
                start = cursor.next_position if continues else request.start
            end = snapshot.end if request.holder else request.end
            new = PositionRange(max(start, snapshot.start), max(start, end))
            if not request.explicit:
                self._explicit_cursors.discard((cursor.ledger, cursor.name))
                return self._plain(request, cursor, new, acknowledged, snapshot)
            self._explicit_cursors.add((cursor.ledger, cursor.name))
            decided = self._explicit(request, cursor, new, previous, acknowledged, snapshot)
            if request.holder:
                if not decided.record:
                    self._acknowledgements.move(cursor)
                self._acknowledgements.trim_below(cursor, cursor.next_position, snapshot)
            return decided

    def counts(self, ledger: str, cursor: str) -> tuple[int, int]:
        """Return the number of redelivered rows and the number of dead letters of a cursor since the broker's start."""
        return self._counts.get((ledger, cursor), (0, 0))

    def _count(self, key: tuple[str, str], *, redelivered: int = 0, dead: int = 0) -> None:
        before = self._counts.get(key, (0, 0))
        self._counts[key] = before[0] + redelivered, before[1] + dead

    def redelivered(self, request: NextDelivery, decided: DecidedDelivery) -> PositionSet:
        """Return the redelivered rows of a decided batch, and its dead letters."""
        snapshot = self._snapshot_of(request.ledger)
        numbers = [number for number, count in ((decided.record, decided.back_rows), (DEAD, decided.dead)) if count]
        records = [self._records.get(snapshot.name, request.cursor, number) for number in numbers]
        rows = PositionSet()
        for share in (share for record in records if record is not None for share in record.shares if share.count):
            rows.update(complement(skipped_rows(share), share.range, snapshot))
        return rows

    def due(self, request: AskDue) -> Due:
        """Return how many rows and bytes the batch after that of record `after` would redeliver. Changes no state."""
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
        """Return a record. Number 0 means the newest record. Raises DataLoss if the record is missing."""
        snapshot = self._snapshot_of(request.ledger)
        ledger = snapshot.name
        cursor = self._cursor(ledger, request.cursor)
        if request.record == 0:
            found = self._records.newest(ledger, cursor.name)
            with self._lock:
                now_ms = self._time(_newest_ms(found) + 1)
            record, position = (0, cursor.next_position) if found is None else (found.record, found.position)
            idle = cursor.next_position >= snapshot.end
            return Delivery(record, position, now_ms=now_ms, incarnation=snapshot.incarnation, idle=idle)
        found = self._records.get(ledger, cursor.name, request.record)
        if found is None:
            raise DataLoss(
                f"cursor {cursor.name!r} of {ledger!r} has no record {request.record} of a batch any more",
                hint="The cursor was reset, or the store was restored from a copy. Start with a new checkpoint",
            )
        return Delivery(found.record, found.position, found.shares)

    def nack(self, ledger: str, name: str, batches: Iterable[pa.RecordBatch]) -> PositionSet:
        """Negatively acknowledge rows, and return them as a set. The next batch redelivers the rows.

        Rows that are not outstanding are ignored. Raises Refused if no batch was delivered with `explicit`.
        """
        snapshot = self._snapshot_of(ledger)
        self.require_explicit(snapshot.name, name)
        nacked = self._acknowledgements.require_positions(batches, snapshot)
        with self._lock:
            cursor = self._cursor(snapshot.name, name)
            self._nacked.setdefault((cursor.ledger, cursor.name), PositionSet()).update(nacked)
        return nacked

    def acknowledge(self, request: AckDelivery) -> Position:
        """Acknowledge the outstanding rows of a loop's batch. Return the cursor's first unacknowledged position.

        A repeated request has no further effect. Raises LeaseLost if another reader has acquired the lease.
        """
        snapshot = self._snapshot_of(request.ledger)
        with self._lock:
            cursor = self._cursor(snapshot.name, request.cursor)
            require_lease(cursor, request.holder)
            newest = self._records.newest(snapshot.name, cursor.name)
            rows = _delivered_rows(request.shares, newest, cursor, snapshot)
            return self._acknowledgements.acknowledge_positions(cursor, rows, snapshot).next_position

    def require_explicit(self, ledger: str, name: str) -> None:
        """Raise Refused if no batch of the cursor was delivered with `explicit`."""
        if (ledger, name) in self._explicit_cursors:
            return
        newest = self._records.newest(ledger, self._cursor(ledger, name).name)
        # Only deliveries of an explicit batch have a time.
        if newest is None or not any(share.at_ms for share in (*newest.shares, *newest.waiting)):
            raise Refused(
                f"no row of {ledger!r} was delivered to subscription {name!r} with ackMode 'explicit': no row can be "
                "negatively acknowledged",
                hint="Read with option ackMode 'explicit'. A query with another ackMode acknowledges its rows itself",
            )

    @contextmanager
    def forgetting(self, ledger: str, cursor: str) -> Iterator[None]:
        """Delete the records of a cursor. No batch is decided while the caller resets or deletes the cursor."""
        with self._lock:
            # The records are deleted first. Without a record a reader continues at the cursor, also after a crash.
            self._records.forget(ledger, cursor)
            self._nacked.pop((ledger, cursor), None)
            self._redelivered_rows.pop((ledger, cursor), None)
            self._time(self._time() + 1)  # so that each later delivery has a later time than the earlier ones
            yield

    def ack_dead_letters(self, request: AckDeadLetters) -> None:
        """Acknowledge dead letters. Called after they were written to the dead-letter ledger. May be repeated."""
        snapshot = self._snapshot_of(request.ledger)
        with self._lock:
            cursor = self._cursor(snapshot.name, request.cursor)
            dead = self._records.get(snapshot.name, cursor.name, DEAD)
            if dead is None or dead.record != request.dead:
                return
            dead_rows = PositionSet()
            for share in dead.shares:
                dead_rows.update(complement(skipped_rows(share), share.range, snapshot))
            drop_rowless(dead_rows, snapshot)
            self._acknowledgements.acknowledge_positions(cursor, dead_rows, snapshot)
            self._acknowledgements.state(cursor, snapshot, durable=True)
            self._records.forget(snapshot.name, cursor.name, dead_only=True)
            rows = sum(measure_left(snapshot, share.range, skipped_rows(share))[1] for share in dead.shares)
            self._count((snapshot.name, cursor.name), dead=rows)

    def _plain(
        self,
        request: NextDelivery,
        cursor: CursorRecord,
        new: PositionRange,
        acknowledged: PositionSet,
        snapshot: LogSnapshot,
    ) -> DecidedDelivery:
        # Individual acknowledgements may have moved the cursor beyond the start of the batch.
        rest = PositionRange(max(new.start, cursor.next_position), new.end)
        acked = acknowledged.within(rest) if rest else PositionSet()
        if rest.start == new.start and not acked:
            return DecidedDelivery(0, new.end)
        if not has_rows_left(rest, acked, snapshot):
            return DecidedDelivery(0, request.start)
        return self._store_record(
            request, cursor, new.end, [unacknowledged_share(rest, acked)], [], floor=min(rest.start, new.start)
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
        now = self._time(_newest_ms(previous))
        if nacked := _delivered_rows(request.nacked, previous, cursor, snapshot):
            self._nacked.setdefault(key, PositionSet()).update(nacked)
        budget = BatchBudget(request.back_rows, request.back_bytes, request.back_first)
        decision = self._decision(request, cursor, previous, acknowledged, snapshot, budget)
        self._redelivered_rows[key] = request.after, self._nacked_rows(key, request.after)
        self._nacked.pop(key, None)
        if decision.nacked:
            self._nacked[key] = decision.nacked
        dead = self._dead_letter_record(cursor, decision.dead)
        due, back_rows, back_bytes = decision.due, budget.taken_rows, budget.taken_bytes
        fresh = PositionRange(max(new.start, cursor.next_position), new.end)
        ahead: PositionRange | None = None
        if request.holder:
            fresh = budget.take(fresh, acknowledged.within(fresh), snapshot)
            rest = PositionRange(max(fresh.end, new.start), new.end)
            ahead = BatchBudget(request.back_rows, request.back_bytes).take(rest, PositionSet(), snapshot)
        if fresh and has_rows_left(fresh, acknowledged.within(fresh), snapshot):
            due = [*due, unacknowledged_share(fresh, acknowledged, 0, now)]
        if not due and request.holder:
            return DecidedDelivery(0, new.end, dead)
        if not due:
            # Spark has committed all batches of the reader. It repeats none of them, so the replay floor may advance.
            if cursor.replay_floor is not None and cursor.replay_floor < cursor.next_position:
                self._acknowledgements.set_replay_floor(cursor, cursor.next_position)
            return DecidedDelivery(0, new.start, dead)
        # Dead letters stay outstanding until they are acknowledged. Otherwise a crash before that would lose them.
        waiting = [*decision.waiting, *decision.dead]
        floor = None if request.holder else min(share.range.start for share in due)
        end = max(new.start, fresh.end) if request.holder else new.end
        decided = self._store_record(request, cursor, end, due, waiting, floor=floor, dead=dead)
        self._count(key, redelivered=back_rows)
        if not request.holder:
            return msgspec.structs.replace(decided, back_rows=back_rows, back_bytes=back_bytes)
        return msgspec.structs.replace(decided, back_rows=back_rows, shares=due, ahead=ahead or None)

    def _decision(
        self,
        request: NextDelivery | AskDue,
        cursor: CursorRecord,
        previous: DeliveryRecord | None,
        acknowledged: PositionSet,
        snapshot: LogSnapshot,
        budget: BatchBudget,
    ) -> RedeliveryDecision:
        nacked = self._nacked_rows((cursor.ledger, cursor.name), request.after)
        due_before_ms = request.due_before_ms if isinstance(request, NextDelivery) else 0
        policy = RedeliveryPolicy(request.ack_timeout_ms, request.max_redeliveries, request.before_ms, due_before_ms)
        now, first = self._time(_newest_ms(previous)), cursor.next_position
        return decide(_outstanding(previous), acknowledged, first, nacked, snapshot, now, policy, budget)

    def _nacked_rows(self, key: tuple[str, str], after: int) -> PositionSet:
        """Return the negatively acknowledged rows for the batch after that of record `after`.

        If this batch was decided before, the result includes the rows of that decision.
        """
        nacked = self._nacked.get(key, PositionSet()).copy()
        previous, rows = self._redelivered_rows.get(key, (-1, nacked))
        if previous == after:
            nacked.update(rows)
        return nacked

    def _store_record(
        self,
        request: NextDelivery,
        cursor: CursorRecord,
        position: Position,
        shares: list[DeliveredRange],
        waiting: list[DeliveredRange],
        *,
        floor: Position | None,
        dead: int = 0,
    ) -> DecidedDelivery:
        def changed(found: CursorRecord) -> CursorRecord:
            moved = found.at(max(found.next_position, cursor.next_position))
            return msgspec.structs.replace(moved, replay_floor=floor)

        newest = self._records.newest(cursor.ledger, cursor.name)
        number = max(request.after, 0 if newest is None else newest.record) + 1
        record = DeliveryRecord(number, position, shares, waiting)
        since_ms = _newest_ms(record) if newest is None else newest.since_ms  # a reset deletes the records
        record = msgspec.structs.replace(record, since_ms=since_ms)
        self._records.put(cursor.ledger, cursor.name, record, request.after, changed)
        return DecidedDelivery(number, position, dead)

    def _dead_letter_record(self, cursor: CursorRecord, shares: list[DeliveredRange]) -> int:
        """Store dead letters, and return the number of their record, 0 if there are none.

        `shares` has their ranges and rows.

        If the record of earlier dead letters is still stored, return its number instead. Then the new dead letters
        stay outstanding.
        """
        pending = self._records.get(cursor.ledger, cursor.name, DEAD)
        if pending is not None:
            return pending.record
        if not shares:
            return 0
        # The number is also the batch number of the write to the dead-letter ledger. Such numbers must rise.
        number = self._metadata.allocate_ledger_id()
        self._records.put_dead(cursor.ledger, cursor.name, DeliveryRecord(number, cursor.next_position, shares))
        return number

    def _cursor(self, ledger: str, name: str) -> CursorRecord:
        found = self._metadata.cursors.get(ledger, name)
        if found is None:
            raise NotFound(f"ledger {ledger!r} has no cursor {name!r}")
        return found.cursor


def _outstanding(record: DeliveryRecord | None) -> list[DeliveredRange]:
    return [] if record is None else [*record.waiting, *record.shares]


def _delivered_rows(
    shares: list[DeliveredRange], newest: DeliveryRecord | None, cursor: CursorRecord, snapshot: LogSnapshot
) -> PositionSet:
    """Return those rows of a loop's batch that are outstanding since its delivery. A reset ends a delivery."""
    rows = PositionSet()
    for share in shares:
        if newest is not None and share.at_ms >= newest.since_ms:
            rows.update(shared_rows(share, _outstanding(newest), cursor.next_position, snapshot))
    drop_rowless(rows, snapshot)
    return rows


def _newest_ms(record: DeliveryRecord | None) -> int:
    return max((share.at_ms for share in _outstanding(record)), default=0)
