"""Which task reads what, as values: large ranges are cut by size, small ones of many ledgers share a task.

Rules: plans are pure functions of the ranges and the immutable logs, so that a batch planned again is the same batch.
A partition costs tens of milliseconds whatever it holds: few when little is read, by size when much is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyspark_ledger.connector.read.offsets import LedgerRange
from pyspark_ledger.ledger.protocol.reads import SplitPart, SplitRequest

# A range in between is cut into this many parts.
_PARTS_OF_A_MIDDLING_RANGE = 4
_PARTS_MAX = 4096

SplitRangesOf = Callable[[Sequence[SplitRequest]], list[list[SplitPart]]]
"""Ranges cut at entries, as the broker does it, in one call."""


@dataclass(frozen=True, slots=True)
class SizedRange:
    """A range of a ledger, and what it holds."""

    range: LedgerRange
    entries: int
    size_bytes: int


def part_bytes(total_bytes: int, least: int, target: int) -> int:
    """About how many bytes one partition reads of ranges of `total_bytes`."""
    if total_bytes <= least:
        return max(total_bytes, 1)
    return max(least, min(target, -(-total_bytes // _PARTS_OF_A_MIDDLING_RANGE)))


def plan_tasks(ranges: Iterable[SizedRange], least: int, target: int, split: SplitRangesOf) -> list[list[LedgerRange]]:
    """What each task reads, in order: one task when it is little, else of about `target` bytes each."""
    held = [one for one in ranges if one.entries]
    size = part_bytes(sum(one.size_bytes for one in held), least, target)
    large = [one.range for one in held if one.size_bytes > size]
    requests = [SplitRequest(one.ledger, one.range, size, _PARTS_MAX) for one in large]
    cut = dict(zip((one.ledger for one in large), split(requests) if requests else [], strict=True))
    tasks: list[list[LedgerRange]] = []
    filled = size
    for one in held:
        for part in _parts(one, cut.get(one.range.ledger)):
            if filled + part.size_bytes > size:
                tasks.append([])
                filled = 0
            tasks[-1].append(part.range)
            filled += part.size_bytes
    return tasks


def _parts(whole: SizedRange, cut: list[SplitPart] | None) -> list[SizedRange]:
    if cut is None:
        return [whole]
    at = whole.range
    return [
        SizedRange(LedgerRange(at.ledger, at.incarnation, part.range), part.entries, part.size_bytes)
        for part in cut
        if part.entries
    ]
