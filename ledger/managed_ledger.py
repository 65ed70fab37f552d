"""A managed ledger: one durable log made of ledgers (segments), of which the last may be open.

One append: `append` checks each entry's checksum and counts its rows on the caller's thread, and queues it. One
thread at a time drains the queue: it rolls over when the ledger is full, stamps each entry with the broker's time
and row count, writes the group, syncs once, reads the store's epoch again, moves the committed end, publishes a new
snapshot, and only then completes the futures.

Invariants
- An acknowledged entry is synced, and was synced while this broker still owned the store.
- The metadata change is the commit point of every rollover; the new ledger is listed before its first entry.
- A ledger that was recovered is sealed and never written again.
- A write or sync error seals the ledger at its last acknowledged entry, and the group goes to a new one, once; a sync
  is never repeated on the same file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from ledger.append_queue import AppendQueue, CheckedEntry, Group, PendingAppend, PendingRun, Room
from ledger.entry import STAMP_BYTES_MAX, BrokerStamp, Buffer, entry_rows, is_marker, parse_entry
from ledger.errors import Fenced, LedgerError, Refused, Unavailable
from ledger.ledger_list import LedgerList, LogContext
from ledger.log_snapshot import LogSnapshot
from ledger.open_ledger import OpenLedger
from ledger.position import Position, PositionRange
from ledger.protocol import CommitRun, CommittedRun, LedgerDescription, LedgerEnd, LedgerSegment, SplitPart
from ledger.run import CommittedBatch, RunId, RunSummary, encode_marker, run_id
from ledger.segment_reader import SegmentBlock
from ledger.segment_writer import StampedEntry
from ledger.staging import OpenedPart

_GROUP_BYTES_MAX = 64 * 1024 * 1024
_RUN_SLICE_ENTRIES = 256
_log = logging.getLogger(__name__)


class ManagedLedger:
    """One log of a store. All methods may be called from any thread."""

    def __init__(self, name: str, context: LogContext) -> None:
        self._context = context
        self._list = LedgerList.recover(name, context)
        self._policy = self._list.policy
        self._open: OpenLedger | None = None
        self._snapshot = self._list.snapshot(None)
        self._moved = threading.Condition()
        self._stamp = BrokerStamp(self._snapshot.last_timestamp_ms(), self._snapshot.rows)
        self._failure: LedgerError | None = None
        self._unsealed = False
        self._queue = AppendQueue(context.executor, self._room, self._commit)

    @property
    def name(self) -> str:
        """The canonical name."""
        return self._list.name

    @property
    def incarnation(self) -> str:
        """Told anew at each creation: a ledger deleted and made again is another one."""
        return self._list.incarnation

    @property
    def snapshot(self) -> LogSnapshot:
        """All committed entries at this moment."""
        return self._snapshot

    def append(self, entries: Sequence[Buffer]) -> Future[Position]:
        """Append entries with consecutive ids; the future has the first one's position once all are durable."""
        if not entries:
            raise Refused(f"an append to {self.name!r} holds no entry", hint="Send at least one")
        checked = [self._checked(entry, i) for i, entry in enumerate(entries)]
        item = PendingAppend(checked, sum(entry.size for entry in checked))
        self._queue.put(item)
        return item.future

    def commit_run(self, request: CommitRun, parts: Sequence[OpenedPart]) -> Future[CommittedRun]:
        """Append the parts as one run, unless this batch of this query is in the log already."""
        wanted = RunId(request.txn_most, request.txn_least)
        entries = [
            self._checked_of_run(entry, f"{part.part.part} entry {ordinal}", wanted)
            for part in parts
            for ordinal, entry in enumerate(part.entries)
        ]
        item = PendingRun(request, entries, sum(part.part.length for part in parts))
        self._queue.put(item)
        return item.future

    def committed_batch(self, query: str) -> CommittedBatch | None:
        """The newest batch of a query that is in the log."""
        return self._list.committed.get(query)

    def end(self, since: Position | None = None) -> LedgerEnd:
        """Where the log ends, and how much lies after `since`."""
        snapshot = self._snapshot
        entries = rows = size = 0
        if since is not None and since < snapshot.end:
            entries, rows, size = snapshot.measure(PositionRange(since, snapshot.end))
        return LedgerEnd(
            name=self.name,
            incarnation=self.incarnation,
            start=snapshot.start,
            end=snapshot.end,
            rows_since=rows,
            bytes_since=size,
            entries_since=entries,
            last_publish_ms=snapshot.last_timestamp_ms(),
        )

    def wait_past(self, position: Position, timeout_ms: int) -> None:
        """Return when the log's end has passed `position`, or after `timeout_ms`."""
        with self._moved:
            self._moved.wait_for(lambda: self._snapshot.end > position, timeout_ms / 1000)

    def describe(self) -> LedgerDescription:
        """The whole of it, segment by segment."""
        snapshot = self._snapshot
        return LedgerDescription(
            name=self.name,
            incarnation=self.incarnation,
            start=snapshot.start,
            end=snapshot.end,
            entries=sum(segment.entries for segment in snapshot.segments),
            size_bytes=sum(segment.size_bytes for segment in snapshot.segments),
            rows=snapshot.rows,
            last_publish_ms=snapshot.last_timestamp_ms(),
            schema_version=-1,
            segments=[
                LedgerSegment(part.ledger_id, part.entries, part.size_bytes, part.rows, part.close_ms)
                for part in snapshot.segments
            ],
            cursors=[],
            properties=self._list.properties,
        )

    def blocks(self, range_: PositionRange, max_block_bytes: int) -> list[SegmentBlock]:
        """Where the entries of a range lie."""
        return self._snapshot.blocks(range_, max_block_bytes)

    def split(self, range_: PositionRange, target_bytes: int, max_parts: int) -> list[SplitPart]:
        """Cut a range into parts of about `target_bytes`."""
        return self._snapshot.split(range_, target_bytes, max_parts)

    def seek_time(self, timestamp_ms: int) -> Position:
        """The first entry at or after a broker timestamp."""
        return self._snapshot.seek_time(timestamp_ms)

    def close(self) -> None:
        """Settle what was queued, then seal the open ledger. May be repeated; raises nothing.

        What cannot be sealed, because the store was taken over or the disk fails, is left as it is: whoever opens the
        log next recovers it.
        """
        self._queue.close(f"{self.name!r} is closed")
        if self._open is None:
            return
        log, self._open = self._open, None
        try:
            if self._failure is not None:
                raise self._failure
            self._context.metadata.require_epoch(self._context.epoch)
            self._list.seal(log)
        except (OSError, LedgerError) as error:
            _log.warning("%s is closed without a seal: %s", self.name, error)
            log.let_go()
        else:
            self._publish()

    def _checked(self, entry: Buffer, ordinal: int) -> CheckedEntry:
        parsed = parse_entry(entry, f"entry {ordinal} of an append to {self.name!r}")
        if run_id(parsed.metadata) is not None or is_marker(parsed.metadata):
            raise Refused(
                f"entry {ordinal} of an append to {self.name!r} carries a transaction or marker field",
                hint="Commit a run instead: such an entry alone would be taken for an unfinished run",
            )
        if parsed.stamp is not None:
            raise Refused(
                f"entry {ordinal} of an append to {self.name!r} carries broker metadata already",
                hint="Send the entry as the producer made it; the broker stamps it",
            )
        return self._sized(entry, entry_rows(parsed.metadata))

    def _checked_of_run(self, entry: Buffer, where: str, wanted: RunId) -> CheckedEntry:
        metadata = parse_entry(entry, where).metadata
        found = run_id(metadata)
        if found != wanted:
            raise Refused(f"{where} belongs to run {found}, the commit is of run {wanted}")
        return self._sized(entry, entry_rows(metadata))

    def _sized(self, entry: Buffer, rows: int) -> CheckedEntry:
        size, most = len(memoryview(entry)), self._policy.entry_bytes_max - STAMP_BYTES_MAX
        if size > most:
            raise Refused(
                f"an entry of {size} bytes for {self.name!r} exceeds the {most} bytes that a block of "
                f"{self._policy.block_bytes} bytes holds",
                hint="Send smaller entries, or create the ledger with larger blocks",
            )
        return CheckedEntry(entry, size, rows)

    # What follows runs on the draining thread only.

    def _room(self) -> Room:
        if self._open is None:
            return Room(self._policy.entries_max, min(self._policy.size_max, _GROUP_BYTES_MAX))
        return Room(
            self._policy.entries_max - self._open.written,
            min(self._policy.size_max - self._open.size, _GROUP_BYTES_MAX),
        )

    def _commit(self, group: Group) -> None:
        waiting = [group] if isinstance(group, PendingRun) else group
        try:
            done = self._commit_or_move_on(group)
        except LedgerError as error:
            for item in waiting:
                item.fail(error)
        except Exception as error:  # noqa: BLE001 — whoever waits must hear of it, whatever it is
            _log.exception("%s: an append failed in a way that nobody foresaw", self.name)
            for item in waiting:
                item.fail(Unavailable(f"append to {self.name!r} failed: {error!r}"))
        else:
            for future, result in done:
                future.set_result(result)

    def _commit_or_move_on(self, group: Group) -> list[tuple[Future[Any], object]]:
        if self._failure is not None:
            raise self._failure
        if self._unsealed:
            self._recover()
        try:
            return self._write_and_sync(group)
        except OSError as first:
            _log.warning("%s: %s; its ledger is sealed and the log goes on in a new one", self.name, first)
        try:
            return self._write_and_sync(group)
        except OSError as second:
            raise Unavailable(
                f"append to {self.name!r} failed twice: {second}", hint="Look at the disk of the store"
            ) from second

    def _write_and_sync(self, group: Group) -> list[tuple[Future[Any], object]]:
        try:
            done = self._write_run(group) if isinstance(group, PendingRun) else self._write_appends(group)
        except Fenced as fenced:
            self._failure = fenced
            if self._open is not None:
                self._open.let_go()
            raise
        except BaseException:
            # Whatever was written of this group must never be taken for acknowledged by the next one's sync.
            self._abandon_open()
            raise
        return done

    def _write_appends(self, group: list[PendingAppend]) -> list[tuple[Future[Any], object]]:
        log = self._writable()
        firsts = []
        for item in group:
            firsts.append(Position(log.ledger_id, log.written))
            log.write(self._stamped(item.entries))
        self._make_durable(log)
        return [(item.future, first) for item, first in zip(group, firsts, strict=True)]

    def _write_run(self, run: PendingRun) -> list[tuple[Future[Any], object]]:
        request = run.request
        earlier = self._list.committed.get(request.query)
        if earlier is not None and request.batch <= earlier.batch:
            return [(run.future, CommittedRun(True, earlier.first, earlier.end, earlier.entries, earlier.rows))]
        log = self._writable()
        first, rows_before = Position(log.ledger_id, log.written), self._stamp.row_end
        log.make_room(run.size)
        for at in range(0, len(run.entries), _RUN_SLICE_ENTRIES):
            log.write(self._stamped(run.entries[at : at + _RUN_SLICE_ENTRIES]))
        entries, rows = log.written - first.entry_id, self._stamp.row_end - rows_before
        summary = RunSummary(request.query, request.batch, entries, rows)
        marker = encode_marker(RunId(request.txn_most, request.txn_least), summary, self._context.clock())
        log.write(self._stamped([CheckedEntry(marker, len(marker), 0)]))
        end = Position(log.ledger_id, log.written)
        now = self._context.clock()
        self._make_durable(log, CommittedBatch(request.query, request.batch, first, end, entries, rows, now))
        return [(run.future, CommittedRun(False, first, end, entries, rows))]

    def _writable(self) -> OpenLedger:
        # Asked again before the acknowledgement; here it keeps what a fenced broker is sent out of the taker's log.
        self._context.metadata.require_epoch(self._context.epoch)
        if self._open is not None and self._open.is_full(self._policy):
            self._seal_open()
        if self._open is None:
            self._open = self._list.open_next(self._stamp.row_end)
        return self._open

    def _stamped(self, entries: Sequence[CheckedEntry]) -> list[StampedEntry]:
        timestamp, rows = max(self._stamp.timestamp_ms, self._context.clock()), self._stamp.row_end
        stamped = []
        for entry in entries:
            rows += entry.rows
            stamped.append(StampedEntry(BrokerStamp(timestamp, rows), (entry.data,)))
        self._stamp = BrokerStamp(timestamp, rows)
        return stamped

    def _make_durable(self, log: OpenLedger, batch: CommittedBatch | None = None) -> None:
        log.sync()
        self._context.metadata.require_epoch(self._context.epoch)
        log.acknowledge()
        if batch is not None:
            self._list.remember(batch)
        self._publish()

    def _abandon_open(self) -> None:
        if self._open is None:
            return
        self._stamp = BrokerStamp(self._stamp.timestamp_ms, self._open.index.row_end)
        self._seal_open()
        self._publish()

    def _seal_open(self) -> None:
        """Seal the open ledger at its last acknowledged entry; if not even that is possible, it must be recovered."""
        log, self._open = self._open, None
        assert log is not None  # noqa: S101 — told to the type checker
        try:
            log.forget_unacknowledged()
            self._list.seal(log)
        except (OSError, LedgerError) as error:
            log.let_go()
            if isinstance(error, Fenced):
                raise
            self._unsealed = True
            raise Unavailable(
                f"ledger {log.ledger_id} of {self.name!r} can be neither written nor sealed: {error}",
                hint="Mend the store's disk: the next append recovers what was acknowledged and goes on",
            ) from error

    def _recover(self) -> None:
        """What a new broker would do: the list as the metadata has it, the ledger that was left open recovered."""
        try:
            self._list = LedgerList.recover(self.name, self._context)
        except OSError as error:
            raise Unavailable(f"{self.name!r} cannot be recovered: {error}", hint="Mend the store's disk") from error
        self._unsealed = False
        self._publish()
        self._stamp = BrokerStamp(self._stamp.timestamp_ms, self._snapshot.rows)

    def _publish(self) -> None:
        snapshot = self._list.snapshot(self._open)
        with self._moved:
            self._snapshot = snapshot
            self._moved.notify_all()
