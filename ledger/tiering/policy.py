"""Selection of sealed segments for offload: by age or size, or for a requested prefix. Pure.

Pulsar's rule: sizes are summed from the newest sealed segment to the oldest. A segment is due if the sum including its
own size exceeds the threshold, or if it was sealed long enough ago. The oldest are offloaded first.

Invariants
- An open segment, an empty one and a completely offloaded one are never selected.
- The position returned for a prefix is the beginning of the first segment that is not offloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position


class OffloadCandidate(NamedTuple):
    """Segment of the list. `close_ms` is 0 while it is open; `complete`: it is in object storage."""

    ledger_id: int
    entries: int
    size_bytes: int
    close_ms: int
    complete: bool


def due(ledgers: Sequence[OffloadCandidate], size_max: int, age_max_ms: int, now_ms: int) -> list[int]:
    """Return the ids of the due segments, oldest first. A limit of -1 makes none due."""
    found, left = [], 0
    for ledger in reversed(ledgers):
        if not ledger.close_ms:
            continue
        left += ledger.size_bytes
        over_size = 0 <= size_max < left
        of_age = 0 <= age_max_ms <= now_ms - ledger.close_ms
        if (over_size or of_age) and ledger.entries and not ledger.complete:
            found.append(ledger.ledger_id)
    return found[::-1]


def before(ledgers: Sequence[OffloadCandidate], position: Position, name: str) -> list[int]:
    """Return the ids of the sealed segments wholly before a position that are not offloaded yet, oldest first."""
    if position in (EARLIEST, LATEST) or position.ledger_id < 0:
        raise Refused(f"{name!r} cannot be offloaded up to {position}", hint="Name a position of the log")
    sealed = [ledger for ledger in ledgers if ledger.close_ms and ledger.entries]
    return [
        ledger.ledger_id
        for ledger in sealed
        if not ledger.complete and Position(ledger.ledger_id, ledger.entries) <= position
    ]


def first_left(ledgers: Sequence[OffloadCandidate], end: Position) -> Position:
    """Return the beginning of the first segment that is not offloaded; the log's end if all are."""
    for ledger in ledgers:
        if not ledger.complete:
            return Position(ledger.ledger_id, 0)
    return end
