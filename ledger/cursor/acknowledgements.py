"""Acknowledging out of order, for all cursors of a store: single entries and rows, kept beside mark-delete.

Rules
- A cursor's set is read when it is first needed, and stays in memory.
- By default an acknowledgement is durable when it is answered (`managedLedgerDefaultMarkDeleteRateLimit` 0). With a
  rate it is flushed at most so often, by whoever comes later, by a timer and at close: a crash then gives back what was
  acknowledged since, at most `managedLedgerCursorPositionFlushSeconds`.
- `managedLedgerMaxUnackedRangesToPersist`, when set, refuses what would exceed it: nothing is dropped in silence.
- A cursor stands where the metadata or its own ledger say, whichever is further: `state` is how everybody asks.
- Of a store that is only read the set is read anew each time: its broker may be writing it.
- At a clean close a small set goes into the metadata record and its ledger away; a large one ends with a whole state.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.cursor.cursor_acknowledgements import Acknowledgements, CursorPlace
from pyspark_ledger.ledger.cursor.cursor_log import CursorLogForm
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, Fenced, LedgerError, NotFound, Refused, Unavailable
from pyspark_ledger.ledger.log.acknowledged_positions import entry_sizes, positions_given
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.log.unfinished_chunks import ChunkTable
from pyspark_ledger.ledger.message.compression import NAMES, NONE
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_chunks import compression_number
from pyspark_ledger.ledger.positions.position_info import encode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.actions import SegmentDescription
from pyspark_ledger.ledger.settings.broker import Settings

_log = logging.getLogger(__name__)


class CurrentCursor(NamedTuple):
    """A cursor as it stands; `ledger_id` is its own ledger's, -1 without one."""

    cursor: CursorRecord
    positions: PositionSet
    ledger_id: int


