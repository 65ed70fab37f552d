"""Which rows a batch delivers when it is more than a range: holes, what comes back, what is given up. Pure.

Rules
- A delivery is a range without what is skipped in it. What is acknowledged is skipped from then on; a delivery of which
  nothing is left is over.
- One that is older than the timeout comes back as a whole, with its count raised by one. Of one that is younger the
  rows that were given back come back alone, and are skipped in it.
- So every row that is outstanding is in exactly one delivery, and its count is how often it was delivered before.
- What was delivered within a run over what is there now (`before_ms`) neither comes back nor is given up in it; what of
  it was given back is remembered.
- One batch takes so much of what comes back as is allowed, the longest outstanding first, cut at entries. The rest
  waits as it did, and is as old as it was: it comes first in the next batch.
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
    """What is delivered now, what stays outstanding as it was, what was delivered too often; and of what was given back
    that for which there was no room.
    """

    due: list[DeliveredRange]
    waiting: list[DeliveredRange]
    dead: list[DeliveredRange]
    given_back: PositionSet


class RedeliveryPolicy(NamedTuple):
    """When what is outstanding comes back, and how often (-1: for ever); not if delivered at `before_ms` or later."""

    timeout_ms: int
    max_redeliveries: int
    before_ms: int = UNLIMITED


@dataclass(slots=True)
class BatchBudget:
    """How much comes back with one batch. With `first` its first entry comes whatever it holds."""

    rows: int = UNLIMITED
    size_bytes: int = UNLIMITED
    first: bool = True
    taken_rows: int = 0
    taken_bytes: int = 0

    def take(self, range_: PositionRange, skipped: PositionSet, snapshot: LogSnapshot) -> PositionRange:
        """The beginning of a range that comes back now, of which what is skipped does not."""
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
    """The rows of a range that are not acknowledged."""
    return DeliveredRange(count, range_, encode_skipped(acknowledged.within(range_)), at_ms)


def encode_skipped(skipped: PositionSet) -> bytes:
    return encode_info(_NOWHERE, skipped) if skipped else b""


def skipped_rows(share: DeliveredRange) -> PositionSet:
    return decode_info(share.skip, "a share of a batch").acknowledged if share.skip else PositionSet()


def has_rows_left(range_: PositionRange, skipped: PositionSet, snapshot: LogSnapshot) -> bool:
    """Whether any row of a range is not skipped."""
    if not range_:
        return False
    for part in snapshot.slices(range_):
        numbers = np.arange(part.first, part.end)
        sizes = entry_sizes(part.segment)[part.first : part.end]
        if (~skipped.contains_entries(part.segment.ledger_id, numbers) & (sizes > 0)).any():
            return True
    return False


def complement(chosen: PositionSet, range_: PositionRange, snapshot: LogSnapshot) -> PositionSet:
    """All rows of a range that are not in a set."""
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
    """What becomes of each delivery that is outstanding; `mark_delete` is the first position not acknowledged."""
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
