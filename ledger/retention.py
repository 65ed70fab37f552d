"""What of a managed ledger may be deleted, given who still needs it, its policy and the time.

Pulsar's rule: of the sealed ledgers that every durable cursor has read, oldest first, one goes when it has expired *or*
when without it no less than the quota is left; the first that is neither ends it. Pure: values in, a number out.

Invariants
- With -1 in both limits nothing goes for its age or size. Without a durable cursor only the policy holds anything back.
- Where the policy says so, a ledger goes once it is in all tables that its log is published to.
- The open ledger never goes, nor one that the slowest cursor has not read to its end.
- A clock that went backwards makes ledgers younger: it never deletes.
- A local copy goes only when the ledger is whole in object storage and has been for the lag; a lag of 0 means at once.
  Where the policy says so, no ledger goes before it was offloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ledger.ledger_policy import LedgerPolicy
from ledger.offload_context import Attempt
from ledger.position import Position


class HeldLedger(NamedTuple):
    """One ledger of the list. `close_ms` is 0 while it is open; `attempt` is the newest to offload it."""

    ledger_id: int
    entries: int
    size_bytes: int
    close_ms: int
    attempt: Attempt | None = None

    @property
    def offloaded(self) -> bool:
        """Whether it is whole in object storage."""
        return self.attempt is not None and self.attempt.complete


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
        published = ledger.ledger_id <= policy.published
        waits = policy.waits_for_offload and policy.offloads and not ledger.offloaded
        if not ledger.close_ms or _needed(ledger, slowest) or waits or not (expired or over_quota or published):
            break
        count += 1
    return ledgers[:count]


def local_expendable(ledgers: Sequence[HeldLedger], policy: LedgerPolicy, now_ms: int) -> list[int]:
    """The ids of ledgers that were offloaded longer ago than the lag and whose local copies are still there."""
    return [
        ledger.ledger_id
        for ledger in ledgers
        if ledger.attempt is not None
        and ledger.offloaded
        and not ledger.attempt.local_deleted
        and 0 <= policy.offload_lag_ms <= now_ms - ledger.attempt.completed_ms
    ]


def _needed(ledger: HeldLedger, slowest: Position | None) -> bool:
    return slowest is not None and slowest < Position(ledger.ledger_id, ledger.entries)
