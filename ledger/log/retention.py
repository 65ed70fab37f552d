"""Retention of a managed ledger: which of its ledgers and local copies may be deleted, and how far it was trimmed.

Pulsar's rule: the sealed ledgers that every durable cursor has read are checked, oldest first. A ledger goes when it
has expired *or* when without it no less than the quota is left. The first ledger that is neither ends the check.

    property "ledger.trimmed" of the record:  LEDGER:ENTRY ROWS

Invariants
- With -1 in both limits no ledger goes for its age or size. Without durable cursors only the policy holds ledgers back.
- Where the policy says so, a ledger goes once it is in all tables that its log is published to.
- The open ledger never goes, nor a ledger that the slowest cursor has not read to its end.
- A clock that went backwards makes ledgers younger: it never deletes.
- A local copy goes only when the ledger is whole in object storage and has been for the lag. A lag of 0 means at once.
- Where the policy says so, no ledger goes before it was offloaded.
- `TrimMark` has the first position that retention left, and the rows before it. It is kept because the trimmed ledgers
  are gone from the list. A reader at the end of the last of them has lost nothing, a reader before it has. The count
  of rows continues from the mark.
- `expendable` and `local_expendable` are pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.log.policy import LedgerPolicy
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo


class RetainedSegment(NamedTuple):
    """One ledger of the list. `close_ms` is 0 while it is open; `attempt` is the newest to offload it."""

    ledger_id: int
    entries: int
    size_bytes: int
    close_ms: int
    attempt: OffloadAttempt | None = None

    @property
    def offloaded(self) -> bool:
        """Whether it is whole in object storage."""
        return self.attempt is not None and self.attempt.complete


def expendable(
    ledgers: Iterable[RetainedSegment], size_bytes: int, slowest: Position | None, policy: LedgerPolicy, now_ms: int
) -> list[RetainedSegment]:
    """The ledgers, oldest first, that may go; no ledger behind the first that stays is looked at.

    `size_bytes` are those of all ledgers. `slowest` is the first position that any durable cursor still needs.
    """
    gone: list[RetainedSegment] = []
    if policy.keeps_everything:
        return gone
    for ledger in ledgers:
        size_bytes -= ledger.size_bytes
        expired = 0 <= policy.retention_ms < now_ms - ledger.close_ms
        over_quota = 0 <= policy.retention_bytes <= size_bytes
        published = ledger.ledger_id <= policy.published
        waits = policy.waits_for_offload and policy.offloads and not ledger.offloaded
        if not ledger.close_ms or _needed(ledger, slowest) or waits or not (expired or over_quota or published):
            break
        gone.append(ledger)
    return gone


def local_expendable(ledgers: Iterable[RetainedSegment], policy: LedgerPolicy, now_ms: int) -> list[int]:
    """The ids of ledgers that were offloaded longer ago than the lag and whose local copies are still there."""
    return [
        ledger.ledger_id
        for ledger in ledgers
        if ledger.attempt is not None
        and ledger.offloaded
        and not ledger.attempt.local_deleted
        and 0 <= policy.offload_lag_ms <= now_ms - ledger.attempt.completed_ms
    ]


def _needed(ledger: RetainedSegment, slowest: Position | None) -> bool:
    return slowest is not None and slowest < Position(ledger.ledger_id, ledger.entries)


_PROPERTY = "ledger.trimmed"


class TrimMark(NamedTuple):
    """Mark of a trim: everything before `position` is gone, with `rows` rows of the log."""

    position: Position
    rows: int

    @classmethod
    def of(cls, info: ManagedLedgerInfo, where: str) -> Self:
        """The mark that a record states; raises Corrupt naming `where`."""
        for pair in info.properties:
            if pair.key == _PROPERTY:
                position, _, rows = pair.value.partition(" ")
                try:
                    return cls(Position.parse(position), int(rows))
                except ValueError as wrong:
                    raise Corrupt(f"{where} states {pair.value!r} as {_PROPERTY}: {wrong}") from wrong
        return cls(*NOTHING_TRIMMED)

    def put(self, info: ManagedLedgerInfo) -> None:
        """Set the mark in a record, replacing an earlier mark."""
        for pair in info.properties:
            if pair.key == _PROPERTY:
                pair.value = str(self)
                return
        info.properties.add(key=_PROPERTY, value=str(self))

    def __str__(self) -> str:
        return f"{self.position} {self.rows}"


NOTHING_TRIMMED = TrimMark(Position(-1, 0), 0)
