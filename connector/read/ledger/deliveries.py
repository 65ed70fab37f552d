"""Delivery of rows that are acknowledged one by one, on the driver. A batch may skip, redeliver or give up rows.

A row that was delivered and not acknowledged is *redelivered* in a later batch. After too many deliveries it becomes a
*dead letter*: it is moved to another ledger. A *skipped* row is in a range of the batch and is not delivered, for
example because it is acknowledged already.

Rules
- The broker chooses the rows of a batch and stores the choice as a *delivery record*. The query only asks for the
  record. Spark's checkpoint has the record's number.
- `ledger.consumer.dead_letters` writes the dead letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_ledger.connector.read.ledger.task import LedgerTask
from pyspark_ledger.connector.read.offsets import LedgerOffset, LedgerRange
from pyspark_ledger.ledger.consumer.dead_letters import send_to_dead_letter
from pyspark_ledger.ledger.cursor.redelivery import encode_skipped
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_info import decode_info
from pyspark_ledger.ledger.protocol.cursors import (
    UNLIMITED,
    AskDelivery,
    AskDue,
    DecidedDelivery,
    DeliveredRange,
    Delivery,
    Due,
    NextDelivery,
)

if TYPE_CHECKING:
    from pyspark_ledger.connector.read.ledger.scan import LedgerRead

ACK_TIMEOUT_MS = 300_000


class RedeliveryLimits(NamedTuple):
    """Limits of the redelivered rows in a batch of one ledger.

    `first` allows that the first entry exceeds the limits.
    """

    rows: int = UNLIMITED
    size_bytes: int = UNLIMITED
    first: bool = True

    def remaining_after(self, decided: DecidedDelivery) -> RedeliveryLimits:
        """Return the rest of the limits for the next ledger."""
        rows, size = max(self.rows - decided.back_rows, 0), max(self.size_bytes - decided.back_bytes, 0)
        return RedeliveryLimits(rows, size, self.first and not decided.back_rows)


NO_LIMIT = RedeliveryLimits()


class Deliveries:
    """Delivery records of one ledger, for one query with a subscription.

    Rows that were delivered at `before_ms` or later are not redelivered yet.
    """

    def __init__(self, read: LedgerRead, subscription: str, ledger: str, incarnation: str, before_ms: int) -> None:
        self._read = read
        self._ledger = ledger
        self._incarnation = incarnation
        self._subscription = subscription
        self._before_ms = before_ms
        self.explicit = read.options.ack_mode == "explicit"

    def newest(self) -> Delivery:
        """Return the newest delivery record. A query without a checkpoint continues after this record."""
        return self._get(0)

    def due(self, delivery: int) -> Due:
        """Return the rows that are due for redelivery in the batch after a record, regardless of the batch limits."""
        return self._read.connection.ask(AskDue(self._ledger, self._subscription, delivery, *self._redelivery_policy()))

    def next(self, offset: LedgerOffset, end: Position, limits: RedeliveryLimits = NO_LIMIT) -> DecidedDelivery:
        """Let the broker choose the rows of the batch from `offset` to `end`, with redelivered rows within `limits`.

        Also writes the dead letters that the broker has chosen.
        """
        timeout_ms, redeliveries, before_ms = self._redelivery_policy()
        request = NextDelivery(
            self._ledger,
            self._subscription,
            offset.delivery,
            offset.position,
            end,
            self.explicit,
            timeout_ms,
            redeliveries,
            limits.rows,
            limits.size_bytes,
            limits.first,
            before_ms,
        )
        decided = self._read.connection.ask(request)
        if decided.dead:
            self._read.connection.call(
                lambda client: send_to_dead_letter(client, self._ledger, self._subscription, decided.dead)
            )
        return decided

    def _redelivery_policy(self) -> tuple[int, int, int]:
        options = self._read.options
        return (
            ACK_TIMEOUT_MS if options.ack_timeout is None else options.ack_timeout,
            -1 if options.max_redeliveries is None else options.max_redeliveries,
            self._before_ms,
        )

    def tasks(self, record: int) -> list[LedgerTask]:
        """Return the tasks of a delivery record. Every call returns the same tasks."""
        return [task for delivered in self._get(record).shares for task in self._range_tasks(delivered)]

    def _range_tasks(self, delivered: DeliveredRange) -> list[LedgerTask]:
        count = delivered.count if self.explicit else -1
        source, parts = (
            self._read.source(ledgers=[self._ledger]),
            self._read.task_ranges(self._ledger_range(delivered.range)),
        )
        if not delivered.skip:
            return [LedgerTask(self._read.source_of(source, [part]), (part,), b"", count) for part in parts]
        skipped = decode_info(delivered.skip, "a range of a delivery record").acknowledged
        return [
            # A task gets only the skipped rows of its own part. Those of the whole range may take megabytes.
            LedgerTask(self._read.source_of(source, [part]), (part,), encode_skipped(skipped.within(part.range)), count)
            for part in parts
            if not _is_skipped(part, skipped)
        ]

    def _ledger_range(self, range_: PositionRange) -> LedgerRange:
        return LedgerRange(self._ledger, self._incarnation, range_)

    def _get(self, record: int) -> Delivery:
        return self._read.connection.ask(AskDelivery(self._ledger, self._subscription, record))


def _is_skipped(part: LedgerRange, skipped: Any) -> bool:
    """Return whether all rows of a part are skipped. This is true for most parts of a redelivered range."""
    start, end = part.range.start, part.range.end
    return start.ledger_id == end.ledger_id and skipped.next_missing(start) >= end
