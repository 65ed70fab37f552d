"""Open segment of a managed ledger, the file that takes the appends: its writer, size, age, and groups to sync.

Invariants
- Readers see acknowledged entries only.
- The write stage writes, while the sync stage may sync and acknowledge. All other changes require that no thread is in
  the sync stage (`ledger.log.append_queue` explains both stages).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from pyspark_ledger.ledger.log.append_queue import PendingAppend
from pyspark_ledger.ledger.log.log_segments import LogSegment
from pyspark_ledger.ledger.log.policy import LedgerPolicy
from pyspark_ledger.ledger.metrics.latencies import Latencies
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.segment.writer import SealedSegment, SegmentWriter, StampedEntry, UnsyncedRange


class OpenSegment:
    """Segment that the log appends to."""

    def __init__(self, writer: SegmentWriter, created_ms: int) -> None:
        self.file = writer
        self.ledger_id = writer.ledger_id
        self.created_ms = created_ms
        self._age_from = created_ms
        self.size = 0
        # Set after a failed write or sync: no entry may be added to this segment.
        self.given_up = False
        self._acknowledged_size = 0

    @classmethod
    def continued(cls, writer: SegmentWriter, created_ms: int) -> OpenSegment:
        """Return the open segment of an earlier broker, so that this broker continues it."""
        log = cls(writer, created_ms)
        log.size = log._acknowledged_size = writer.index.size_bytes
        return log

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
        """Preallocate `length` bytes for the entries of one batch, at most to the end of the open block."""
        self.file.preallocate(length)

    def acknowledge(self, entries: int) -> None:
        """Make the first `entries` entries visible to readers. The caller has synced them."""
        self._acknowledged_size += self.file.acknowledge(entries)

    def forget_unacknowledged(self) -> None:
        """Truncate the file after its last acknowledged entry."""
        self.file.truncate_to(self.file.acknowledged)

    def seal(self) -> SealedSegment:
        """Seal the file, so that no entry can be added."""
        return self.file.seal()

    def close(self) -> None:
        """Close the file without a seal, because another broker owns it or the device has failed."""
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
        """Return the number of entries and bytes that fit before the segment is full.

        A segment that has reached its limits may be too young to be sealed. Then the limits of a new segment are
        returned, because entries are still added to it.
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


@dataclass(frozen=True, slots=True)
class Written:
    """Group that was written to a segment and waits for its sync.

    `end` is the entry id after its last entry, `end_offset` the end of that entry in the file.
    """

    ledger: OpenSegment
    group: list[PendingAppend]
    firsts: list[Position]
    end: int
    end_offset: int


class TimedFile:
    """File of a sync stage that counts the duration of its sync."""

    __slots__ = ("_fd", "_file", "_last", "_latencies", "_started_s")

    def __init__(self, last: Written, latencies: Latencies) -> None:
        self._file = last.ledger.file
        self._last = last
        self._latencies = latencies
        self._fd = -1
        self._started_s = 0.0

    def begin_sync(self) -> int:
        """Begin the sync of the file: see `SyncedFile`."""
        self._fd = self._file.begin_sync(self._last.end, self._last.end_offset)
        self._started_s = perf_counter()
        return self._fd

    def unsynced(self) -> UnsyncedRange:
        """Return the bytes that the sync covers."""
        return self._file.unsynced()

    def end_sync(self, error: OSError | None) -> None:
        """End the sync of the file. A file that is not synced has no duration."""
        if self._fd >= 0:
            self._latencies.observe(perf_counter() - self._started_s)
        self._file.end_sync(error)
