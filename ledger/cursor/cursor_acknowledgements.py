"""What one cursor has acknowledged beyond its mark-delete: in memory, in its own ledger, and what is not written yet.

Invariants
- `positions` is all of it; `pending` is the part that no flush has made durable. What is given to `add` is in both
  until then, so a flush that failed leaves nothing out.
- A new ledger is whole and durable before the metadata names it, and the one before it is deleted after that. A crash
  in between leaves files that a record names as unwanted (`ledger.metadata.unwanted_files`), which the next start
  deletes.
- `flush` asks for the new ledger to be named until `retire` says that it is.
- What is read back is at most what was given and at least what was flushed: the state in the ledger and the mark-delete
  in the metadata are both only ever behind, and are joined.
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
from pyspark_ledger.ledger.log.acknowledged_positions import entry_sizes
from pyspark_ledger.ledger.log.log_segments import LogSegment
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions import bitset
from pyspark_ledger.ledger.positions.position_info import decode_cursor_info
from pyspark_ledger.ledger.positions.position_set import PositionSet, split_range

_log = logging.getLogger(__name__)
_DAMAGED = (
    "Restore the file from a copy of the store, or give the cursor a new place with 'ledger cursor reset', which "
    "forgets what it had acknowledged"
)


@dataclass(frozen=True, slots=True)
class CursorPlace:
    """Where the ledgers of cursors are, and how they are written. `read_only`: they are somebody else's, only read."""

    directory: Path
    store_id: str
    form: CursorLogForm
    rollover_ms: int
    clock: Clock
    allocate: Callable[[], int]
    delete_ledgers: Callable[[Collection[int]], None] = lambda _: None
    """Told the ids of cursors' ledgers that no record names any more: deletes their files."""
    read_only: bool = False


class Acknowledgements:
    """One cursor's. Held by `lock` for every use."""

    def __init__(self, place: CursorPlace, positions: PositionSet, ledger_id: int) -> None:
        self.lock = threading.RLock()
        self.positions = positions
        self.pending = PositionSet()
        self.ledger_id = ledger_id
        self.recovered_to: Position | None = None
        """How far the ledger said that the cursor is, which the metadata may not know yet."""
        self.flushed_ms = 0
        self._place = place
        self._log: CursorLog | None = None
        self._replaced: list[int] = []
        self._unreferenced = False
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
        acks = cls(place, positions, info.cursorsLedgerId)
        acks.recovered_to = next_position
        return acks

    def furthest(self, cursor: CursorRecord) -> CursorRecord:
        """The cursor where the metadata have it, or where its ledger said it was when it was read."""
        return cursor if self.recovered_to is None else cursor.at(max(cursor.next_position, self.recovered_to))

    @property
    def is_dirty(self) -> bool:
        """Whether anything was given that no flush has made durable."""
        return bool(self.pending)

    def add(self, added: PositionSet) -> bool:
        """Add positions; whether any of them was not in the set yet."""
        additions = added.difference(self.positions)
        self.positions.update(additions)
        self.pending.update(additions)
        return bool(additions)

    def advanced(
        self, position: Position, snapshot: LogSnapshot, floor: Callable[[Position], Position] | None = None
    ) -> Position:
        """The first position from `position` on that is not acknowledged.

        Entries that deliver no row pass by themselves, and so does the gap between two ledgers; but never past `floor`,
        which moves a position back to the first chunk of a message that is not finished there.
        """
        at, segments = position, snapshot.segments
        for number in range(segments.at(position.ledger_id), len(segments)):
            segment = segments[number]
            if not segment.entries:
                continue
            here = max(at.entry_id, 0) if segment.ledger_id == at.ledger_id else 0
            stop = self._first_unacknowledged(segment, here)
            if stop == 0 and segment.ledger_id != at.ledger_id:
                break
            at = Position(segment.ledger_id, stop) if stop > here or segment.ledger_id == at.ledger_id else at
            if stop < segment.entries:
                break
        return at if floor is None else max(position, floor(at))

    def trim_below(self, position: Position) -> None:
        """Forget what lies before the mark-delete, once that is durable."""
        self.positions.trim_below(position)
        self.pending.trim_below(position)

    def flush(self, next_position: Position) -> bool:
        """Make everything durable that was given; whether it is in a new ledger, which the metadata has to name."""
        mark_delete = Position(next_position.ledger_id, next_position.entry_id - 1)
        now, is_new = self._place.clock(), False
        aged = 0 < self._place.rollover_ms <= now - self._created_ms
        if self._log is not None and not self._log.is_full and not aged:
            try:
                self._log.flush(mark_delete, self.positions, self.pending)
            except (OSError, LedgerError) as error:
                _log.warning("ledger %d of a cursor failed and is given up: %s", self.ledger_id, error)
                is_new = True
        else:
            is_new = True
        if is_new:
            self._create_log(mark_delete)
        self.pending, self.flushed_ms, self._ends_with_state = PositionSet(), now, is_new
        return self._unreferenced

    def retire(self) -> None:
        """The metadata names the new ledger, or none: delete those before it."""
        old, self._replaced, self._unreferenced = self._replaced, [], False
        if self._log is not None:
            self._log.mark_referenced()
        self._place.delete_ledgers(old)

    def leave_ledger(self) -> None:
        """The state is going to be elsewhere; `retire` deletes the ledger once the metadata says so."""
        self.close_log()
        if self.ledger_id >= 0:
            self._replaced.append(self.ledger_id)
        self.ledger_id = -1

    def close(self, next_position: Position) -> bool:
        """End with a whole state; whether a new ledger was begun for it."""
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
        log = CursorLog.create(place.directory, place.allocate(), place.store_id, place.form, place.clock)
        try:
            log.write_state(mark_delete, self.positions)
        except BaseException:
            log.close()
            raise
        self.leave_ledger()
        self._log, self.ledger_id, self._created_ms, self._unreferenced = log, log.ledger_id, place.clock(), True

    def close_log(self) -> None:
        """Write no more; the file stays."""
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
    """The state in a cursor's ledger, which the metadata names once its first one is durable."""
    try:
        found = recover_cursor_log(place.directory, ledger_id, place.store_id, fence=not place.read_only)
    except (Corrupt, DataLoss) as damage:
        raise type(damage)(f"{where}: {damage.message}", hint=_DAMAGED) from damage
    if found is None:
        raise Corrupt(f"{where}: its ledger {ledger_id} holds no whole state", hint=_DAMAGED)
    return found
