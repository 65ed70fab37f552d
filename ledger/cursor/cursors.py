"""Durable cursors of a store.

A change computes a new record from the cursor's record (`ledger.metadata.cursor_records`). The new record is stored
only if no other change was stored in the meantime.

Invariants
- A change is durable before the broker answers the client.
- At most one change succeeds for each version of a cursor's record.
- A cursor never points beyond the readable end of the log.
- A new position is checked and stored while no trim runs. So a cursor never points to a trimmed entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext

import pyarrow as pa

from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.cursor.acknowledgements import AcknowledgementTable, CurrentCursor
from pyspark_ledger.ledger.errors import DataLoss, NotFound, Refused
from pyspark_ledger.ledger.log.policy import require_properties
from pyspark_ledger.ledger.log.remaining import unacknowledged
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.log.unfinished_chunks import ChunkTable
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecord, StoredCursor
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.names import nearest, require_cursor_name, require_new_cursor_name
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.positions.position_info import encode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.cursors import (
    AckedRanges,
    AskAckedRanges,
    CursorProperties,
    CursorState,
    DeleteCursor,
    DescribeCursor,
    MarkDelete,
    OpenCursor,
    OpenCursors,
    ResetCursor,
    SkipEntries,
)
from pyspark_ledger.ledger.protocol.reads import OpenRead
from pyspark_ledger.ledger.protocol.request import Empty

_START = Position(-1, 0)
"""Position of a cursor before the log's first entry, also after a trim."""
Change = Callable[[CursorRecord], CursorRecord]
Forgetting = Callable[[str, str], AbstractContextManager[None]]
"""Takes the names of a ledger and a cursor. The caller resets or deletes the cursor within the returned context.

The context deletes the cursor's delivery records."""


