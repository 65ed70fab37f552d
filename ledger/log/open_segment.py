"""Open segment of a managed ledger: the writer of its file, its fill level and its age.

Invariants
- Readers see acknowledged entries only.
- The write stage writes. The sync stage syncs and acknowledges concurrently. All other changes require that no thread
  is in the sync stage (see `ledger.log.append_queue`).
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_ledger.ledger.log.log_segments import LogSegment
from pyspark_ledger.ledger.log.policy import LedgerPolicy
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.segment.writer import SealedSegment, SegmentWriter, StampedEntry


class OpenSegment:
    """Segment that the log appends to."""

    def __init__(self, writer: SegmentWriter, created_ms: int) -> None:
        self.file = writer
        self.ledger_id = writer.ledger_id
        self.created_ms = created_ms
        self._age_from = created_ms
        self.size = 0
        # Set after an error beyond the acknowledged end: no entry may be added to this segment.
        self.given_up = False
        self._acknowledged_size = 0

    @property
    def index(self) -> EntryIndex:
        """The index of the acknowledged entries."""
        return self.file.index

    @property
    def written(self) -> int:
        """The number of entries written, acknowledged or not."""
        return self.file.entries

    def write(self, entries: Sequence[StampedEntry]) -> None:
        """Write entries after the last entry. Readers do not see them before `acknowledge`."""
        self.file.write(entries)
        self.size += sum([entry.size for entry in entries])

    def make_room(self, length: int) -> None:
        """Preallocate `length` bytes for a run, at most to the end of the open block."""
        self.file.preallocate(length)

    def acknowledge(self, entries: int) -> None:
        """Show the first `entries` entries to readers. The caller has synced all of them."""
        self._acknowledged_size += self.file.acknowledge(entries)

    def forget_unacknowledged(self) -> None:
        """Remove the entries that were written and not acknowledged."""
        self.file.truncate_to(self.file.acknowledged)

    def seal(self) -> SealedSegment:
        """Seal the file: no entry can be added afterwards."""
        return self.file.seal()

    def close(self) -> None:
        """Close the file without a seal. Used if another broker owns the file or the device has failed."""
        self.file.close()

    def is_full(self, policy: LedgerPolicy, now_ms: int) -> bool:
        """Return whether the next entry must go to a new segment. An empty segment is never full."""
        age = self.age(now_ms)
        full = self._is_filled(policy) and policy.may_roll_over(age)
        return self.written > 0 and (full or policy.is_due(self.ledger_id, age))

    def age(self, now_ms: int) -> int:
        """Return the age in ms, never negative. Any thread may call this.

        If the clock moves back, the age restarts at 0 from the earlier time.
        """
        self._age_from = min(self._age_from, now_ms)
        return now_ms - self._age_from

    def left(self, policy: LedgerPolicy, now_ms: int) -> tuple[int, int]:
        """Return the entries and bytes that fit before the segment is full.

        A filled segment that is too young to be sealed reports the limits of a new segment.
        """
        if self._is_filled(policy) and not self.is_full(policy, now_ms):
            return policy.entries_max, policy.size_max
        return policy.entries_max - self.written, policy.size_max - self.size

    def segment(self) -> LogSegment:
        """Return the view of the acknowledged entries for readers."""
        index = self.index
        entries, row_end = index.count, index.row_end
        return LogSegment(
            self.ledger_id,
            entries,
            index.first_row,
            row_end - index.first_row,
            self._acknowledged_size,
            0,
            self.file.path,
            lambda: index,
        )

    def _is_filled(self, policy: LedgerPolicy) -> bool:
        return self.written >= policy.entries_max or self.size >= policy.size_max
