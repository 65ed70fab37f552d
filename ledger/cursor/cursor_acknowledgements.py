"""Individual acknowledgements of one cursor: positions that are acknowledged after its mark-delete position.

The positions are kept in memory, and written to the cursor's own log (`ledger.cursor.cursor_log`).

Invariants
- `positions` has all acknowledgements. `pending` has the acknowledgements that are not durable yet. `add` adds to both.
  `flush` empties `pending` only after a successful write, so a failed flush loses no position.
- A *whole state* has all acknowledgements. A *delta* has only the acknowledgements since the previous delta.
- A new log contains a durable whole state before the metadata name the log. The previous log is deleted afterwards.
- A crash between these steps leaves a file that a record lists as unwanted (`ledger.metadata.unwanted_files`). The next
  start deletes the file.
- `flush` returns True until `retire` confirms that the metadata name the new log.
- Recovery unites the state in the log with the mark-delete position in the metadata. Both contain only acknowledged
  positions. So the result contains all flushed positions, and no position that was not acknowledged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.cursor.cursor_log import CursorLog, CursorLogForm, RecoveredState, recover_cursor_log
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, LedgerError
from pyspark_ledger.ledger.log.acknowledged_positions import drop_rowless, entry_sizes
from pyspark_ledger.ledger.log.segments.log_segments import LogSegment
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions import bitset
from pyspark_ledger.ledger.positions.position_info import decode_cursor_info
from pyspark_ledger.ledger.positions.position_set import PositionSet, split_range
from pyspark_ledger.ledger.segment.writer import LOCAL_DISK, SegmentDurability

_log = logging.getLogger(__name__)
_DAMAGED = (
    "Restore the file from a copy of the store, or move the cursor with 'ledger cursor reset', which forgets its "
    "acknowledgements"
)


@dataclass(frozen=True, slots=True)
class CursorPlace:
    """Directory and format of cursor logs. If `read_only` is set, another process writes the logs."""

    directory: Path
    store_id: str
    form: CursorLogForm
    rollover_ms: int
    clock: Clock
    allocate: Callable[[], int]
    delete_ledgers: Callable[[Collection[int]], None] = lambda _: None
    """Deletes the files of the cursor logs with these ids. No record names them."""
    durability: SegmentDurability = LOCAL_DISK
    """Makes the bytes of a cursor's log durable. In a bucket, the log may lack its index file."""
    read_only: bool = False


