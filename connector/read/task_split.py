"""Assignment of ranges to tasks: large ranges are split by size, small ranges of many ledgers share a task.

Rules
- A plan depends only on the ranges and on stored entries, which never change. So a repeated batch has the same tasks.
- A task costs tens of milliseconds, even if it reads few rows. So a small read has few tasks. A large read has tasks of
  about equal size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pyspark_ledger.connector.read.offsets import LedgerRange
from pyspark_ledger.ledger.protocol.reads import SplitPart, SplitRequest

# Number of tasks of a read, if these tasks then have between `least` and `target` bytes.
_PARTS_OF_MEDIUM_READ = 4
_PARTS_MAX = 4096

SplitRangesOf = Callable[[Sequence[SplitRequest]], list[list[SplitPart]]]
"""Call of the broker that splits ranges between entries."""


@dataclass(frozen=True, slots=True)
class SizedRange:
    """Range of a ledger with its number of entries and bytes."""

    range: LedgerRange
    entries: int
    size_bytes: int


def part_bytes(total_bytes: int, least: int, target: int) -> int:
    """Return the number of bytes that one task should read, for a read of `total_bytes`."""
    if total_bytes <= least:
        return max(total_bytes, 1)
    return max(least, min(target, -(-total_bytes // _PARTS_OF_MEDIUM_READ)))


def plan_tasks(ranges: Iterable[SizedRange], least: int, target: int, split: SplitRangesOf) -> list[list[LedgerRange]]:
    """Return the ranges of each task, in order.

    A read of up to `least` bytes is one task. A larger read is split into tasks of about `target` bytes.
    """
    filled_ranges = [sized for sized in ranges if sized.entries]
    size = part_bytes(sum(sized.size_bytes for sized in filled_ranges), least, target)
    large = [sized.range for sized in filled_ranges if sized.size_bytes > size]
    requests = [SplitRequest(planned.ledger, planned.range, size, _PARTS_MAX) for planned in large]
    splits = dict(zip((planned.ledger for planned in large), split(requests) if requests else [], strict=True))
    tasks: list[list[LedgerRange]] = []
    filled = size
    for sized in filled_ranges:
        for part in _parts(sized, splits.get(sized.range.ledger)):
            if filled + part.size_bytes > size:
                tasks.append([])
                filled = 0
            tasks[-1].append(part.range)
            filled += part.size_bytes
    return tasks


def _parts(whole: SizedRange, split: list[SplitPart] | None) -> list[SizedRange]:
    if split is None:
        return [whole]
    source = whole.range
    return [
        SizedRange(LedgerRange(source.ledger, source.incarnation, part.range), part.entries, part.size_bytes)
        for part in split
        if part.entries
    ]
