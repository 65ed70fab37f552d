"""Individual acknowledgements of all cursors of a store: entries and rows after the mark-delete position.

Rules
- The set of a cursor's acknowledgements is read at its first use and stays in memory.
- By default an acknowledgement is durable before the call returns (`managedLedgerDefaultMarkDeleteRateLimit` 0).
- With a rate limit, a set is written at most at this rate. A timer and the close of the store write it too. A crash
  then loses at most the acknowledgements of the last minute.
- If `managedLedgerMaxUnackedRangesToPersist` is set, an acknowledgement that would exceed the limit is refused. So no
  acknowledgement is lost without an error.
- A cursor's position is the later of the positions in the metadata and in the cursor's log. `state` returns it.
- In a read-only store the set is read for every call, because the store's broker may be writing it.
- A clean close moves a small set into the metadata record, and deletes the cursor's log. A large set is written to the
  log as a whole.
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
from pyspark_ledger.ledger.log.acknowledged_positions import drop_rowless, entry_sizes, requested_positions
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.log.unfinished_chunks import ChunkTable
from pyspark_ledger.ledger.message.compression import NAMES, NONE
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_chunks import compression_number
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.actions import SegmentDescription
from pyspark_ledger.ledger.settings.broker import Settings

ROLLOVER_MS = 4 * 3_600_000
"""Age at which the next flush starts a new log for a cursor."""
_FLUSH_SECONDS = 60
_DELTAS_PER_STATE = 256
_LOG_ENTRIES_MAX = 50_000
_METADATA_RANGES_MAX = 1_000
_log = logging.getLogger(__name__)


class CurrentCursor(NamedTuple):
    """Current state of a cursor. `ledger_id` is the id of the cursor's log, -1 if it has no log."""

    cursor: CursorRecord
    positions: PositionSet
    ledger_id: int


