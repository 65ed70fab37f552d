"""Size of one batch: how many entries of each ledger fit into `maxRowsPerTrigger` and `maxBytesPerTrigger`.

Rules
- A batch always contains the oldest unread entry of all ledgers, even if this entry alone exceeds the limits. So every
  batch makes progress, and an entry waits only for older entries.
- The rest of the limits is split by max-min fairness (`fair_shares`). Every ledger gets an equal share. If a ledger
  needs less, the other ledgers get the rest. So a ledger with a small backlog is read to its end in every batch.
- If the shares are too small for a whole entry, the batch takes the first entries of some ledgers, the oldest first.
- The limits of rows and bytes apply together. Ranges are split between entries, never inside an entry.
- Values and functions have no side effects. Exception: the argument `ask` asks the broker where limited ranges end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from pyspark_ledger.ledger.position import PositionRange
from pyspark_ledger.ledger.protocol.reads import LimitedRange, LogStatus, SplitPart

Reason = Literal["everything", "limits", "one entry", "waiting", "nothing"]
"""Reason of a batch's size: the whole backlog, the limits, one entry above the limits, or too few rows yet."""
AskLimitedRanges = Callable[[Sequence[LimitedRange]], list[SplitPart]]
_UNLIMITED = 2**62
_Source = TypeVar("_Source")
_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum rows and bytes of one batch. None means no limit."""

    rows: int | None = None
    size_bytes: int | None = None

    def __bool__(self) -> bool:
        return self.rows is not None or self.size_bytes is not None

    def __str__(self) -> str:
        limits = {"maxRowsPerTrigger": self.rows, "maxBytesPerTrigger": self.size_bytes}
        return " or ".join(name for name, limit in limits.items() if limit is not None)

    def allow(self, rows: int, size_bytes: int) -> bool:
        """Return whether these numbers of rows and bytes are within the limits."""
        return rows <= self.rows_max and size_bytes <= self.bytes_max

    @property
    def rows_max(self) -> int:
        return _UNLIMITED if self.rows is None else self.rows

    @property
    def bytes_max(self) -> int:
        return _UNLIMITED if self.size_bytes is None else self.size_bytes


@dataclass(frozen=True, slots=True)
class LedgerBacklog:
    """Unread entries of one ledger. The *head* is their first part, up to and including the first entry with rows."""

    ledger: str
    range: PositionRange
    entries: int
    rows: int
    size_bytes: int
    head_rows: int
    head_bytes: int
    head_ms: int

    @classmethod
    def of(cls, log: LogStatus) -> LedgerBacklog:
        left = PositionRange(log.begin, log.stop)
        return cls(log.name, left, log.entries, log.rows, log.size_bytes, log.head_rows, log.head_bytes, log.head_ms)

    def to_part(self) -> SplitPart:
        return SplitPart(self.range, self.entries, self.rows, self.size_bytes)


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait for `rows_min` rows, at most until the oldest row is `delay_ms` old by the broker's clock."""

    rows_min: int = 0
    delay_ms: int = 0

    def must_wait(self, backlogs: Sequence[LedgerBacklog], now_ms: int) -> bool:
        """Return whether the batch must wait for more rows. False if there are no rows at all."""
        heads = [backlog.head_ms for backlog in backlogs if backlog.rows]
        if not heads or sum(backlog.rows for backlog in backlogs) >= self.rows_min:
            return False
        return 0 <= now_ms - min(heads) < self.delay_ms


