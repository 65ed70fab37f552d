"""The ledger of a managed ledger that is being written: its segment's writer, and how full it is.

Invariants
- What readers see of it is its acknowledged entries.
- The thread in the writing turn writes; the one in the syncing turn syncs and acknowledges beside it. All else needs
  both turns (see `ledger.log.append_queue`).
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_ledger.ledger.log.log_segments import LogSegment
from pyspark_ledger.ledger.log.policy import LedgerPolicy
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.segment.writer import SealedSegment, SegmentWriter, StampedEntry


class OpenSegment:
    """The ledger that is being written."""

    def __init__(self, writer: SegmentWriter, created_ms: int) -> None:
        self.file = writer
        self.ledger_id = writer.ledger_id
        self.created_ms = created_ms
        self._age_from = created_ms
        self.size = 0
        # Set when something went wrong beyond the acknowledged end: nothing more may be added to this ledger.
        self.given_up = False
        self._acknowledged_size = 0

    @property
    def index(self) -> EntryIndex:
        """Where its acknowledged entries are."""
        return self.file.index

    @property
    def written(self) -> int:
        """Entries written, acknowledged or not."""
        return self.file.entries

    def write(self, entries: Sequence[StampedEntry]) -> None:
        """Write entries after the last one. Nobody sees them before `acknowledge`."""
        self.file.write(entries)
        self.size += sum([entry.size for entry in entries])

    def make_room(self, length: int) -> None:
        """Reserve space for a run, as far as the open block reaches."""
        self.file.preallocate(length)

    def acknowledge(self, entries: int) -> None:
        """Let readers see the first `entries` entries, all of which are synced."""
        self._acknowledged_size += self.file.acknowledge(entries)

    def forget_unacknowledged(self) -> None:
        """Remove what was written and not acknowledged."""
        self.file.truncate_to(self.file.acknowledged)

    def seal(self) -> SealedSegment:
        """Close the file for good."""
        return self.file.seal()

    def let_go(self) -> None:
        """Leave the file as it is: somebody else owns it now, or the device has failed."""
        self.file.close()

    def is_full(self, policy: LedgerPolicy, now_ms: int) -> bool:
        """Whether the next entry belongs into a new ledger. One that is empty never is full."""
        age = self.age(now_ms)
        full = self._is_filled(policy) and policy.may_roll_over(age)
        return self.written > 0 and (full or policy.is_due(self.ledger_id, age))

    def age(self, now_ms: int) -> int:
        """Its age in ms. When the clock went back, age begins anew there: never negative, and no wait for lost time.

        May be asked by any thread.
        """
        self._age_from = min(self._age_from, now_ms)
        return now_ms - self._age_from

    def left(self, policy: LedgerPolicy, now_ms: int) -> tuple[int, int]:
        """Entries and bytes until it is full; those of a new one while it is filled and too young to be sealed."""
        if self._is_filled(policy) and not self.is_full(policy, now_ms):
            return policy.entries_max, policy.size_max
        return policy.entries_max - self.written, policy.size_max - self.size

    def segment(self) -> LogSegment:
        """What readers see of it."""
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
