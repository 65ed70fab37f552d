"""Selection of sealed segments for offload to object storage: by age, by size, or up to a position. Pure functions.

The rule is Pulsar's. A segment is due if it was sealed long enough ago. A segment is also due if this segment and all
newer sealed segments together exceed a size. The oldest due segment is offloaded first. A *log* is a ledger without
partitions, or one partition. In the code, `ledger` and `ledger_id` mean a segment and its id, as in Pulsar.

Invariant: An open segment, an empty segment and an offloaded segment are never selected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position


class OffloadCandidate(NamedTuple):
    """Segment of a log. `close_ms` is 0 while it is open. `complete` means that it is offloaded."""

    ledger_id: int
    entries: int
    size_bytes: int
    close_ms: int
    complete: bool


def due(ledgers: Sequence[OffloadCandidate], size_max: int, age_max_ms: int, now_ms: int) -> list[int]:
    """Return the ids of the due segments, oldest first. -1 means no limit."""
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
    """Return the ids of the sealed segments that end before a position and are not offloaded, oldest first."""
    if position in (EARLIEST, LATEST) or position.ledger_id < 0:
        raise Refused(f"{name!r} cannot be offloaded up to {position}", hint="Name a position of the log")
    sealed = [ledger for ledger in ledgers if ledger.close_ms and ledger.entries]
    return [
        ledger.ledger_id
        for ledger in sealed
        if not ledger.complete and Position(ledger.ledger_id, ledger.entries) <= position
    ]


def first_left(ledgers: Sequence[OffloadCandidate], end: Position) -> Position:
    """Return the start of the first segment that is not offloaded, or the log's end."""
    for ledger in ledgers:
        if not ledger.complete:
            return Position(ledger.ledger_id, 0)
    return end
