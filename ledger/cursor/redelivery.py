"""Redelivery decisions for a batch: pure functions that select the rows to redeliver, to keep, or to give up.

A *delivery* (`DeliveredRange`) is a range of positions that a batch delivered, without the rows that the delivery
skips. Its rows are *outstanding* until they are acknowledged. Rows that are given up become *dead letters*: they are
moved to another ledger.

Rules
- A delivery skips its acknowledged rows. A delivery ends when all of its rows are skipped.
- A delivery that is older than the timeout, or whose reader has ended, is redelivered as a whole, and its count rises
  by one.
- From a younger delivery, only negatively acknowledged rows are redelivered. These rows become a delivery of their own,
  and the first delivery skips them.
- So every outstanding row is in exactly one delivery, and the delivery's count is the number of earlier deliveries.
- A row that was delivered at or after `before_ms` is not redelivered and does not become a dead letter. Its negative
  acknowledgement is kept for a later batch. Reason: a query that reads only the rows present at its start (Spark's
  `availableNow`) must not deliver a row twice.
- A batch redelivers rows up to its budget. It begins with the rows that are outstanding longest, and ends between two
  entries. All other rows keep their age, so the next batch redelivers them first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pyspark_ledger.ledger.log.acknowledged_positions import entry_sizes
from pyspark_ledger.ledger.log.remaining import head_left, prefix_left
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_info import decode_info, encode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.cursors import UNLIMITED, DeliveredRange

_NOWHERE = Position(-1, -1)


class RedeliveryDecision(NamedTuple):
    """Decision about all outstanding deliveries.

    The batch redelivers `due`. Deliveries in `waiting` stay outstanding. The rows of `dead` become dead letters.
    `nacked` are negatively acknowledged rows that are not redelivered yet.
    """

    due: list[DeliveredRange]
    waiting: list[DeliveredRange]
    dead: list[DeliveredRange]
    nacked: PositionSet


class RedeliveryPolicy(NamedTuple):
    """Timeout and maximum number (-1: no limit) of redeliveries. Rows delivered at or after `before_ms` must wait.

    Rows delivered before `due_before_ms` are due at once, because the reader that received them has ended.
    """

    timeout_ms: int
    max_redeliveries: int
    before_ms: int = UNLIMITED
    due_before_ms: int = 0


@dataclass(slots=True)
class BatchBudget:
    """Limits of the redelivered rows of one batch. If `first` is set, the first entry may exceed the limits."""

    rows: int = UNLIMITED
    size_bytes: int = UNLIMITED
    first: bool = True
    taken_rows: int = 0
    taken_bytes: int = 0

    def take(self, range_: PositionRange, skipped: PositionSet, snapshot: LogSnapshot) -> PositionRange:
        """Return the prefix of `range_` that fits into the budget, and reduce the budget. Skipped rows do not count."""
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
    rest = PositionSet()
    for part in snapshot.slices(range_) if range_ else ():
        ledger_id = part.segment.ledger_id
        rows = chosen.rows(ledger_id)
        rows = rows.selected((rows.entries >= part.first) & (rows.entries < part.end))
        numbers = np.arange(part.first, part.end)
        inside = chosen.contains_entries(ledger_id, numbers) | np.isin(numbers, rows.entries)
        rest.add_entries(ledger_id, numbers[~inside])
        rest.add_rows(ledger_id, rows.inverse(entry_sizes(part.segment)))
    return rest


def shared_rows(
    delivered: DeliveredRange, outstanding: Iterable[DeliveredRange], next_position: Position, snapshot: LogSnapshot
) -> PositionSet:
    """Return the rows of `delivered` that are outstanding from this delivery or a later one of the same rows.

    After a reset of the cursor a row is delivered afresh, with count 0 and another time. Such a row is left out. The
    caller leaves out `delivered` from before a reset, because a later redelivery has a higher count again.
    """
    rows = PositionSet()
    for share in outstanding:
        start = max(delivered.range.start, share.range.start, next_position)
        both = PositionRange(start, min(delivered.range.end, share.range.end))
        if both and _is_since(share, delivered):
            skipped = skipped_rows(delivered)
            skipped.update(skipped_rows(share))
            rows.update(complement(skipped, both, snapshot))
    return rows


def _is_since(share: DeliveredRange, delivered: DeliveredRange) -> bool:
    return share.count > delivered.count or (share.count, share.at_ms) == (delivered.count, delivered.at_ms)


def decide(
    outstanding: Iterable[DeliveredRange],
    acknowledged: PositionSet,
    next_position: Position,
    nacked: PositionSet,
    snapshot: LogSnapshot,
    now_ms: int,
    policy: RedeliveryPolicy,
    budget: BatchBudget,
) -> RedeliveryDecision:
    """Decide on each outstanding delivery.

    `next_position` is the cursor's first unacknowledged position. `acknowledged` has its acknowledged positions after
    this position.
    """
    decision = RedeliveryDecision([], [], [], PositionSet())
    for share in sorted(outstanding, key=lambda share: (share.at_ms, share.range.start)):
        rest = PositionRange(max(share.range.start, next_position), share.range.end)
        skipped = skipped_rows(share)
        skipped.update(acknowledged.within(rest))
        skipped.trim_below(rest.start)
        if not rest or not has_rows_left(rest, skipped, snapshot):
            continue
        is_dead = 0 <= policy.max_redeliveries <= share.count
        if share.at_ms >= policy.before_ms:
            decision.nacked.update(nacked.within(rest))
        elif now_ms - share.at_ms >= policy.timeout_ms or share.at_ms < policy.due_before_ms:
            prefix = rest if is_dead else budget.take(rest, skipped, snapshot)
            _redeliver(decision, share, prefix, skipped, now_ms, is_dead=is_dead)
            rest = PositionRange(prefix.end, rest.end)
        else:
            nacked_here = nacked.within(rest)
            kept = complement(nacked_here, rest, snapshot) if nacked_here else PositionSet()
            kept.update(skipped)
            if nacked_here and has_rows_left(rest, kept, snapshot):
                prefix = rest if is_dead else budget.take(rest, kept, snapshot)
                _redeliver(decision, share, prefix, kept, now_ms, is_dead=is_dead)
                skipped.update(nacked_here.within(prefix))
                decision.nacked.update(nacked_here.within(PositionRange(prefix.end, rest.end)))
        if rest and has_rows_left(rest, skipped, snapshot):
            decision.waiting.append(
                DeliveredRange(share.count, rest, encode_skipped(skipped.within(rest)), share.at_ms)
            )
    return decision


def _redeliver(
    decision: RedeliveryDecision,
    share: DeliveredRange,
    range_: PositionRange,
    skipped: PositionSet,
    now_ms: int,
    *,
    is_dead: bool,
) -> None:
    if range_:
        redelivery = DeliveredRange(share.count + 1, range_, encode_skipped(skipped.within(range_)), now_ms)
        (decision.dead if is_dead else decision.due).append(redelivery)