class CursorTable:
    """Durable cursors of a store."""

    def __init__(
        self,
        metadata: Metadata,
        clock: Clock,
        snapshot_of: Callable[[str], LogSnapshot],
        acknowledgements: AcknowledgementTable,
        chunks: ChunkTable | None = None,
        trimming: Callable[[str], AbstractContextManager[object]] = lambda _ledger: nullcontext(),
        forgetting: Forgetting = lambda _ledger, _cursor: nullcontext(),
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._snapshot_of = snapshot_of
        self.acknowledgements = acknowledgements
        self._chunks = chunks
        self._trimming = trimming
        self._forgetting = forgetting

    def names(self, ledger: str) -> list[str]:
        """Return the names of a ledger's cursors, sorted."""
        return self._metadata.cursors.names(ledger)

    def exists(self, ledger: str, name: str) -> bool:
        """Return whether a ledger has a cursor of this name."""
        return self._metadata.cursors.get(ledger, name) is not None

    def open(self, request: OpenCursor) -> CursorState:
        """Return the state of a cursor. If `create` is set, create a missing cursor at `start`.

        Raises NotFound if the cursor is missing and `create` is not set.
        """
        snapshot = self._snapshot_of(request.ledger)
        require_cursor_name(request.cursor, request.ledger)
        found = self._metadata.cursors.get(snapshot.name, request.cursor)
        if found is not None:
            return self._state(found.cursor, snapshot, created=False)
        if not request.create:
            raise self._missing(snapshot.name, request.cursor)
        require_new_cursor_name(request.cursor, request.ledger)
        with self._trimming(snapshot.name):
            stored = self._metadata.cursors.put(self._new(snapshot.name, request), None)
            if stored is not None:
                return self._state(stored.cursor, self._snapshot_of(snapshot.name), created=True)
        return self.open(request)

    def open_all(self, request: OpenCursors) -> Empty:
        """Create those of the cursors that are missing, in one transaction."""
        missing: dict[tuple[str, str], OpenCursor] = {}
        for opening in request.cursors:
            require_cursor_name(opening.cursor, opening.ledger)
            ledger = self._snapshot_of(opening.ledger).name
            if self._metadata.cursors.get(ledger, opening.cursor) is None:
                if not opening.create:
                    raise self._missing(ledger, opening.cursor)
                require_new_cursor_name(opening.cursor, opening.ledger)
                missing[ledger, opening.cursor] = opening
        with ExitStack() as trimming:
            for ledger in sorted({ledger for ledger, _ in missing}):  # one order, so that two requests end
                trimming.enter_context(self._trimming(ledger))
            self._metadata.cursors.create_all([self._new(ledger, missing[ledger, name]) for ledger, name in missing])
        return Empty()

    def _new(self, ledger: str, request: OpenCursor) -> CursorRecord:
        """Return the record of a new cursor. No trim runs meanwhile."""
        snapshot = self._snapshot_of(ledger)
        start = min(max(request.start, _START), snapshot.end)
        snapshot.require_left(start)
        return CursorRecord(ledger, request.cursor, start)

    def describe(self, request: DescribeCursor) -> CursorState:
        snapshot = self._snapshot_of(request.ledger)
        return self._state(self._get(snapshot.name, request.cursor).cursor, snapshot, precise=request.precise)

    def mark_delete(self, request: MarkDelete) -> Position:
        """Acknowledge all entries before a position. Return the cursor's new `next_position`.

        Chunks of an unfinished message stay unacknowledged.
        """
        snapshot = self._snapshot_of(request.ledger)

        def change(cursor: CursorRecord) -> CursorRecord:
            # A cursor at `_START` may be before the trimmed entries. Then these entries count as acknowledged.
            is_trimmed = request.next_position < self._snapshot_of(snapshot.name).trimmed.position
            wanted = _START if is_trimmed else request.next_position
            moved = cursor.advance(wanted, snapshot.end, request.replay_floor)
            if self._chunks is not None and moved.next_position > cursor.next_position:
                floor = self._chunks.floor(snapshot, moved.next_position, self._clock())
                moved = moved.at(max(cursor.next_position, floor))
            if not self.acknowledgements.has_acknowledgements(cursor):
                return moved
            return moved.at(self.acknowledgements.mark_delete(cursor, moved.next_position, snapshot))

        moved = self._changed(snapshot, request.cursor, change)
        if self.acknowledgements.has_acknowledgements(moved):
            self.acknowledgements.trim_below(moved, moved.next_position, snapshot)
        return moved.next_position

    def acknowledge(self, ledger: str, name: str, batches: Iterable[pa.RecordBatch]) -> CursorState:
        """Acknowledge entries and rows, in any order. `ledger.log.acknowledged_positions` describes `batches`."""
        snapshot = self._snapshot_of(ledger)
        found = self._get(snapshot.name, name).cursor
        return self._state(self.acknowledgements.acknowledge(found, batches, snapshot), snapshot)

    def acknowledged(self, ledger: str, name: str, start: Position) -> PositionSet | None:
        """Return all acknowledged positions from `start` on, also positions before the cursor's `next_position`.

        Returns None if no position is acknowledged or the cursor is missing.
        """
        snapshot = self._snapshot_of(ledger)
        found = self._metadata.cursors.get(snapshot.name, name)
        if found is None:
            return None
        cursor, positions, _ = self._current(found.cursor, snapshot)
        behind = PositionRange(max(start, snapshot.start), min(cursor.next_position, snapshot.end))
        for part in snapshot.slices(behind) if behind else ():
            positions.add_run(part.segment.ledger_id, part.first, part.end)
        return positions or None

    def skip(self, request: SkipEntries) -> CursorState:
        """Acknowledge the next `entries` entries from `start` on. A negative number means all entries before `end`."""
        snapshot = self._snapshot_of(request.ledger)
        cursor = self._current(self._get(snapshot.name, request.cursor).cursor, snapshot).cursor
        at = min(request.end, snapshot.end)
        if request.entries >= 0:
            at = min(at, self.acknowledgements.after(cursor, request.start, request.entries, snapshot))
        self.mark_delete(MarkDelete(request.ledger, request.cursor, max(at, cursor.next_position)))
        return self._state(self._get(snapshot.name, request.cursor).cursor, snapshot)

    def change_properties(self, request: CursorProperties) -> CursorState:
        snapshot = self._snapshot_of(request.ledger)
        require_properties(request.values, request.remove, f"{request.ledger}/{request.cursor}")
        changed = self._changed(
            snapshot, request.cursor, lambda cursor: cursor.with_properties(request.values, request.remove)
        )
        return self._state(changed, snapshot)

    def acked_ranges(self, request: AskAckedRanges) -> AckedRanges:
        snapshot = self._snapshot_of(request.ledger)
        cursor, found = self._cursor_and_acks(snapshot, request.cursor, request.range)
        if request.whole and self._chunks is not None:
            self._chunks.add_chunks(snapshot, found)
            found.trim_below(cursor.next_position)
        return AckedRanges(encode_info(_mark_delete(cursor), found) if found or request.whole else b"")

    def left(self, snapshot: LogSnapshot, request: OpenRead) -> tuple[PositionRange, bytes]:
        """Return the range that a read of the log delivers, and the positions that it skips, as a PositionInfo."""
        start, end = request.start, snapshot.end if request.end is None else request.end
        skip = b""
        if request.cursor:
            cursor, found = self._cursor_and_acks(snapshot, request.cursor, PositionRange(start, end))
            skip = encode_info(_mark_delete(cursor), found) if found else b""
            start = max(start, cursor.next_position)
        return PositionRange(start, max(start, end)), skip

    def _cursor_and_acks(
        self, snapshot: LogSnapshot, name: str, range_: PositionRange
    ) -> tuple[CursorRecord, PositionSet]:
        cursor = self._get(snapshot.name, name).cursor
        if self.acknowledgements.has_acknowledgements(cursor):
            return self.acknowledgements.acked_ranges(cursor, range_, snapshot)
        return cursor, PositionSet()

    def reset(self, request: ResetCursor) -> CursorState:
        """Move a cursor to a position. LATEST is the log's end, EARLIEST the place before its first entry.

        Raises Refused if an entry after the position was trimmed, or if the position is beyond the log's end.
        """
        name = self._snapshot_of(request.ledger).name
        with self._trimming(name):
            snapshot = self._snapshot_of(name)
            found = self._get(name, request.cursor).cursor
            named = {LATEST: snapshot.end, EARLIEST: _START}
            position = named.get(request.next_position, request.next_position)
            _require_left(found, position, snapshot)
            found.reset(position, snapshot.end)
            with self._forgetting(name, request.cursor), self.acknowledgements.cleared(found, snapshot):
                self._changed(snapshot, request.cursor, lambda cursor: cursor.reset(position, snapshot.end))
            return self._state(self._get(name, request.cursor).cursor, snapshot)

    def delete(self, request: DeleteCursor) -> None:
        """Delete a cursor. Raises NotFound if the cursor is missing."""
        snapshot = self._snapshot_of(request.ledger)
        found = self._get(snapshot.name, request.cursor).cursor
        acknowledgements = self.acknowledgements.cleared(found, snapshot, deleted=True)
        with self._forgetting(snapshot.name, request.cursor), acknowledgements:
            if not self._metadata.cursors.delete(snapshot.name, request.cursor):
                raise self._missing(snapshot.name, request.cursor)

    def next_position(self, ledger: str, name: str) -> Position:
        """Return the first unacknowledged position of a cursor."""
        return self._current(self._get(ledger, name).cursor, self._snapshot_of(ledger)).cursor.next_position

    def _changed(self, snapshot: LogSnapshot, name: str, change: Change) -> CursorRecord:
        while True:
            found = self._get(snapshot.name, name)
            changed = change(found.cursor)
            if changed == found.cursor or self._metadata.cursors.put(changed, found.version) is not None:
                return changed

    def _current(self, cursor: CursorRecord, snapshot: LogSnapshot) -> CurrentCursor:
        """Return the current state of a cursor. Its position may be ahead of the metadata."""
        return self.acknowledgements.state(cursor, snapshot)

    def _get(self, ledger: str, name: str) -> StoredCursor:
        found = self._metadata.cursors.get(ledger, name)
        if found is None:
            raise self._missing(ledger, name)
        return found

    def _missing(self, ledger: str, name: str) -> NotFound:
        near = nearest(name, self._metadata.cursors.names(ledger))
        return NotFound(f"ledger {ledger!r} has no cursor {name!r}", hint=f"Did you mean {near!r}?" if near else "")

    def _state(
        self, cursor: CursorRecord, snapshot: LogSnapshot, *, created: bool = False, precise: bool = True
    ) -> CursorState:
        cursor, positions, own = self._current(cursor, snapshot)
        rest = PositionRange(max(cursor.next_position, snapshot.start), snapshot.end)
        counts = (snapshot.backlog if precise else snapshot.estimated_backlog)(rest)
        if positions:
            counts = unacknowledged(positions, snapshot, rest, counts, precise=precise)
        entries, rows, size = counts
        return CursorState(
            ledger=cursor.ledger,
            cursor=cursor.name,
            next_position=cursor.next_position,
            created=created,
            backlog_entries=entries,
            backlog_rows=rows,
            backlog_bytes=size,
            lease_holder=cursor.lease.holder if cursor.lease.until_ms else "",
            lease_until_ms=cursor.lease.until_ms,
            replay_floor=cursor.replay_floor,
            acknowledged_ranges=positions.range_count(),
            acknowledged_entries=positions.entry_count(),
            partial_entries=positions.batch_count(),
            cursor_ledger=own,
            properties=cursor.properties,
        )


def _require_left(cursor: CursorRecord, position: Position, snapshot: LogSnapshot) -> None:
    try:
        snapshot.require_left(position)
    except DataLoss as trimmed:
        raise Refused(
            f"cursor {cursor.name!r} of {cursor.ledger!r} cannot move to {position}: {trimmed.message}",
            hint="Give a position from the log's start on, or EARLIEST",
        ) from trimmed


def _mark_delete(cursor: CursorRecord) -> Position:
    at = cursor.next_position
    return Position(at.ledger_id, at.entry_id - 1)
