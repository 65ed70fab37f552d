"""A query's batches that are more than a range: holes, rows that come back, dead letters. The driver's side.

Rules
- The broker decides and keeps what it decided; here is only asked. Spark's checkpoint holds the record's number.
- Dead letters are written to `<ledger>-<subscription>-DLQ` as a run of their own number, once however often it is
  tried, and only then acknowledged. Those of all partitions of a ledger go to one.
- Columns that the ledger got since its first dead letter are added to the columns of those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from pyspark_ledger.connector.options.ledger_selection import dead_letter_ledger
from pyspark_ledger.connector.read.ledger.task import LedgerTask, ReadSource, read_rows
from pyspark_ledger.connector.read.offsets import LedgerOffset, LedgerRange
from pyspark_ledger.ledger.cursor.redelivery import skip_bytes
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_info import decode_info
from pyspark_ledger.ledger.protocol.cursors import (
    UNLIMITED,
    AckDeadLetters,
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
_DEAD_LETTERS = -1


class RedeliveryLimits(NamedTuple):
    """How much may come back with a batch of one ledger; with `first` at least one entry."""

    rows: int = UNLIMITED
    size_bytes: int = UNLIMITED
    first: bool = True

    def remaining_after(self, decided: DecidedDelivery) -> RedeliveryLimits:
        """What is left of it for the next ledger."""
        rows, size = max(self.rows - decided.back_rows, 0), max(self.size_bytes - decided.back_bytes, 0)
        return RedeliveryLimits(rows, size, self.first and not decided.back_rows)


NO_LIMIT = RedeliveryLimits()


class Deliveries:
    """What one query delivers of one ledger in the name of a subscription.

    What was delivered at `before_ms` or later does not come back yet.
    """

    def __init__(
        self, read: LedgerRead, subscription: str, ledger: str, incarnation: str, before_ms: int = UNLIMITED
    ) -> None:
        self._read = read
        self._ledger = ledger
        self._incarnation = incarnation
        self._subscription = subscription
        self._before_ms = before_ms
        self.explicit = read.options.ack_mode == "explicit"

    def newest(self) -> Delivery:
        """Where a query without a checkpoint goes on: after what was delivered last."""
        return self._get(0)

    def due(self, delivery: int) -> Due:
        """What would come back with the batch after a record, if there were no limit."""
        found: Due = self._ask(
            "delivery.due", AskDue(self._ledger, self._subscription, delivery, *self._redelivery_policy())
        )
        return found

    def next(self, offset: LedgerOffset, end: Position, back: RedeliveryLimits = NO_LIMIT) -> DecidedDelivery:
        """Decide on the batch after an offset, which reads on up to `end`; of what comes back it takes so much."""
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
            back.rows,
            back.size_bytes,
            back.first,
            before_ms,
        )
        decided: DecidedDelivery = self._ask("delivery.next", request)
        if decided.dead:
            self._send_to_dead_letter(decided.dead)
        return decided

    def _redelivery_policy(self) -> tuple[int, int, int]:
        options = self._read.options
        return (
            ACK_TIMEOUT_MS if options.ack_timeout is None else options.ack_timeout,
            -1 if options.max_redeliveries is None else options.max_redeliveries,
            self._before_ms,
        )

    def tasks(self, record: int) -> list[LedgerTask]:
        """The partitions of a batch: the same for the same record."""
        return [part for share in self._get(record).shares for part in self._range_tasks(share)]

    def _range_tasks(self, share: DeliveredRange) -> list[LedgerTask]:
        count = share.count if self.explicit else -1
        source, parts = (
            self._read.source(ledgers=[self._ledger]),
            self._read.task_ranges(self._ledger_range(share.range)),
        )
        if not share.skip:
            return [LedgerTask(source, (part,), b"", count) for part in parts]
        skipped = decode_info(share.skip, "a share of a batch").acknowledged
        return [
            # A task is told of its own part only: all that a share skips may be megabytes.
            LedgerTask(source, (part,), skip_bytes(skipped.within(part.range)), count)
            for part in parts
            if not _is_skipped(part, skipped)
        ]

    def _send_to_dead_letter(self, dead: int) -> None:
        from pyspark_ledger.connector.options.options import LedgerOptions
        from pyspark_ledger.connector.rows.dead_letters import dead_letter_columns, dead_letter_rows, dead_letter_shape
        from pyspark_ledger.connector.schema import spark_schema
        from pyspark_ledger.connector.write.commit import commit_parts, stage_rows
        from pyspark_ledger.connector.write.target import prepare_target

        read = self._read
        found = self._get(_DEAD_LETTERS)
        # A ledger of messages is read as bytes, whatever their schema: nothing of them may be lost here.
        shape = dead_letter_shape(read.found.columns, self._ledger)
        columns, source = dead_letter_columns(shape), read.source(shape)
        options = read.options
        named = dead_letter_ledger(self._ledger, self._subscription)
        given = LedgerOptions(
            ledger=named,
            store=options.store,
            tls_trust_certs_file_path=options.tls_trust_certs_file_path,
            tls_certificate_file_path=options.tls_certificate_file_path,
            tls_key_file_path=options.tls_key_file_path,
            auth_params=options.auth_params,
            merge_schema=True,
        )
        target = prepare_target(given, spark_schema(columns, named))
        query, version = f"dead-letters of {self._ledger} {self._subscription}", ""
        staged = stage_rows(target, version, query, dead, dead_letter_rows(self._rows(found.shares, source), columns))
        commit_parts(target, version, [staged], dead)
        self._ask("delivery.bury", AckDeadLetters(self._ledger, self._subscription, dead))

    def _rows(self, shares: list[DeliveredRange], source: ReadSource) -> Iterator[pa.RecordBatch]:
        for share in shares:
            yield from read_rows(
                self._read.connection.client, LedgerTask(source, (self._ledger_range(share.range),), share.skip)
            )

    def _ledger_range(self, range_: PositionRange) -> LedgerRange:
        return LedgerRange(self._ledger, self._incarnation, range_)

    def _get(self, record: int) -> Delivery:
        found: Delivery = self._ask("delivery.get", AskDelivery(self._ledger, self._subscription, record))
        return found

    def _ask(self, action: str, request: Any) -> Any:
        return self._read.connection.call(lambda client: client.call(action, request))


def _is_skipped(part: LedgerRange, skipped: Any) -> bool:
    """Whether nothing of a part within one ledger is delivered: most of a range that comes back is like that."""
    start, end = part.range.start, part.range.end
    return start.ledger_id == end.ledger_id and skipped.next_missing(start) >= end
