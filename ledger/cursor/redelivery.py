"""Redelivery decisions for a batch: which rows are redelivered, stay outstanding, or become dead letters. Pure.

Rules
- A delivery is a range without skipped rows. Acknowledged rows are skipped. A delivery without remaining rows ends.
- A delivery older than the timeout is redelivered as a whole, and its count rises by one.
- Of a younger delivery only negatively acknowledged rows are redelivered. The delivery skips them from then on.
- So every outstanding row is in exactly one delivery, and the delivery's count is the number of earlier deliveries.
- A row delivered at or after `before_ms` is neither redelivered nor a dead letter. Its negative acknowledgement is
  remembered. Reason: a run over the current rows must not deliver a row twice.
- A batch redelivers rows up to its budget, the longest outstanding first, split between entries. All other rows keep
  their age, so the next batch redelivers them first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pyspark_ledger.ledger.log.acknowledged_positions import entry_sizes
from pyspark_ledger.ledger.log.queries import head_left, prefix_left
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_info import decode_info, encode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.cursors import UNLIMITED, DeliveredRange

_NOWHERE = Position(-1, -1)


class RedeliveryDecision(NamedTuple):
    """Deliveries of a batch, deliveries that stay outstanding, and dead letters.

    `given_back` holds the negatively acknowledged rows that are not redelivered yet.
    """

    due: list[DeliveredRange]
    waiting: list[DeliveredRange]
    dead: list[DeliveredRange]
    given_back: PositionSet


class RedeliveryPolicy(NamedTuple):
    """Timeout and limit (-1: none) of redeliveries. Deliveries at or after `before_ms` are not redelivered."""

    timeout_ms: int
    max_redeliveries: int
    before_ms: int = UNLIMITED


@dataclass(slots=True)
class BatchBudget:
    """Limits of the redelivered rows of one batch. With `first`, the first entry is redelivered in any size."""

    rows: int = UNLIMITED
    size_bytes: int = UNLIMITED
    first: bool = True
    taken_rows: int = 0
    taken_bytes: int = 0

    def take(self, range_: PositionRange, skipped: PositionSet, snapshot: LogSnapshot) -> PositionRange:
        """Return the prefix of `range_` that fits into the budget, and charge its rows except skipped rows."""
        rows, size = self.rows - self.taken_rows, self.size_bytes - self.taken_bytes
        if not self.first and (rows <= 0 or size <= 0):
            return PositionRange(range_.start, range_.start)
        part = prefix_left(snapshot, range_, skipped, max(rows, 0), max(size, 0))
        if not part.rows and self.first and (head := head_left(snapshot, range_, skipped)) is not None:
            part = prefix_left(snapshot, PositionRange(range_.start, head.end), skipped, head.rows, head.size_bytes)
        if part.rows:
            self.first = False
            self.taken_rows += part.rows
            self.taken_bytes += part.size_bytes
            return part.range
        return PositionRange(range_.start, range_.start)


def unacknowledged_share(
    range_: PositionRange, acknowledged: PositionSet, count: int = 0, at_ms: int = 0
) -> DeliveredRange:
    """Return a delivery of the unacknowledged rows of a range."""
    return DeliveredRange(count, range_, encode_skipped(acknowledged.within(range_)), at_ms)


def encode_skipped(skipped: PositionSet) -> bytes:
    return encode_info(_NOWHERE, skipped) if skipped else b""


def skipped_rows(share: DeliveredRange) -> PositionSet:
    return decode_info(share.skip, "a share of a batch").acknowledged if share.skip else PositionSet()


def has_rows_left(range_: PositionRange, skipped: PositionSet, snapshot: LogSnapshot) -> bool:
    """Return whether any row of a range is not skipped."""
    if not range_:
        return False
    for part in snapshot.slices(range_):
        numbers = np.arange(part.first, part.end)
        sizes = entry_sizes(part.segment)[part.first : part.end]
        if (~skipped.contains_entries(part.segment.ledger_id, numbers) & (sizes > 0)).any():
            return True
    return False


def complement(chosen: PositionSet, range_: PositionRange, snapshot: LogSnapshot) -> PositionSet:
    """Return all rows of a range that are not in `chosen`."""
    others = PositionSet()
    for part in snapshot.slices(range_) if range_ else ():
        ledger_id = part.segment.ledger_id
        rows = chosen.rows(ledger_id)
        rows = rows.selected((rows.entries >= part.first) & (rows.entries < part.end))
        numbers = np.arange(part.first, part.end)
        inside = chosen.contains_entries(ledger_id, numbers) | np.isin(numbers, rows.entries)
        others.add_entries(ledger_id, numbers[~inside])
        others.add_rows(ledger_id, rows.inverse(entry_sizes(part.segment)))
    return others


def decide(
    outstanding: Iterable[DeliveredRange],
    acknowledged: PositionSet,
    mark_delete: Position,
    given_back: PositionSet,
    snapshot: LogSnapshot,
    now_ms: int,
    policy: RedeliveryPolicy,
    budget: BatchBudget,
) -> RedeliveryDecision:
    """Decide on each outstanding delivery. `mark_delete` is the first unacknowledged position."""
    decision = RedeliveryDecision([], [], [], PositionSet())
    for share in sorted(outstanding, key=lambda share: (share.at_ms, share.range.start)):
        left = PositionRange(max(share.range.start, mark_delete), share.range.end)
        skipped = skipped_rows(share)
        skipped.update(acknowledged.within(left))
        skipped.trim_below(left.start)
        if not left or not has_rows_left(left, skipped, snapshot):
            continue
        is_dead = 0 <= policy.max_redeliveries <= share.count
        if share.at_ms >= policy.before_ms:
            decision.given_back.update(given_back.within(left))
        elif now_ms - share.at_ms >= policy.timeout_ms:
            now = left if is_dead else budget.take(left, skipped, snapshot)
            _redeliver(decision, share, now, skipped, now_ms, is_dead=is_dead)
            left = PositionRange(now.end, left.end)
        else:
            back = given_back.within(left)
            again = complement(back, left, snapshot) if back else PositionSet()
            again.update(skipped)
            if back and has_rows_left(left, again, snapshot):
                now = left if is_dead else budget.take(left, again, snapshot)
                _redeliver(decision, share, now, again, now_ms, is_dead=is_dead)
                skipped.update(back.within(now))
                decision.given_back.update(back.within(PositionRange(now.end, left.end)))
        if left and has_rows_left(left, skipped, snapshot):
            decision.waiting.append(
                DeliveredRange(share.count, left, encode_skipped(skipped.within(left)), share.at_ms)
            )
    return decision


def _redeliver(
    decision: RedeliveryDecision,
    share: DeliveredRange,
    now: PositionRange,
    skipped: PositionSet,
    now_ms: int,
    *,
    is_dead: bool,
) -> None:
    if now:
        again = DeliveredRange(share.count + 1, now, encode_skipped(skipped.within(now)), now_ms)
        (decision.dead if is_dead else decision.due).append(again)