class Acknowledgements:
    """Individual acknowledgements of one cursor. Callers hold `lock` for every use."""

    def __init__(self, place: CursorPlace, positions: PositionSet, ledger_id: int) -> None:
        self.lock = threading.RLock()
        self.positions = positions
        self.pending = PositionSet()
        self.ledger_id = ledger_id
        self.recovered_to: Position | None = None
        """Position of the cursor at recovery, which may be ahead of the metadata."""
        self.flushed_ms = 0
        self.has_warned = False
        """Whether the log has a warning of an acknowledged entry without rows."""
        self._place = place
        self._log: CursorLog | None = None
        self._old_ledgers: list[int] = []
        self._is_unreferenced = False
        self._ends_with_state = False
        self._created_ms = 0

    @classmethod
    def open(cls, cursor: CursorRecord, place: CursorPlace, snapshot: LogSnapshot) -> Acknowledgements:
        where, next_position = f"cursor {cursor.name!r} of {cursor.ledger!r}", cursor.next_position
        info = cursor.kept_info()
        crossing: tuple[tuple[Position, Position], ...] = ()
        positions = PositionSet()
        if info.cursorsLedgerId >= 0:
            found = _recovered(place, info.cursorsLedgerId, where)
            positions, crossing = found.acknowledged, found.crossing
            next_position = max(next_position, found.mark_delete.next())
        else:
            inline = decode_cursor_info(info, where)
            positions, crossing = inline.acknowledged, inline.crossing
        ledgers = [(segment.ledger_id, segment.entries) for segment in snapshot.segments] if crossing else []
        for lower, upper in crossing:
            for part in split_range(lower, upper, ledgers):
                positions.add_run(part.start.ledger_id, part.start.entry_id, part.end.entry_id)
        positions.trim_below(next_position)
        drop_rowless(positions, snapshot)  # earlier versions stored the acknowledgements of single chunks
        acks = cls(place, positions, info.cursorsLedgerId)
        acks.recovered_to = next_position
        return acks

    def furthest(self, cursor: CursorRecord) -> CursorRecord:
        """Return the cursor at its own position or the recovered position, whichever is later."""
        return cursor if self.recovered_to is None else cursor.at(max(cursor.next_position, self.recovered_to))

    @property
    def is_dirty(self) -> bool:
        """Whether positions were added since the last successful flush."""
        return bool(self.pending)

    def is_dirty_from(self, position: Position) -> bool:
        """Return whether a position from `position` on was added since the last successful flush."""
        pending = self.pending.copy()
        pending.trim_below(position)
        return bool(pending)

    def add(self, added: PositionSet) -> bool:
        """Add positions, and return whether the set has grown."""
        additions = added.difference(self.positions)
        self.positions.update(additions)
        self.pending.update(additions)
        return bool(additions)

    def advanced(
        self, position: Position, snapshot: LogSnapshot, floor: Callable[[Position], Position] | None = None
    ) -> Position:
        """Return the first unacknowledged position from `position` on.

        Entries without rows and the gaps between segments (files) are skipped. The result does not pass the first chunk
        of an unfinished message. `floor` maps a position to this chunk.
        """
        at, segments = position, snapshot.segments
        for number in range(segments.at(position.ledger_id), len(segments)):
            segment = segments[number]
            if not segment.entries:
                continue
            start = max(at.entry_id, 0) if segment.ledger_id == at.ledger_id else 0
            stop = self._first_unacknowledged(segment, start)
            if stop == 0 and segment.ledger_id != at.ledger_id:
                break
            at = Position(segment.ledger_id, stop) if stop > start or segment.ledger_id == at.ledger_id else at
            if stop < segment.entries:
                break
        return at if floor is None else max(position, floor(at))

    def trim_below(self, position: Position) -> None:
        """Remove the positions before `position`. Called after the cursor's move to `position` is durable."""
        self.positions.trim_below(position)
        self.pending.trim_below(position)

    def flush(self, next_position: Position) -> bool:
        """Make all positions durable. Returns whether the caller must name a new log in the metadata."""
        mark_delete = Position(next_position.ledger_id, next_position.entry_id - 1)
        now, is_new = self._place.clock(), False
        is_old = 0 < self._place.rollover_ms <= now - self._created_ms
        if self._log is not None and not self._log.is_full and not is_old:
            try:
                self._log.flush(mark_delete, self.positions, self.pending)
            except (OSError, LedgerError) as error:
                _log.warning("log %d of a cursor cannot be written, a new log replaces it: %s", self.ledger_id, error)
                is_new = True
        else:
            is_new = True
        if is_new:
            self._create_log(mark_delete)
        self.pending, self.flushed_ms, self._ends_with_state = PositionSet(), now, is_new
        return self._is_unreferenced

    def retire(self) -> None:
        """Delete the previous logs. Called after the metadata name the new log, or no log."""
        old, self._old_ledgers, self._is_unreferenced = self._old_ledgers, [], False
        if self._log is not None:
            self._log.mark_referenced()
        self._place.delete_ledgers(old)

    def leave_ledger(self) -> None:
        """Close the current log and list it for deletion. `retire` deletes it after the metadata have changed.

        Called if the state moves to a new log or to the cursor's record, or if the state is cleared.
        """
        self.close_log()
        if self.ledger_id >= 0:
            self._old_ledgers.append(self.ledger_id)
        self.ledger_id = -1

    def close(self, next_position: Position) -> bool:
        """Write a whole state and close the log. Returns whether the metadata must name a new log."""
        mark_delete = Position(next_position.ledger_id, next_position.entry_id - 1)
        if self._log is None:
            return self.is_dirty and self.flush(next_position)
        if not self._ends_with_state or self.is_dirty:
            self._log.write_state(mark_delete, self.positions)
            self.pending = PositionSet()
        self.close_log()
        return False

    def _create_log(self, mark_delete: Position) -> None:
        place = self._place
        log = CursorLog.create(
            place.directory, place.allocate(), place.store_id, place.form, place.clock, place.durability
        )
        try:
            log.write_state(mark_delete, self.positions)
        except BaseException:
            log.close()
            raise
        self.leave_ledger()
        self._log, self.ledger_id, self._created_ms, self._is_unreferenced = log, log.ledger_id, place.clock(), True

    def close_log(self) -> None:
        """Close the log for writing. The file is kept."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _first_unacknowledged(self, segment: LogSegment, start: int) -> int:
        words = self.positions.words(segment.ledger_id)
        stop = bitset.next_clear(words, start)
        sizes = None
        while stop < segment.entries:
            sizes = entry_sizes(segment) if sizes is None else sizes
            if sizes[stop]:
                break
            stop = bitset.next_clear(words, stop + 1)
        return min(stop, segment.entries)


def _recovered(place: CursorPlace, ledger_id: int, where: str) -> RecoveredState:
    """Return the recovered state of a cursor's log. Raises Corrupt or DataLoss if no state is complete."""
    try:
        found = recover_cursor_log(
            place.directory,
            ledger_id,
            place.store_id,
            fence=not place.read_only,
            built=place.durability.in_bucket,
        )
    except (Corrupt, DataLoss) as damage:
        raise type(damage)(f"{where}: {damage.message}", hint=_DAMAGED) from damage
    if found is None:
        raise Corrupt(f"{where}: its log {ledger_id} contains no whole state", hint=_DAMAGED)
    return found