def admit_rows(
    backlogs: Sequence[LedgerBacklog], limits: Limits, ask: AskLimitedRanges
) -> tuple[dict[str, SplitPart], Reason]:
    """Return the part of each ledger that a batch reads, and the reason of the batch's size.

    The batch contains at least the oldest entry, unless there are no rows.
    """
    queue = sorted(
        (backlog for backlog in backlogs if backlog.rows), key=lambda backlog: (backlog.head_ms, backlog.ledger)
    )
    if not queue:
        return {}, "nothing"
    if limits.allow(sum(backlog.rows for backlog in queue), sum(backlog.size_bytes for backlog in queue)):
        return {backlog.ledger: backlog.to_part() for backlog in queue}, "everything"
    parts = _fair_parts(queue, limits, ask)
    rows, size = _sums(parts)
    if not limits.allow(rows, size):
        return parts, "one entry"
    fitting = _fitting_heads([backlog for backlog in queue if backlog.ledger not in parts], limits, rows, size)
    heads = [LimitedRange(log.ledger, log.range, log.head_rows, log.head_bytes) for log in fitting]
    return parts | _ask_parts(fitting, heads, ask), "limits"


def share_limits(
    sources: Sequence[_Source], limits: Limits, take: Callable[[_Source, int, int], tuple[_Part, int, int]]
) -> list[tuple[_Part, int, int]]:
    """Return the part that `take` selects from each source within its share of the limits, with rows and bytes.

    If a source uses less than its share, the later sources share the rest.
    """
    rows, size, parts = limits.rows_max, limits.bytes_max, []
    for number, source in enumerate(sources):
        remaining = len(sources) - number
        parts.append(take(source, max(rows // remaining, 1), max(size // remaining, 1)))
        rows, size = max(rows - parts[-1][1], 0), max(size - parts[-1][2], 0)
    return parts


def fair_shares(needs: Sequence[int], budget: int) -> list[int]:
    """Split a budget by max-min fairness and return each share.

    No share exceeds its need. Unused parts of shares are distributed again. If equal needs cannot get equal shares,
    the first of them get one more.
    """
    shares, left = [0] * len(needs), budget
    order = sorted(range(len(needs)), key=lambda i: (needs[i], -i))
    for done, i in enumerate(order):
        shares[i] = min(needs[i], left // (len(order) - done))
        left -= shares[i]
    return shares


def _fair_parts(queue: Sequence[LedgerBacklog], limits: Limits, ask: AskLimitedRanges) -> dict[str, SplitPart]:
    """Return the part of each ledger within its fair share. The ledger with the oldest entry gets at least its head."""
    oldest = queue[0]
    rows = fair_shares(
        [log.rows - (log.head_rows if log is oldest else 0) for log in queue],
        max(limits.rows_max - oldest.head_rows, 0),
    )
    sizes = fair_shares(
        [log.size_bytes - (log.head_bytes if log is oldest else 0) for log in queue],
        max(limits.bytes_max - oldest.head_bytes, 0),
    )
    rows[0] += oldest.head_rows
    sizes[0] += oldest.head_bytes
    served = [
        (log, LimitedRange(log.ledger, log.range, rows_max, bytes_max))
        for log, rows_max, bytes_max in zip(queue, rows, sizes, strict=True)
        if log.head_rows <= rows_max and log.head_bytes <= bytes_max
    ]
    return _ask_parts([log for log, _ in served], [limited for _, limited in served], ask)


def _fitting_heads(queue: Sequence[LedgerBacklog], limits: Limits, rows: int, size: int) -> list[LedgerBacklog]:
    """Return the backlogs whose head still fits into the limits, the oldest first."""
    fitting = []
    for log in queue:
        if limits.allow(rows + log.head_rows, size + log.head_bytes):
            rows, size = rows + log.head_rows, size + log.head_bytes
            fitting.append(log)
    return fitting


def _ask_parts(
    served: Sequence[LedgerBacklog], ranges: Sequence[LimitedRange], ask: AskLimitedRanges
) -> dict[str, SplitPart]:
    if not served:
        return {}
    return {log.ledger: part for log, part in zip(served, ask(ranges), strict=True) if part.entries}


def _sums(parts: dict[str, SplitPart]) -> tuple[int, int]:
    return sum(part.rows for part in parts.values()), sum(part.size_bytes for part in parts.values())
