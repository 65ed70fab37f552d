"""Open segment of a managed ledger: the file to which appends are written.

Invariants
- Readers see acknowledged entries only.
- The write stage may write while the sync stage syncs and acknowledges. All other changes are made only while no thread
  is in the sync stage (`ledger.log.append_queue` explains both stages).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from pyspark_ledger.ledger.log.append_queue import PendingAppend
from pyspark_ledger.ledger.log.policy import LedgerPolicy
from pyspark_ledger.ledger.log.segments.log_segments import LogSegment
from pyspark_ledger.ledger.metrics.latencies import Latencies
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.segment.writer import SealedSegment, SegmentWriter, StampedEntry, UnsyncedRange


class OpenSegment:
    """Segment to which the log appends entries."""

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
        """Return the open segment that an earlier broker left. This broker appends to it."""
        log = cls(writer, created_ms)
        log.size = log._acknowledged_size = writer.index.size_bytes
        return log

    @property
    def index(self) -> EntryIndex:
        """The index of the acknowledged entries."""
        return self.file.index

    @property
    def written(self) -> int:
        """The number of written entries, both acknowledged and unacknowledged."""
        return self.file.entries

    def write(self, entries: Sequence[StampedEntry]) -> None:
        """Write entries after the last entry. Readers do not see them before `acknowledge`."""
        self.file.write(entries)
        self.size += sum([entry.size for entry in entries])

    def make_room(self, length: int) -> None:
        """Reserve `length` bytes on the disk for the entries of one batch, but not beyond the end of the open block."""
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
        """Close the file without a seal. Called if another broker owns the file, or if the disk has failed."""
        self.file.close()

    def is_full(self, policy: LedgerPolicy, now_ms: int) -> bool:
        """Return whether the next entry must go to a new segment. An empty segment is never full."""
        age = self.age(now_ms)
        full = self._is_filled(policy) and policy.may_roll_over(age)
        return self.written > 0 and (full or policy.is_due(self.ledger_id, age))

    def age(self, now_ms: int) -> int:
        """Return the age in ms, never negative. Any thread may call this.

        If the clock is set back, the age starts again at 0.
        """
        self._age_from = min(self._age_from, now_ms)
        return now_ms - self._age_from

    def left(self, policy: LedgerPolicy, now_ms: int) -> tuple[int, int]:
        """Return the number of entries and bytes that fit before the segment is full.

        If the segment has reached its limits, return the limits of a new segment, because the next entries usually go
        to a new segment. Exception: a segment that is too young to be sealed gets the entries anyway.
        """
        if self._is_filled(policy) or self.is_full(policy, now_ms):
            return policy.entries_max, policy.size_max
        return policy.entries_max - self.written, policy.size_max - self.size

    def segment(self) -> LogSegment:
        """Return the acknowledged entries, as readers see them."""
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

    `end` is the entry id after the group's last entry. `end_offset` is the end of this entry in the file.
    """

    ledger: OpenSegment
    group: list[PendingAppend]
    firsts: list[Position]
    end: int
    end_offset: int


class TimedFile:
    """File of a sync stage. Adds the duration of the sync to each of `latencies`."""

    __slots__ = ("_fd", "_file", "_last", "_latencies", "_started_s")

    def __init__(self, last: Written, *latencies: Latencies) -> None:
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
        """End the sync of the file, and record its duration if the file was synced."""
        if self._fd >= 0:
            seconds = perf_counter() - self._started_s
            for latencies in self._latencies:
                latencies.observe(seconds)
        self._file.end_sync(error)
