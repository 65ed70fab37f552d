"""Which rows a batch delivers when it is more than a range: holes, what comes back, what is given up. Pure.

Rules
- A delivery is a range without what is skipped in it. What is acknowledged is skipped from then on; a delivery of which
  nothing is left is over.
- One that is older than the timeout comes back as a whole, with its count raised by one. Of one that is younger the
  rows that were given back come back alone, and are skipped in it.
- So every row that is outstanding is in exactly one delivery, and its count is how often it was delivered before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ledger.acknowledged_rows import entry_sizes
from ledger.delivery_calls import Share
from ledger.log_snapshot import LogSnapshot
from ledger.position import Position, PositionRange
from ledger.position_info import decode_info, encode_info
from ledger.position_set import PositionSet

_NOWHERE = Position(-1, -1)


class Outcome(NamedTuple):
    """What is delivered now, what stays outstanding as it was, and what was delivered too often."""

    due: list[Share]
    waiting: list[Share]
    dead: list[Share]


def share_of(range_: PositionRange, acknowledged: PositionSet, count: int = 0, at_ms: int = 0) -> Share:
    """The rows of a range that are not acknowledged."""
    return Share(count, range_, skip_bytes(acknowledged.within(range_)), at_ms)


def skip_bytes(skipped: PositionSet) -> bytes:
    """A set as a share carries it."""
    return encode_info(_NOWHERE, skipped) if skipped else b""


def skipped_of(share: Share) -> PositionSet:
    """The set that a share skips."""
    return decode_info(share.skip, "a share of a batch").acknowledged if share.skip else PositionSet()


def delivers(range_: PositionRange, skipped: PositionSet, snapshot: LogSnapshot) -> bool:
    """Whether any row of a range is not skipped."""
    if not range_:
        return False
    for part in snapshot.slices(range_):
        numbers = np.arange(part.first, part.end)
        sizes = entry_sizes(part.segment)[part.first : part.end]
        if (~skipped.contains_entries(part.segment.ledger_id, numbers) & (sizes > 0)).any():
            return True
    return False


def outside(chosen: PositionSet, range_: PositionRange, snapshot: LogSnapshot) -> PositionSet:
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
    outstanding: Iterable[Share],
    acknowledged: PositionSet,
    mark_delete: Position,
    given_back: PositionSet,
    snapshot: LogSnapshot,
    now_ms: int,
    timeout_ms: int,
    max_redeliveries: int,
) -> Outcome:
    """What becomes of each delivery that is outstanding; `mark_delete` is the first position not acknowledged."""
    outcome = Outcome([], [], [])
    for share in outstanding:
        left = PositionRange(max(share.range.start, mark_delete), share.range.end)
        skipped = skipped_of(share)
        skipped.update(acknowledged.within(left))
        skipped.trim_below(left.start)
        if not left or not delivers(left, skipped, snapshot):
            continue
        if now_ms - share.at_ms >= timeout_ms:
            _again(outcome, share, left, skipped, now_ms, max_redeliveries)
            continue
        back = given_back.within(left)
        again = outside(back, left, snapshot)
        again.update(skipped)
        if back and delivers(left, again, snapshot):
            _again(outcome, share, left, again, now_ms, max_redeliveries)
            skipped.update(back)
            if not delivers(left, skipped, snapshot):
                continue
        outcome.waiting.append(Share(share.count, left, skip_bytes(skipped), share.at_ms))
    return outcome


def _again(
    outcome: Outcome, share: Share, left: PositionRange, skipped: PositionSet, now_ms: int, max_redeliveries: int
) -> None:
    again = Share(share.count + 1, left, skip_bytes(skipped), now_ms)
    given_up = 0 <= max_redeliveries < again.count
    (outcome.dead if given_up else outcome.due).append(again)
