"""What of a managed ledger may be deleted, given who still needs it, its policy and the time.

Pulsar's rule: of the sealed ledgers that every durable cursor has read, oldest first, one goes when it has expired *or*
when without it no less than the quota is left; the first that is neither ends it. Pure: values in, a number out.

Invariants
- With -1 in both limits nothing goes. Without a durable cursor only the policy holds anything back.
- The open ledger never goes, nor one that the slowest cursor has not read to its end.
- A clock that went backwards makes ledgers younger: it never deletes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ledger.ledger_policy import LedgerPolicy
from ledger.position import Position


class HeldLedger(NamedTuple):
    """One ledger of the list. `close_ms` is 0 while it is open."""

    ledger_id: int
    entries: int
    size_bytes: int
    close_ms: int


def expendable(
    ledgers: Sequence[HeldLedger], slowest: Position | None, policy: LedgerPolicy, now_ms: int
) -> Sequence[HeldLedger]:
    """The ledgers, oldest first, that may go; `slowest` is the first position that any durable cursor still needs."""
    if policy.keeps_everything:
        return ()
    left, count = sum(ledger.size_bytes for ledger in ledgers), 0
    for ledger in ledgers:
        left -= ledger.size_bytes
        expired = 0 <= policy.retention_ms < now_ms - ledger.close_ms
        over_quota = 0 <= policy.retention_bytes <= left
        if not ledger.close_ms or _needed(ledger, slowest) or not (expired or over_quota):
            break
        count += 1
    return ledgers[:count]


def _needed(ledger: HeldLedger, slowest: Position | None) -> bool:
    return slowest is not None and slowest < Position(ledger.ledger_id, ledger.entries)
