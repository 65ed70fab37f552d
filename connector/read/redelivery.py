"""How a batch's limits are shared between rows that are new and rows that come back. Pure.

Rules
- New rows and those that come back get equal shares; what one of them does not need goes to the other. So rows that
  nobody acknowledges never keep new ones away, nor the reverse.
- A share never is below the first entry of its side: where both do not fit beside each other they take turns, and the
  one whose turn it is has all of the limit. So a batch exceeds its limits only by one entry that alone does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark_ledger.connector.read.limits import LedgerBacklog, Limits, fair_shares
from pyspark_ledger.ledger.protocol.cursors import Due


class SplitLimits(NamedTuple):
    """What each side may take; None: nothing. `turns`: they did not fit beside each other."""

    new: Limits | None
    redelivered: Limits | None
    alternates: bool = False


def split_limits(
    limits: Limits, waiting: Sequence[LedgerBacklog], due: Mapping[str, Due], *, new_first: bool
) -> SplitLimits:
    """The limits of both sides of one batch; `new_first`: whose turn it is, if they take turns."""
    heads = [one for one in waiting if one.rows]
    back = [one for one in due.values() if one.rows]
    if not limits or not heads or not back:
        return SplitLimits(limits, limits)
    rows = fair_shares([sum(one.rows for one in heads), sum(one.rows for one in back)], limits.rows_max)
    sizes = fair_shares([sum(one.size_bytes for one in heads), sum(one.size_bytes for one in back)], limits.bytes_max)
    new_limits, back_limits = (Limits(*of_side) for of_side in zip(rows, sizes, strict=True))
    oldest = min(heads, key=lambda one: (one.head_ms, one.ledger))
    if new_limits.allow(oldest.head_rows, oldest.head_bytes) and back_limits.allow(
        back[0].head_rows, back[0].head_bytes
    ):
        return SplitLimits(new_limits, back_limits)
    return SplitLimits(limits, None, alternates=True) if new_first else SplitLimits(None, limits, alternates=True)