class AcknowledgementTable:
    """Acknowledgements of a store's cursors. Thread-safe."""

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
        """Return the acknowledgements of a cursor. Reads them at the first call."""
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
        """Return the current cursor and a copy of its individual acknowledgements.

        If `durable` is set, pending acknowledgements are flushed first. Reason: the caller stores a delivery record
        without these rows.
        """
        if not self.has_acknowledgements(cursor):
            return CurrentCursor(cursor, PositionSet(), -1)
        with self._locked(cursor, snapshot) as acks:
            found = self._current(cursor, acks)
            if durable and acks.is_dirty:
                found = self._flush(found, acks, found.next_position)
            return CurrentCursor(found, acks.positions.copy(), acks.ledger_id)

    def has_acknowledgements(self, cursor: CursorRecord) -> bool:
        """Return whether the cursor may have individual acknowledgements. Reads no file."""
        return (cursor.ledger, cursor.name) in self._acks or bool(cursor.kept)

    def acknowledge(
        self, cursor: CursorRecord, batches: Iterable[pa.RecordBatch], snapshot: LogSnapshot
    ) -> CursorRecord:
        """Acknowledge entries and rows, and return the changed cursor.

        Raises Refused without any change if a position is not in the log.
        """
        return self.acknowledge_positions(cursor, self.require_positions(batches, snapshot), snapshot)

    def require_positions(self, batches: Iterable[pa.RecordBatch], snapshot: LogSnapshot) -> PositionSet:
        """Return the positions in a client's request. Raises Refused if a position is not in the log."""
        return requested_positions(batches, snapshot, cache(lambda: self.trimmed_off(snapshot.name)))

    def trimmed_off(self, log: str) -> list[SegmentDescription]:
        """Return the trimmed (deleted) segments of a ledger. All their entries count as acknowledged."""
        return self._metadata.segments.trimmed(log)

    def acknowledge_positions(
        self, cursor: CursorRecord, positions: PositionSet, snapshot: LogSnapshot
    ) -> CursorRecord:
        """Acknowledge positions that are in the log, and return the changed cursor."""
        with self._locked(cursor, snapshot) as acks:
            found = self._current(cursor, acks)
            positions.trim_below(found.next_position)
            self._warn(cursor, acks, drop_rowless(positions, snapshot))
            self._require_room(acks, positions, found)
            # A repeated request may add no position, but its positions may not be durable yet.
            if not acks.add(positions) and not (acks.is_dirty and self._is_due(acks)):
                return found
            next_position = self._advanced(acks, found.next_position, snapshot)
            # The metadata record alone makes the positions before `next_position` durable.
            needs_log = self._is_due(acks) and acks.is_dirty_from(next_position)
            moved = self._flush(found, acks, next_position) if needs_log else self._at(found, next_position)
            acks.trim_below(moved.next_position)
            return moved

    def acknowledge_with_record(
        self, cursor: CursorRecord, positions: PositionSet, snapshot: LogSnapshot
    ) -> CurrentCursor:
        """Acknowledge positions for a reader whose delivery record is stored next. Return the changed cursor.

        Only positions after the new `next_position` are durable when the call returns. The caller makes `next_position`
        durable, in the transaction of the record or by `move`, and then calls `trim_below`.
        """
        if not positions and not self.has_acknowledgements(cursor):
            return CurrentCursor(cursor, PositionSet(), -1)
        with self._locked(cursor, snapshot) as acks:
            found = self._current(cursor, acks)
            positions.trim_below(found.next_position)
            self._require_room(acks, positions, found)
            acks.add(positions)
            next_position = self._advanced(acks, found.next_position, snapshot)
            if acks.is_dirty_from(next_position):
                next_position = self._flush(found, acks, next_position).next_position
                acks.trim_below(next_position)
            rest = acks.positions.copy()
            rest.trim_below(next_position)
            return CurrentCursor(found.at(next_position), rest, acks.ledger_id)

    def move(self, cursor: CursorRecord) -> None:
        """Make the position of a cursor durable. A move back changes nothing."""
        self._at(cursor, cursor.next_position)

    def set_replay_floor(self, cursor: CursorRecord, floor: Position | None) -> None:
        """Set the replay floor, the end of the last batch that Spark is known to have committed. None: there is none.

        Entries from `floor` on are not trimmed, even if they are acknowledged, because Spark may repeat their batch.
        """
        self._change((cursor.ledger, cursor.name), lambda found: msgspec.structs.replace(found, replay_floor=floor))

    def mark_delete(self, cursor: CursorRecord, next_position: Position, snapshot: LogSnapshot) -> Position:
        """Return the first unacknowledged position of a cursor from `next_position` on. Changes nothing."""
        with self._locked(cursor, snapshot) as acks:
            return self._advanced(acks, next_position, snapshot)

    def _advanced(self, acks: Acknowledgements, position: Position, snapshot: LogSnapshot) -> Position:
        chunks, now = self._chunks, self._place.clock
        if chunks is None:
            return acks.advanced(position, snapshot)
        return acks.advanced(position, snapshot, lambda at: chunks.floor(snapshot, at, now()))

    def trim_below(self, cursor: CursorRecord, position: Position, snapshot: LogSnapshot) -> None:
        """Remove the positions before `position` from the set.

        `position` is the durable `next_position` of the cursor.
        """
        with self._locked(cursor, snapshot) as acks:
            acks.trim_below(position)

    def after(self, cursor: CursorRecord, at: Position, entries: int, snapshot: LogSnapshot) -> Position:
        """Return the position after the next `entries` unacknowledged entries from `at` on, at most the log's end.

        Entries without rows are not counted.
        """
        rest = PositionRange(max(at, snapshot.start), snapshot.end)
        with self._locked(cursor, snapshot) as acks:
            for part in snapshot.slices(rest) if rest and entries else ():
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
        """Return the current cursor and its individual acknowledgements within a range, both read under one lock."""
        with self._locked(cursor, snapshot) as acks:
            # The cursor may have moved since the caller read it. The set begins after the cursor's `next_position`.
            found = self._current(cursor, acks)
            start = max(range_.start, found.next_position)
            return found, acks.positions.within(PositionRange(start, max(start, range_.end)))

    @contextmanager
    def cleared(self, cursor: CursorRecord, snapshot: LogSnapshot, *, deleted: bool = False) -> Iterator[None]:
        """Clear the acknowledgements of a cursor, and delete the cursor's log, at the end of the context.

        The caller changes the metadata within the context. If the caller raises, the acknowledgements are kept, and the
        next call reads them again.
        """
        key = (cursor.ledger, cursor.name)
        try:
            self.of(cursor, snapshot)
        except (Corrupt, DataLoss) as damage:
            _log.warning("cursor %s of %s is cleared because its log cannot be read: %s", *reversed(key), damage)
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
        """Lock the acknowledgements of a cursor for the calling thread, and yield them."""
        key = (cursor.ledger, cursor.name)
        while True:
            acks = self.of(cursor, snapshot)
            with acks.lock:
                # Retry if another thread removed the object before the lock was acquired.
                if self._place.read_only or self._acks.get(key) is acks:
                    yield acks
                    return

    def _drop(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._acks.pop(key, None)

    def forget(self, ledger: str) -> None:
        """Close the acknowledgements of all cursors of a ledger that is being deleted."""
        with self._lock:
            for key in [key for key in self._acks if key[0] == ledger]:
                self._acks.pop(key).leave_ledger()

    def start(self) -> None:
        """Start the timer that flushes pending acknowledgements, if a rate limit is set."""
        if self._settings.managedLedgerDefaultMarkDeleteRateLimit:
            self._thread = threading.Thread(target=self._run, name="cursor-flush", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Flush all pending acknowledgements. Never raises: a failure is logged, and the next call retries."""
        with self._lock:
            dirty = [(key, acks) for key, acks in self._acks.items() if acks.is_dirty]
        for key, acks in dirty:
            try:
                with acks.lock:
                    found = self._metadata.cursors.get(*key)
                    if found is not None and acks.is_dirty and self._acks.get(key) is acks:
                        self._flush(found.cursor, acks, found.cursor.next_position)
            except (LedgerError, OSError) as error:
                _log.warning("cursor %s of %s was not flushed and is retried: %s", key[1], key[0], error)
            except Exception:  # noqa: BLE001 — the cursor is retried later
                _log.exception("cursor %s of %s was not flushed because of an unexpected error", key[1], key[0])

    def close(self) -> None:
        """Write and close the sets of all cursors. Never raises: a failure is logged."""
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
                _log.warning("cursor %s of %s was not closed and keeps its last flush: %s", key[1], key[0], error)
            except Exception:  # noqa: BLE001 — the other cursors are still closed
                _log.exception("cursor %s of %s was not closed and keeps its last flush", key[1], key[0])

    def _close(self, key: tuple[str, str], acks: Acknowledgements) -> None:
        found = self._metadata.cursors.get(*key)
        if found is None:
            return
        cursor, ranges = found.cursor, acks.positions.range_count() + acks.positions.batch_count()
        if ranges <= _METADATA_RANGES_MAX:
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
                hint="Check the disk of the store. The acknowledgements are kept in memory and written later",
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
        """Return the cursor from the metadata. In a read-only store its position may come from the cursor's log."""
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

    def _warn(self, cursor: CursorRecord, acks: Acknowledgements, rowless: Position | None) -> None:
        if rowless is not None and not acks.has_warned:
            acks.has_warned = True
            _log.warning(
                "cursor %s of %s: the acknowledgement of %s has no effect, because this entry has no row. A message in "
                "several chunks is acknowledged with its last chunk",
                cursor.name,
                cursor.ledger,
                rowless,
            )

    def _require_room(self, acks: Acknowledgements, positions: PositionSet, cursor: CursorRecord) -> None:
        most = self._settings.managedLedgerMaxUnackedRangesToPersist
        if not most:
            return
        after = acks.positions.copy()
        after.update(positions)
        if after.range_count() > most:
            raise Refused(
                f"cursor {cursor.name!r} of {cursor.ledger!r} would have {after.range_count()} ranges acknowledged "
                f"after {cursor.next_position}, setting 'managedLedgerMaxUnackedRangesToPersist' allows {most}",
                hint="Acknowledge the rows between these ranges, or raise the setting (0: no limit)",
            )

    def _run(self) -> None:
        while not self._stopped.wait(_FLUSH_SECONDS):
            self.flush()


def cursor_log_form(settings: Settings) -> CursorLogForm:
    """Return the format of cursor logs that the settings select. Raises Refused for an unknown compression."""
    return CursorLogForm(
        settings.persistentUnackedRangesMaxEntrySize,
        compression_number(settings.cursorInfoCompressionType or NAMES[NONE]),
        _DELTAS_PER_STATE,
        _LOG_ENTRIES_MAX,
    )
