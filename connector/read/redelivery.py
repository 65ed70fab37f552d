"""Split of a batch's limits between new rows and redelivered rows. Pure functions.

Rules
- New rows and redelivered rows get equal shares. If one side needs less than its share, the other side gets the rest.
  So rows that are never acknowledged cannot block new rows, and new rows cannot block redelivered rows.
- A share is never smaller than the first entry of its side. If the first entries of both sides do not fit together, the
  sides alternate between batches, and one side gets the whole limit. So a batch exceeds its limits only if one entry is
  larger than the limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark_ledger.connector.read.limits import LedgerBacklog, Limits, fair_shares
from pyspark_ledger.ledger.protocol.cursors import Due


class SplitLimits(NamedTuple):
    """Limits of new rows and of redelivered rows in a batch. None means that the batch has no rows of this kind.

    `alternates` is set if the first entries of both sides do not fit together.
    """

    new: Limits | None
    redelivered: Limits | None
    alternates: bool = False


def split_limits(
    limits: Limits, backlogs: Sequence[LedgerBacklog], due: Mapping[str, Due], *, new_first: bool
) -> SplitLimits:
    """Return the limits of both sides of one batch. If the sides alternate, `new_first` gives the batch to new rows."""
    fresh = [backlog for backlog in backlogs if backlog.rows]
    redelivered = [ledger for ledger in due.values() if ledger.rows]
    if not limits or not fresh or not redelivered:
        return SplitLimits(limits, limits)
    rows = fair_shares([sum(log.rows for log in fresh), sum(log.rows for log in redelivered)], limits.rows_max)
    sizes = fair_shares(
        [sum(log.size_bytes for log in fresh), sum(log.size_bytes for log in redelivered)], limits.bytes_max
    )
    new_limits, redelivered_limits = (Limits(*side) for side in zip(rows, sizes, strict=True))
    oldest = min(fresh, key=lambda log: (log.head_ms, log.ledger))
    if new_limits.allow(oldest.head_rows, oldest.head_bytes) and redelivered_limits.allow(
        redelivered[0].head_rows, redelivered[0].head_bytes
    ):
        return SplitLimits(new_limits, redelivered_limits)
    return SplitLimits(limits, None, alternates=True) if new_first else SplitLimits(None, limits, alternates=True)