class AcknowledgementTable:
    """The sets of a store's cursors. Any thread may call any method."""

    def __init__(
        self, metadata: Metadata, place: CursorPlace, settings: Settings, chunks: ChunkTable | None = None
    ) -> None:
        self._metadata = metadata
        self._chunks = chunks
        self._place = place
        self._settings = settings
        self._lock = threading.Lock()
        self._acks: dict[tuple[str, str], Acknowledgements] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def of(self, cursor: CursorRecord, snapshot: LogSnapshot) -> Acknowledgements:
        """The set of a cursor, read if need be."""
        if self._place.read_only:
            return Acknowledgements.open(cursor, self._place, snapshot)
        key = (cursor.ledger, cursor.name)
        with self._lock:
            acks = self._acks.get(key)
            if acks is None:
                found = self._metadata.cursors.get(*key)
                cursor = cursor if found is None else found.cursor
                acks = Acknowledgements.open(cursor, self._place, snapshot)
                if acks.recovered_to != cursor.next_position:
                    self._change(key, acks.furthest)
                self._acks[key] = acks
            return acks

    def state(self, cursor: CursorRecord, snapshot: LogSnapshot, *, durable: bool = False) -> CurrentCursor:
        """Return the cursor as it stands and a copy of what is acknowledged beyond its mark-delete.

        `durable`: none of which a crash takes back, for whoever writes down what follows from it.
        """
        if not self.has_acknowledgements(cursor):
            return CurrentCursor(cursor, PositionSet(), -1)
        with self._locked(cursor, snapshot) as acks:
            found = self._current(cursor, acks)
            if durable and acks.is_dirty:
                found = self._flush(found, acks, found.next_position)
            return CurrentCursor(found, acks.positions.copy(), acks.ledger_id)

    def has_acknowledgements(self, cursor: CursorRecord) -> bool:
        """Whether there is anything beyond mark-delete, as far as is known without reading it."""
        return (cursor.ledger, cursor.name) in self._acks or bool(cursor.kept)

    def acknowledge(
        self, cursor: CursorRecord, batches: Iterable[pa.RecordBatch], snapshot: LogSnapshot
    ) -> CursorRecord:
        """Acknowledge entries and rows; the cursor as it is then. Raises Refused, and changes nothing, for any that is
        not in the log.
        """
        return self.acknowledge_positions(cursor, self.require_positions(batches, snapshot), snapshot)

    def require_positions(self, batches: Iterable[pa.RecordBatch], snapshot: LogSnapshot) -> PositionSet:
        """The positions that somebody names, all of them the log's; Refused when any is not."""
        return positions_given(batches, snapshot, cache(lambda: self.trimmed_off(snapshot.name)))

    def trimmed_off(self, log: str) -> list[SegmentDescription]:
        """The ledgers that a log had and that were trimmed: all of them is acknowledged."""
        return self._metadata.segments.trimmed(log)

    def acknowledge_positions(
        self, cursor: CursorRecord, positions: PositionSet, snapshot: LogSnapshot
    ) -> CursorRecord:
        """The same of a set that is known to be in the log."""
        with self._locked(cursor, snapshot) as acks:
            found = self._current(cursor, acks)
            positions.trim_below(found.next_position)
            self._require_room(acks, positions, found)
            # Of a call that was not answered all may be known, and nothing durable yet.
            if not acks.add(positions) and not (acks.is_dirty and self._is_due(acks)):
                return found
            next_position = self._advanced(acks, found.next_position, snapshot)
            moved = self._flush(found, acks, next_position) if self._is_due(acks) else self._at(found, next_position)
            acks.trim_below(moved.next_position)
            return moved

    def set_replay_floor(self, cursor: CursorRecord, floor: Position) -> None:
        """What lies at or after `floor` may be read again, whatever is acknowledged of it."""
        self._change((cursor.ledger, cursor.name), lambda found: msgspec.structs.replace(found, replay_floor=floor))

    def mark_delete(self, cursor: CursorRecord, next_position: Position, snapshot: LogSnapshot) -> Position:
        """How far a cursor comes when everything before `next_position` is acknowledged."""
        with self._locked(cursor, snapshot) as acks:
            return self._advanced(acks, next_position, snapshot)

    def _advanced(self, acks: Acknowledgements, position: Position, snapshot: LogSnapshot) -> Position:
        chunks, now = self._chunks, self._place.clock
        if chunks is None:
            return acks.advanced(position, snapshot)
        return acks.advanced(position, snapshot, lambda at: chunks.floor(snapshot, at, now()))

    def trim_below(self, cursor: CursorRecord, position: Position, snapshot: LogSnapshot) -> None:
        """The metadata says that everything before a position is acknowledged: it need not be kept here."""
        with self._locked(cursor, snapshot) as acks:
            acks.trim_below(position)

    def after(self, cursor: CursorRecord, at: Position, entries: int, snapshot: LogSnapshot) -> Position:
        """The position after so many entries from `at` on that have rows and are left; the end when there are fewer."""
        left = PositionRange(max(at, snapshot.start), snapshot.end)
        with self._locked(cursor, snapshot) as acks:
            for part in snapshot.slices(left) if left and entries else ():
                numbers = np.arange(part.first, part.end)
                unacknowledged = ~acks.positions.contains_entries(part.segment.ledger_id, numbers)
                wanted = numbers[unacknowledged & (entry_sizes(part.segment)[part.first : part.end] > 0)]
                if len(wanted) >= entries:
                    return Position(part.segment.ledger_id, int(wanted[entries - 1]) + 1)
                entries -= len(wanted)
        return snapshot.end if entries else at

    def acked_ranges(
        self, cursor: CursorRecord, range_: PositionRange, snapshot: LogSnapshot
    ) -> tuple[CursorRecord, PositionSet]:
        """The cursor as it is now, and what of a range is acknowledged beyond its mark-delete at that moment."""
        with self._locked(cursor, snapshot) as acks:
            # What joined mark-delete since the caller saw the cursor is in the set no more.
            found = self._current(cursor, acks)
            start = max(range_.start, found.next_position)
            return found, acks.positions.within(PositionRange(start, max(start, range_.end)))

    @contextmanager
    def cleared(self, cursor: CursorRecord, snapshot: LogSnapshot, *, deleted: bool = False) -> Iterator[None]:
        """Forget all of a cursor's set, while the metadata is told so within; its ledger is deleted after that.

        When the metadata refuses, nothing is forgotten: the set is read again.
        """
        key = (cursor.ledger, cursor.name)
        try:
            self.of(cursor, snapshot)
        except (Corrupt, DataLoss) as damage:
            _log.warning("cursor %s of %s is cleared, its ledger cannot be read: %s", *reversed(key), damage)
            with self._lock:
                self._acks[key] = Acknowledgements(self._place, PositionSet(), cursor.kept_info().cursorsLedgerId)
        with self._locked(cursor, snapshot) as acks:
            try:
                yield
            except BaseException:
                self._drop(key)
                acks.close_log()
                raise
            acks.leave_ledger()
            acks.positions, acks.pending = PositionSet(), PositionSet()
            acks.retire()
            if deleted:
                self._drop(key)

    @contextmanager
    def _locked(self, cursor: CursorRecord, snapshot: LogSnapshot) -> Iterator[Acknowledgements]:
        """The set of a cursor, for this thread alone."""
        key = (cursor.ledger, cursor.name)
        while True:
            acks = self.of(cursor, snapshot)
            with acks.lock:
                # One that was dropped while it was waited for is another cursor's, or is to be read again.
                if self._place.read_only or self._acks.get(key) is acks:
                    yield acks
                    return

    def _drop(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._acks.pop(key, None)

    def forget(self, ledger: str) -> None:
        """A managed ledger is going: let go of its cursors' sets."""
        with self._lock:
            for key in [key for key in self._acks if key[0] == ledger]:
                self._acks.pop(key).leave_ledger()

    def start(self) -> None:
        """Flush by a timer what was acknowledged and not flushed."""
        if self._settings.managedLedgerDefaultMarkDeleteRateLimit:
            self._thread = threading.Thread(target=self._run, name="cursor-flush", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Make durable whatever is not. Raises nothing: a cursor that fails stays dirty."""
        with self._lock:
            dirty = [(key, acks) for key, acks in self._acks.items() if acks.is_dirty]
        for key, acks in dirty:
            try:
                with acks.lock:
                    found = self._metadata.cursors.get(*key)
                    if found is not None and acks.is_dirty and self._acks.get(key) is acks:
                        self._flush(found.cursor, acks, found.cursor.next_position)
            except (LedgerError, OSError) as error:
                _log.warning("cursor %s of %s was not flushed and is tried again: %s", key[1], key[0], error)
            except Exception:  # noqa: BLE001 — the other cursors go on, and this one is tried again
                _log.exception("cursor %s of %s was not flushed, in a way that nobody foresaw", key[1], key[0])

    def close(self) -> None:
        """End every set that is open: into the record when it is small, else with a whole state. Raises nothing."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            closing, self._acks = self._acks, {}
        for key, acks in closing.items():
            try:
                with acks.lock:
                    self._close(key, acks)
            except Fenced as fenced:
                _log.info("%s: %s", key, fenced)
            except (LedgerError, OSError) as error:
                _log.warning("cursor %s of %s is closed as it was last flushed: %s", key[1], key[0], error)
            except Exception:  # noqa: BLE001 — the other cursors are closed, too
                _log.exception("cursor %s of %s is closed as it was last flushed", key[1], key[0])

    def _close(self, key: tuple[str, str], acks: Acknowledgements) -> None:
        found = self._metadata.cursors.get(*key)
        if found is None:
            return
        cursor, ranges = found.cursor, acks.positions.range_count() + acks.positions.batch_count()
        if ranges <= self._settings.managedLedgerMaxUnackedRangesToPersistInMetadataStore:
            acks.leave_ledger()
            self._change(key, lambda at: at.inline(acks.positions))
        elif acks.close(cursor.next_position):
            self._change(key, lambda at: at.in_ledger(acks.ledger_id))
        acks.retire()

    def _flush(self, cursor: CursorRecord, acks: Acknowledgements, next_position: Position) -> CursorRecord:
        try:
            is_new = acks.flush(next_position)
        except OSError as error:
            raise Unavailable(
                f"cursor {cursor.name!r} of {cursor.ledger!r} cannot be written: {error}",
                hint="Look at the disk of the store; what was acknowledged is kept in memory and written later",
            ) from error
        if not is_new:
            return self._at(cursor, next_position)
        key = (cursor.ledger, cursor.name)
        changed = self._change(key, lambda found: found.at(next_position).in_ledger(acks.ledger_id))
        acks.retire()
        return changed

    def _at(self, cursor: CursorRecord, next_position: Position) -> CursorRecord:
        return self._change(
            (cursor.ledger, cursor.name), lambda found: found.at(max(found.next_position, next_position))
        )

    def _current(self, cursor: CursorRecord, acks: Acknowledgements) -> CursorRecord:
        """The cursor as the metadata have it; of a store that is only read, as its ledger has it if that is further."""
        found = self._change((cursor.ledger, cursor.name), lambda found: found)
        return acks.furthest(found) if self._place.read_only else found

    def _change(self, key: tuple[str, str], change: Callable[[CursorRecord], CursorRecord]) -> CursorRecord:
        while True:
            found = self._metadata.cursors.get(*key)
            if found is None:
                raise NotFound(f"ledger {key[0]!r} has no cursor {key[1]!r}")
            changed = change(found.cursor)
            if changed == found.cursor or self._metadata.cursors.put(changed, found.version) is not None:
                return changed

    def _is_due(self, acks: Acknowledgements) -> bool:
        rate = self._settings.managedLedgerDefaultMarkDeleteRateLimit
        return not rate or self._place.clock() - acks.flushed_ms >= 1000 // rate

    def _require_room(self, acks: Acknowledgements, positions: PositionSet, cursor: CursorRecord) -> None:
        most = self._settings.managedLedgerMaxUnackedRangesToPersist
        chunked = self._settings.persistentUnackedRangesWithMultipleEntriesEnabled
        if not most and chunked:
            return
        after = acks.positions.copy()
        after.update(positions)
        size, allowed = (
            len(encode_info(cursor.next_position, after)),
            self._settings.persistentUnackedRangesMaxEntrySize,
        )
        if not chunked and size > allowed:
            raise Refused(
                f"cursor {cursor.name!r} of {cursor.ledger!r} would have a state of {size} bytes, setting "
                f"'persistentUnackedRangesMaxEntrySize' allows {allowed} and states are not cut into chunks",
                hint="Set persistentUnackedRangesWithMultipleEntriesEnabled to 1",
            )
        if most and after.range_count() > most:
            raise Refused(
                f"cursor {cursor.name!r} of {cursor.ledger!r} would have {after.range_count()} ranges acknowledged "
                f"beyond {cursor.next_position}, setting 'managedLedgerMaxUnackedRangesToPersist' allows {most}",
                hint="Acknowledge what lies before them, or raise the setting (0: no limit)",
            )

    def _run(self) -> None:
        while not self._stopped.wait(self._settings.managedLedgerCursorPositionFlushSeconds):
            self.flush()


def cursor_log_form(settings: Settings) -> CursorLogForm:
    """How the settings say that cursors are written; raises Refused for a compression that is not known."""
    return CursorLogForm(
        settings.persistentUnackedRangesMaxEntrySize,
        compression_number(settings.cursorInfoCompressionType or NAMES[NONE]),
        settings.cursorDeltasPerState,
        settings.managedLedgerCursorMaxEntriesPerLedger,
    )
