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
        self._held: dict[tuple[str, str], Acknowledgements] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def of(self, cursor: CursorRecord, snapshot: LogSnapshot) -> Acknowledgements:
        """The set of a cursor, read if need be."""
        if self._place.read_only:
            return Acknowledgements.open(cursor, self._place, snapshot)
        key = (cursor.ledger, cursor.name)
        with self._lock:
            held = self._held.get(key)
            if held is None:
                found = self._metadata.cursors.get(*key)
                cursor = cursor if found is None else found.cursor
                held = Acknowledgements.open(cursor, self._place, snapshot)
                if held.recovered_to != cursor.next_position:
                    self._change(key, held.furthest)
                self._held[key] = held
            return held

    def state(self, cursor: CursorRecord, snapshot: LogSnapshot, *, durable: bool = False) -> CurrentCursor:
        """Return the cursor as it stands and a copy of what is acknowledged beyond its mark-delete.

        `durable`: none of which a crash takes back, for whoever writes down what follows from it.
        """
        if not self.holds(cursor):
            return CurrentCursor(cursor, PositionSet(), -1)
        with self._holding(cursor, snapshot) as held:
            found = self._found(cursor, held)
            if durable and held.is_dirty:
                found = self._flush(found, held, found.next_position)
            return CurrentCursor(found, held.positions.copy(), held.ledger_id)

    def holds(self, cursor: CursorRecord) -> bool:
        """Whether there is anything beyond mark-delete, as far as is known without reading it."""
        return (cursor.ledger, cursor.name) in self._held or bool(cursor.kept)

    def acknowledge(
        self, cursor: CursorRecord, batches: Iterable[pa.RecordBatch], snapshot: LogSnapshot
    ) -> CursorRecord:
        """Acknowledge entries and rows; the cursor as it is then. Raises Refused, and changes nothing, for any that is
        not in the log.
        """
        return self.acknowledge_positions(cursor, self.given(batches, snapshot), snapshot)

    def given(self, batches: Iterable[pa.RecordBatch], snapshot: LogSnapshot) -> PositionSet:
        """The positions that somebody names, all of them the log's; Refused when any is not."""
        return positions_given(batches, snapshot, cache(lambda: self.trimmed_off(snapshot.name)))

    def trimmed_off(self, log: str) -> list[SegmentDescription]:
        """The ledgers that a log had and that were trimmed: all of them is acknowledged."""
        return self._metadata.segments.trimmed(log)

    def acknowledge_positions(self, cursor: CursorRecord, given: PositionSet, snapshot: LogSnapshot) -> CursorRecord:
        """The same of a set that is known to be in the log."""
        with self._holding(cursor, snapshot) as held:
            found = self._found(cursor, held)
            given.trim_below(found.next_position)
            self._require_room(held, given, found)
            # Of a call that was not answered all may be known, and nothing durable yet.
            if not held.add(given) and not (held.is_dirty and self._is_due(held)):
                return found
            next_position = self._advanced(held, found.next_position, snapshot)
            moved = self._flush(found, held, next_position) if self._is_due(held) else self._at(found, next_position)
            held.trim_below(moved.next_position)
            return moved

    def hold_floor(self, cursor: CursorRecord, floor: Position) -> None:
        """What lies at or after `floor` may be read again, whatever is acknowledged of it."""
        self._change((cursor.ledger, cursor.name), lambda found: msgspec.structs.replace(found, replay_floor=floor))

    def mark_delete(self, cursor: CursorRecord, next_position: Position, snapshot: LogSnapshot) -> Position:
        """How far a cursor comes when everything before `next_position` is acknowledged."""
        with self._holding(cursor, snapshot) as held:
            return self._advanced(held, next_position, snapshot)

    def _advanced(self, held: Acknowledgements, position: Position, snapshot: LogSnapshot) -> Position:
        chunks, now = self._chunks, self._place.clock
        if chunks is None:
            return held.advanced(position, snapshot)
        return held.advanced(position, snapshot, lambda at: chunks.floor(snapshot, at, now()))

    def trim_below(self, cursor: CursorRecord, position: Position, snapshot: LogSnapshot) -> None:
        """The metadata says that everything before a position is acknowledged: it need not be kept here."""
        with self._holding(cursor, snapshot) as held:
            held.trim_below(position)

    def after(self, cursor: CursorRecord, at: Position, entries: int, snapshot: LogSnapshot) -> Position:
        """The position after so many entries from `at` on that have rows and are left; the end when there are fewer."""
        left = PositionRange(max(at, snapshot.start), snapshot.end)
        with self._holding(cursor, snapshot) as held:
            for part in snapshot.slices(left) if left and entries else ():
                numbers = np.arange(part.first, part.end)
                open_ones = ~held.positions.contains_entries(part.segment.ledger_id, numbers)
                wanted = numbers[open_ones & (entry_sizes(part.segment)[part.first : part.end] > 0)]
                if len(wanted) >= entries:
                    return Position(part.segment.ledger_id, int(wanted[entries - 1]) + 1)
                entries -= len(wanted)
        return snapshot.end if entries else at

    def holes(
        self, cursor: CursorRecord, range_: PositionRange, snapshot: LogSnapshot
    ) -> tuple[CursorRecord, PositionSet]:
        """The cursor as it is now, and what of a range is acknowledged beyond its mark-delete at that moment."""
        with self._holding(cursor, snapshot) as held:
            # What joined mark-delete since the caller saw the cursor is in the set no more.
            found = self._found(cursor, held)
            start = max(range_.start, found.next_position)
            return found, held.positions.within(PositionRange(start, max(start, range_.end)))

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
                self._held[key] = Acknowledgements(self._place, PositionSet(), cursor.kept_info().cursorsLedgerId)
        with self._holding(cursor, snapshot) as held:
            try:
                yield
            except BaseException:
                self._drop(key)
                held.let_go()
                raise
            held.leave_ledger()
            held.positions, held.pending = PositionSet(), PositionSet()
            held.retire()
            if deleted:
                self._drop(key)

    @contextmanager
    def _holding(self, cursor: CursorRecord, snapshot: LogSnapshot) -> Iterator[Acknowledgements]:
        """The set of a cursor, for this thread alone."""
        key = (cursor.ledger, cursor.name)
        while True:
            held = self.of(cursor, snapshot)
            with held.lock:
                # One that was dropped while it was waited for is another cursor's, or is to be read again.
                if self._place.read_only or self._held.get(key) is held:
                    yield held
                    return

    def _drop(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._held.pop(key, None)

    def forget(self, ledger: str) -> None:
        """A managed ledger is going: let go of its cursors' sets."""
        with self._lock:
            for key in [key for key in self._held if key[0] == ledger]:
                self._held.pop(key).leave_ledger()

    def start(self) -> None:
        """Flush by a timer what was acknowledged and not flushed."""
        if self._settings.managedLedgerDefaultMarkDeleteRateLimit:
            self._thread = threading.Thread(target=self._run, name="cursor-flush", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Make durable whatever is not. Raises nothing: a cursor that fails stays dirty."""
        with self._lock:
            dirty = [(key, held) for key, held in self._held.items() if held.is_dirty]
        for key, held in dirty:
            try:
                with held.lock:
                    found = self._metadata.cursors.get(*key)
                    if found is not None and held.is_dirty and self._held.get(key) is held:
                        self._flush(found.cursor, held, found.cursor.next_position)
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
            held_now, self._held = self._held, {}
        for key, held in held_now.items():
            try:
                with held.lock:
                    self._close(key, held)
            except Fenced as fenced:
                _log.info("%s: %s", key, fenced)
            except (LedgerError, OSError) as error:
                _log.warning("cursor %s of %s is closed as it was last flushed: %s", key[1], key[0], error)
            except Exception:  # noqa: BLE001 — the other cursors are closed, too
                _log.exception("cursor %s of %s is closed as it was last flushed", key[1], key[0])

    def _close(self, key: tuple[str, str], held: Acknowledgements) -> None:
        found = self._metadata.cursors.get(*key)
        if found is None:
            return
        cursor, ranges = found.cursor, held.positions.range_count() + held.positions.batch_count()
        if ranges <= self._settings.managedLedgerMaxUnackedRangesToPersistInMetadataStore:
            held.leave_ledger()
            self._change(key, lambda at: at.inline(held.positions))
        elif held.close(cursor.next_position):
            self._change(key, lambda at: at.in_ledger(held.ledger_id))
        held.retire()

    def _flush(self, cursor: CursorRecord, held: Acknowledgements, next_position: Position) -> CursorRecord:
        try:
            began = held.flush(next_position)
        except OSError as error:
            raise Unavailable(
                f"cursor {cursor.name!r} of {cursor.ledger!r} cannot be written: {error}",
                hint="Look at the disk of the store; what was acknowledged is kept in memory and written later",
            ) from error
        if not began:
            return self._at(cursor, next_position)
        key = (cursor.ledger, cursor.name)
        changed = self._change(key, lambda found: found.at(next_position).in_ledger(held.ledger_id))
        held.retire()
        return changed

    def _at(self, cursor: CursorRecord, next_position: Position) -> CursorRecord:
        return self._change(
            (cursor.ledger, cursor.name), lambda found: found.at(max(found.next_position, next_position))
        )

    def _found(self, cursor: CursorRecord, held: Acknowledgements) -> CursorRecord:
        """The cursor as the metadata have it; of a store that is only read, as its ledger has it if that is further."""
        found = self._change((cursor.ledger, cursor.name), lambda found: found)
        return held.furthest(found) if self._place.read_only else found

    def _change(self, key: tuple[str, str], change: Callable[[CursorRecord], CursorRecord]) -> CursorRecord:
        while True:
            found = self._metadata.cursors.get(*key)
            if found is None:
                raise NotFound(f"ledger {key[0]!r} has no cursor {key[1]!r}")
            changed = change(found.cursor)
            if changed == found.cursor or self._metadata.cursors.put(changed, found.version) is not None:
                return changed

    def _is_due(self, held: Acknowledgements) -> bool:
        rate = self._settings.managedLedgerDefaultMarkDeleteRateLimit
        return not rate or self._place.clock() - held.flushed_ms >= 1000 // rate

    def _require_room(self, held: Acknowledgements, given: PositionSet, cursor: CursorRecord) -> None:
        most = self._settings.managedLedgerMaxUnackedRangesToPersist
        chunked = self._settings.persistentUnackedRangesWithMultipleEntriesEnabled
        if not most and chunked:
            return
        after = held.positions.copy()
        after.update(given)
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
