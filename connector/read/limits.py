"""How much of what is there one batch takes: values, and pure but for asking how far quotas reach.

Rules
- The oldest unread entry of all is always taken, also one that alone exceeds the limits. So a batch makes progress, and
  no entry waits for ever: only those that are older go before it.
- What the limits leave is shared equally; what a ledger does not need of its share goes to the others. So a small
  ledger is read to its end in every batch, however much lies in the large ones.
- Where shares are smaller than entries, ledgers take turns: one whole entry each, the oldest first.
- Rows and bytes limit together. Cuts are at entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from pyspark_ledger.ledger.position import PositionRange
from pyspark_ledger.ledger.protocol.reads import LimitedRange, LogStatus, SplitPart

Reason = Literal["everything", "limits", "one entry", "waiting", "nothing"]
"""Why a batch has its size: all there was; what limits allow; one entry that exceeds them; waiting for more rows."""
AskLimitedRanges = Callable[[Sequence[LimitedRange]], list[SplitPart]]
_UNLIMITED = 2**62
_Wanted = TypeVar("_Wanted")
_Reached = TypeVar("_Reached")


@dataclass(frozen=True, slots=True)
class Limits:
    """The most one batch may hold. None: no limit."""

    rows: int | None = None
    size_bytes: int | None = None

    def __bool__(self) -> bool:
        return self.rows is not None or self.size_bytes is not None

    def __str__(self) -> str:
        given = {"maxRowsPerTrigger": self.rows, "maxBytesPerTrigger": self.size_bytes}
        return " or ".join(name for name, limit in given.items() if limit is not None)

    def allow(self, rows: int, size_bytes: int) -> bool:
        """Whether so much is within the limits."""
        return rows <= self.rows_max and size_bytes <= self.bytes_max

    @property
    def rows_max(self) -> int:
        return _UNLIMITED if self.rows is None else self.rows

    @property
    def bytes_max(self) -> int:
        return _UNLIMITED if self.size_bytes is None else self.size_bytes


@dataclass(frozen=True, slots=True)
class LedgerBacklog:
    """What one ledger has left; the head is what comes first, up to the first entry with rows."""

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

    def whole(self) -> SplitPart:
        return SplitPart(self.range, self.entries, self.rows, self.size_bytes)


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait for `rows_min` rows until the oldest has waited `delay_ms`. The clock is the broker's."""

    rows_min: int = 0
    delay_ms: int = 0

    def must_wait(self, waiting: Sequence[LedgerBacklog], now_ms: int) -> bool:
        """Whether the batch has to wait. Without rows there is nothing that waits."""
        heads = [one.head_ms for one in waiting if one.rows]
        if not heads or sum(one.rows for one in waiting) >= self.rows_min:
            return False
        return 0 <= now_ms - min(heads) < self.delay_ms


def admit_rows(
    waiting: Sequence[LedgerBacklog], limits: Limits, ask: AskLimitedRanges
) -> tuple[dict[str, SplitPart], Reason]:
    """What a batch takes, by ledger, and why so much. At least the oldest entry, if there is any row."""
    queue = sorted((one for one in waiting if one.rows), key=lambda one: (one.head_ms, one.ledger))
    if not queue:
        return {}, "nothing"
    if limits.allow(sum(one.rows for one in queue), sum(one.size_bytes for one in queue)):
        return {one.ledger: one.whole() for one in queue}, "everything"
    taken = _shared(queue, limits, ask)
    rows, size = _sums(taken)
    if not limits.allow(rows, size):
        return taken, "one entry"
    fitting = _heads_that_fit([one for one in queue if one.ledger not in taken], limits, rows, size)
    taken |= _taken(fitting, [LimitedRange(o.ledger, o.range, o.head_rows, o.head_bytes) for o in fitting], ask)
    return taken, "limits"


def share_limits(
    wanted: Sequence[_Wanted], limits: Limits, reach: Callable[[_Wanted, int, int], tuple[_Reached, int, int]]
) -> list[tuple[_Reached, int, int]]:
    """Return what `reach` takes of each by an equal share of the limits, with rows and bytes.

    What the first do not need of their shares is there for those after them.
    """
    rows, size, taken = limits.rows_max, limits.bytes_max, []
    for number, one in enumerate(wanted):
        others = len(wanted) - number
        taken.append(reach(one, max(rows // others, 1), max(size // others, 1)))
        rows, size = max(rows - taken[-1][1], 0), max(size - taken[-1][2], 0)
    return taken


def fair_shares(needs: Sequence[int], budget: int) -> list[int]:
    """Equal shares of a budget; who needs less than its share leaves the rest to the others, the first get the odd."""
    shares, left = [0] * len(needs), budget
    order = sorted(range(len(needs)), key=lambda i: (needs[i], -i))
    for done, i in enumerate(order):
        shares[i] = min(needs[i], left // (len(order) - done))
        left -= shares[i]
    return shares


def _shared(queue: Sequence[LedgerBacklog], limits: Limits, ask: AskLimitedRanges) -> dict[str, SplitPart]:
    """The head of the oldest, and a share of the rest for each."""
    oldest = queue[0]
    rows = fair_shares(
        [one.rows - (one.head_rows if one is oldest else 0) for one in queue],
        max(limits.rows_max - oldest.head_rows, 0),
    )
    sizes = fair_shares(
        [one.size_bytes - (one.head_bytes if one is oldest else 0) for one in queue],
        max(limits.bytes_max - oldest.head_bytes, 0),
    )
    rows[0] += oldest.head_rows
    sizes[0] += oldest.head_bytes
    served = [
        (one, LimitedRange(one.ledger, one.range, most_rows, most_bytes))
        for one, most_rows, most_bytes in zip(queue, rows, sizes, strict=True)
        if one.head_rows <= most_rows and one.head_bytes <= most_bytes
    ]
    return _taken([one for one, _ in served], [quota for _, quota in served], ask)


def _heads_that_fit(queue: Sequence[LedgerBacklog], limits: Limits, rows: int, size: int) -> list[LedgerBacklog]:
    """Those whose first entry still fits, the oldest first."""
    fitting = []
    for one in queue:
        if limits.allow(rows + one.head_rows, size + one.head_bytes):
            rows, size = rows + one.head_rows, size + one.head_bytes
            fitting.append(one)
    return fitting


def _taken(
    served: Sequence[LedgerBacklog], quotas: Sequence[LimitedRange], ask: AskLimitedRanges
) -> dict[str, SplitPart]:
    if not served:
        return {}
    return {one.ledger: part for one, part in zip(served, ask(quotas), strict=True) if part.entries}


def _sums(taken: dict[str, SplitPart]) -> tuple[int, int]:
    return sum(part.rows for part in taken.values()), sum(part.size_bytes for part in taken.values())
