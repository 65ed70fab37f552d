"""Retention of a managed ledger: the segments and local copies that may be deleted, and the mark of the last trim.

A *trim* deletes the oldest segments. As in Pulsar, it checks sealed segments, oldest first, and ends at the first
segment that stays. A segment is deleted if every durable cursor has read it, and if one of two limits is exceeded.
Limit of age: the time since the segment was sealed. Limit of size: the bytes of all later segments together.

    property "ledger.trimmed" of the record:  SEGMENT:ENTRY ROWS

Invariants
- If both limits are -1, no segment is deleted for its age or size. Without durable cursors, only the limits decide.
- With `deleteAfterPublish`, a segment may be deleted when it is in all tables to which its log is published.
- The open segment is never deleted. A segment that the slowest cursor has not read to its end is never deleted.
- A clock that is set back makes segments seem younger. So it never causes a deletion.
- An offloaded segment has a copy in object storage. Its local copy is deleted when the offload is older than the
  policy's deletion lag (0: at once).
- With `retentionWaitsForOffload`, no segment is deleted before it is offloaded.
- `TrimMark` has the first position after the trimmed segments, and the number of rows before this position. Reason: the
  list of segments does not contain trimmed segments. A reader whose position is before the mark has lost entries. The
  row numbers of the remaining entries begin at the mark's number of rows.
- `expendable` and `local_expendable` are pure functions.
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
    """Segment in the log's list. `close_ms` is 0 while it is open. `attempt` is its newest upload to object storage."""

    ledger_id: int
    entries: int
    size_bytes: int
    close_ms: int
    attempt: OffloadAttempt | None = None

    @property
    def offloaded(self) -> bool:
        """Whether the segment is complete in object storage."""
        return self.attempt is not None and self.attempt.complete


def expendable(
    segments: Iterable[RetainedSegment], size_bytes: int, slowest: Position | None, policy: LedgerPolicy, now_ms: int
) -> list[RetainedSegment]:
    """Return the segments that may be deleted, oldest first.

    `size_bytes` is the size of all segments. `slowest` is the first position that any durable cursor still needs.
    """
    expendables: list[RetainedSegment] = []
    if policy.keeps_everything:
        return expendables
    for segment in segments:
        size_bytes -= segment.size_bytes
        expired = 0 <= policy.retention_ms < now_ms - segment.close_ms
        over_quota = 0 <= policy.retention_bytes <= size_bytes
        published = segment.ledger_id <= policy.published
        waits = policy.waits_for_offload and policy.offloads and not segment.offloaded
        if not segment.close_ms or _needed(segment, slowest) or waits or not (expired or over_quota or published):
            break
        expendables.append(segment)
    return expendables


def local_expendable(segments: Iterable[RetainedSegment], policy: LedgerPolicy, now_ms: int) -> list[int]:
    """Return the ids of segments whose local copy may be deleted: their offload is older than the deletion lag."""
    return [
        segment.ledger_id
        for segment in segments
        if segment.attempt is not None
        and segment.offloaded
        and not segment.attempt.local_deleted
        and 0 <= policy.offload_lag_ms <= now_ms - segment.attempt.completed_ms
    ]


def _needed(segment: RetainedSegment, slowest: Position | None) -> bool:
    return slowest is not None and slowest < Position(segment.ledger_id, segment.entries)


_PROPERTY = "ledger.trimmed"


class TrimMark(NamedTuple):
    """Mark of a trim: all entries before `position` were deleted. `rows` counts the rows of all deleted entries."""

    position: Position
    rows: int

    @classmethod
    def of(cls, info: ManagedLedgerInfo, where: str) -> Self:
        """Return the mark of a record. Raises Corrupt, with `where`, if the mark cannot be parsed."""
        for pair in info.properties:
            if pair.key == _PROPERTY:
                position, _, rows = pair.value.partition(" ")
                try:
                    return cls(Position.parse(position), int(rows))
                except ValueError as wrong:
                    raise Corrupt(f"{where} has {_PROPERTY} {pair.value!r}, expected POSITION ROWS: {wrong}") from wrong
        return cls(*NOTHING_TRIMMED)

    def put(self, info: ManagedLedgerInfo) -> None:
        """Set the mark in a record. Replaces an earlier mark."""
        for pair in info.properties:
            if pair.key == _PROPERTY:
                pair.value = str(self)
                return
        info.properties.add(key=_PROPERTY, value=str(self))

    def __str__(self) -> str:
        return f"{self.position} {self.rows}"


NOTHING_TRIMMED = TrimMark(Position(-1, 0), 0)
