"""Managed ledger: one durable log made of segments, which are its files. Only the last segment may be open for appends.

`append` and `commit_run` run on the caller's thread. They verify each entry's checksum, count its rows and queue the
entry (`ledger.log.append_queue`). Readers use a snapshot. The writer (`ledger.log.writer`) publishes a new snapshot
after each acknowledgement of appends.

A *run* is the output of one batch of a Spark query: entries that become visible together. A *staged part* is a file
with the entries of one Spark task. The commit of a batch appends its staged parts to the log as a run. With
de-duplication, `append_parts` splits an append into new entries and duplicates, which are acknowledged separately.

A *change* is a rollover, a trim, a step of an offload, the termination or a change of properties. A *rollover* seals
the open segment, and the next append creates a new one. A *trim* deletes segments that the policies of retention do not
keep. An *attempt* is one upload of a sealed segment to object storage. The *index objects* of a direct segment, whose
data object a Spark task has put into the bucket, state where its entries are.

Invariants
- Each change runs in the write stage (`ledger.log.append_queue`) while no append waits for its sync. Exception: the
  changes for offloads do not wait for syncs, because they concern sealed segments only.
- Each change is durable in the ledger's metadata record before readers see the change. A repeated change has no further
  effect.
- Every queued entry is complete and verified.
- A refused call changes nothing.
- Readers see acknowledged entries only.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, LedgerError, NotFound, Refused
from pyspark_ledger.ledger.log.append_queue import AppendQueue
from pyspark_ledger.ledger.log.context import LogContext
from pyspark_ledger.ledger.log.deduplication import (
    AppendSession,
    Deduplication,
    EntrySequence,
    SequenceClaim,
    SequenceRange,
    duplicate_of,
    entry_sequence,
)
from pyspark_ledger.ledger.log.pending import CheckedEntry, PendingAppend, PendingChange, PendingRun
from pyspark_ledger.ledger.log.policy import LedgerPolicy, require_properties
from pyspark_ledger.ledger.log.remaining import prefix_left, reading_left
from pyspark_ledger.ledger.log.retention import RetainedSegment, expendable, local_expendable
from pyspark_ledger.ledger.log.segments.log_segments import LogSegment
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.log.staging.direct_run import DirectRun
from pyspark_ledger.ledger.log.staging.opened_part import OpenedPart
from pyspark_ledger.ledger.log.writer import LogWriter
from pyspark_ledger.ledger.message.entry import STAMP_BYTES_MAX, entry_rows, is_marker, parse_entry
from pyspark_ledger.ledger.message.run_marker import (
    CommittedBatch,
    RunId,
    RunOrigin,
    RunSummary,
    closes_run,
    marker_summary,
    run_id,
)
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.metrics.publish_counter import PublishCounter
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from pyspark_ledger.ledger.protocol.actions import LedgerDescription, LedgerEnd, SegmentDescription
from pyspark_ledger.ledger.protocol.commits import CommitRun, CommittedRun
from pyspark_ledger.ledger.protocol.ledgers import TrimReply
from pyspark_ledger.ledger.protocol.metrics import AppendCounts, LatencyHistogram
from pyspark_ledger.ledger.protocol.reads import LogStatus, ReadLimits, ReadProgress, SplitPart
from pyspark_ledger.ledger.segment.format import entry_bytes_max
from pyspark_ledger.ledger.segment.reader import SegmentBlock
from pyspark_ledger.ledger.tiering.offloader import LocalSegment

T = TypeVar("T")
P = ParamSpec("P")
_log = logging.getLogger(__name__)


class AppendAck(NamedTuple):
    """Part of an append with its own acknowledgement: its future, its number of entries, and their size in bytes."""

    future: Future[Position]
    entries: int
    size: int


class ManagedLedger:
    """Log of a store. All methods may be called from any thread."""

    def __init__(self, name: str, context: LogContext) -> None:
        self._snapshot = LogSnapshot.of(name, ())
        self._context = context
        self._publishing = threading.Lock()
        self.trimming = threading.Lock()
        """Held during a trim. A thread that holds it can check that a position is not trimmed, and then store it."""
        # Set to a function after the writer has published the first snapshot, which is not a change.
        self._on_moved: Callable[[LogSnapshot, LogSnapshot], None] | None = None
        self._writer = LogWriter(name, context, self._publish)
        self._queue = AppendQueue(context.executor, context.sync_pool, self._writer)
        self._on_moved = context.moved
        self.trimmed = (0, 0)
        """The number of segments and bytes that trims have deleted since the log was opened."""
        self.published = PublishCounter()

    @property
    def name(self) -> str:
        """The canonical name of the log."""
        return self._writer.list.name

    @property
    def incarnation(self) -> str:
        """The id of this creation of the ledger. A ledger that is deleted and created again gets a new id."""
        return self._writer.list.incarnation

    @property
    def snapshot(self) -> LogSnapshot:
        """The current snapshot of all committed entries."""
        return self._snapshot

    @property
    def given_up(self) -> LedgerError | None:
        """The error that closed the log for writes, or None while the log accepts appends."""
        return self._writer.given_up

    @property
    def appended(self) -> AppendCounts:
        """The counts of the appends that were acknowledged since the log was opened."""
        return self._writer.appended.state(self._snapshot.rows)

    @property
    def append_latency(self) -> LatencyHistogram:
        """The times from an append to its acknowledgement since the log was opened.

        Appends are acknowledged in groups. For each group, only the time of its oldest append is counted.
        """
        return self._writer.append_latencies.state()

    @property
    def sync_latency(self) -> LatencyHistogram:
        """The times of syncs since the log was opened."""
        return self._writer.sync_latencies.state()

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the log."""
        return self._writer.list.properties

    def append(self, entries: Sequence[Buffer]) -> Future[Position]:
        """Append entries with consecutive ids. The future returns the first entry's position after all are durable.

        Raises Corrupt or Refused if an entry is invalid, and Refused if an entry is a duplicate.
        """
        parts = self.append_parts(entries, AppendSession())
        if len(parts) != 1:
            raise Refused(
                f"an append to {self.name!r} has new entries and duplicates: it has {len(parts)} parts, expected 1"
            )
        return parts[0].future

    def append_parts(self, entries: Sequence[Buffer], session: AppendSession) -> list[AppendAck]:
        """Append entries in one or more parts, each with consecutive ids.

        With de-duplication, a duplicate is a separate part. It is not written and has the position `DUPLICATE`.
        Raises Corrupt or Refused if an entry is invalid, and Terminated if the log was terminated.
        """
        if not entries:
            raise Refused(f"an append to {self.name!r} has no entry", hint="Send at least one entry")
        self._writer.refuse_terminated()
        self._context.durability.wait_for_room()
        checked = self._check(entries)
        deduplication = self._writer.list.deduplication
        if deduplication is None:
            item = PendingAppend([entry for entry, _ in checked], sum(entry.size for entry, _ in checked))
            self._queue.put(item, here=True)
            return [AppendAck(item.future, len(checked), item.size)]
        where = f"an append to {self.name!r}"
        sequences = [entry_sequence(metadata, f"entry {i} of {where}") for i, (_, metadata) in enumerate(checked)]
        with deduplication.lock:
            return [
                self._append_range(deduplication, session, sequence_range, checked, sequences)
                for sequence_range in deduplication.split(session, sequences, where)
            ]

    def _append_range(
        self,
        deduplication: Deduplication,
        session: AppendSession,
        sequence_range: SequenceRange,
        checked: list[tuple[CheckedEntry, MessageMetadata]],
        sequences: list[EntrySequence | None],
    ) -> AppendAck:
        entries = [entry for entry, _ in checked[sequence_range.start : sequence_range.end]]
        size = sum(entry.size for entry in entries)
        if sequence_range.duplicate:
            deduplication.record_chunks(session, sequences[sequence_range.start : sequence_range.end])
            return AppendAck(duplicate_of(sequence_range.original), len(entries), size)
        claim = SequenceClaim(session)
        item = PendingAppend(entries, size, claim=claim)
        self._queue.put(item)
        deduplication.admit(sequences[sequence_range.start : sequence_range.end], claim, item.future)
        return AppendAck(item.future, len(entries), size)

    def last_sequence_id(self, producer: str, timeout_ms: int) -> int | None:
        """Return the highest durable sequence id of a producer, or -1 for an unknown producer.

        Waits up to `timeout_ms` until no entry of the producer is waiting for its acknowledgement. Returns None for a
        log without de-duplication.
        """
        deduplication = self._writer.list.deduplication
        return None if deduplication is None else deduplication.last_sequence_id(producer, timeout_ms)

    def require_run(self, request: CommitRun, parts: Sequence[OpenedPart]) -> None:
        """Raise the error that `commit_run` would raise for these parts. Changes nothing."""
        self._writer.refuse_terminated()
        self._run_entries(request, parts)

    def commit_run(
        self,
        request: CommitRun,
        parts: Sequence[OpenedPart] | DirectRun | LedgerError,
        decided: RunOrigin | None = None,
    ) -> Future[CommittedRun]:
        """Append the parts of a batch as one run. If the log contains this batch already, append nothing.

        `parts` are opened files, data objects in the bucket, or the error that prevents the use of the parts. If the
        batch is new, the future raises this error. The same if an entry belongs to another run (Refused), or the log
        was terminated (Terminated). `decided` is the origin of a batch that was judged before.
        """
        if isinstance(parts, LedgerError):
            item = PendingRun(request, (), 0, fault=parts, decided=decided)
        elif isinstance(parts, DirectRun):
            item = PendingRun(request, (), parts.size, direct=parts, decided=decided)
        else:
            self._context.durability.wait_for_room()
            try:
                entries = self._run_entries(request, parts)
            except LedgerError as fault:
                return self.commit_run(request, fault, decided)
            block_bytes = self._writer.list.policy.block_bytes
            promoted = all(part.promotable and part.part.block_bytes == block_bytes for part in parts)
            size = sum(part.part.length for part in parts)
            item = PendingRun(request, entries, size, parts if promoted else (), decided=decided)
        self._queue.put(item)
        return item.future

    @property
    def block_bytes(self) -> int:
        """Size of a block of a new segment."""
        return self._writer.list.policy.block_bytes

    @property
    def highest_id(self) -> int:
        """Highest segment id that the log ever had, as far as this broker knows."""
        return self._writer.list.highest_id

    def committed_batch(self, query: str) -> CommittedBatch | None:
        """Return the newest committed batch of a query, or None before its first commit."""
        return self._writer.list.committed.get(query)

    def committed_batches(self) -> list[CommittedBatch]:
        """Return the newest committed batches of all queries."""
        return self._writer.list.committed.all()

    def end(self, since: Position | None = None) -> LedgerEnd:
        """Return the end of the log, and the numbers of entries, rows and bytes after `since`."""
        return self._query(lambda snapshot: snapshot.end_since(since))

    def describe(self, *, lists: bool = True) -> LedgerDescription:
        """Return the description of the log. With `lists` the description includes every segment."""
        listed = self._writer.list
        return self._query(lambda snapshot: snapshot.description(listed.properties, listed.terminated, lists=lists))

    def blocks(self, range_: PositionRange, max_block_bytes: int) -> list[SegmentBlock]:
        """Return the blocks with the entries of a range. A block is a part of a segment file with whole entries."""
        return self._query(lambda snapshot: snapshot.blocks(range_, max_block_bytes))

    def split(self, range_: PositionRange, target_bytes: int, max_parts: int) -> list[SplitPart]:
        """Split a range into at most `max_parts` parts of about `target_bytes`."""
        return self._query(lambda snapshot: snapshot.split(range_, target_bytes, max_parts))

    def limited(self, range_: PositionRange, limits: ReadLimits) -> SplitPart:
        """Return the prefix of a range that a read with limits covers."""
        return self._query(lambda snapshot: snapshot.limited(range_, limits))

    def status(self, reading: ReadProgress, skipped: PositionSet | None = None) -> LogStatus:
        """Return the state of the log, and how much a reader has not read. `reading` is the progress of the reader.

        Positions in `skipped`, which the reader has acknowledged, do not count. Raises DataLoss if the log never had
        the position of `reading`.
        """
        return self._query(lambda snapshot: reading_left(snapshot, reading, self._trimmed, skipped))

    def prefix(
        self, range_: PositionRange, rows: int, size_bytes: int, skipped: PositionSet | None = None
    ) -> SplitPart:
        """Return the longest prefix of a range with at most `rows` rows and `size_bytes` bytes.

        Rows of `skipped` positions do not count.
        """
        if skipped:
            return self._query(lambda snapshot: prefix_left(snapshot, range_, skipped, rows, size_bytes))
        return self._query(lambda snapshot: snapshot.prefix(range_, rows, size_bytes))

    def seek_time(self, timestamp_ms: int) -> Position:
        """Return the position of the first entry whose broker timestamp is at or after `timestamp_ms`."""
        return self._query(lambda snapshot: snapshot.seek_time(timestamp_ms))

    def roll_over_if_due(self) -> bool:
        """Seal the open segment if it has an entry and has reached its maximum age. Return whether it was sealed."""
        return self._is_due() and self._change(lambda: self._is_due() and self._sealed())

    def _is_due(self) -> bool:
        log = self._writer.opened
        return log is not None and bool(log.index.count) and self._policy.is_due(log.ledger_id, log.age(self._now()))

    def roll_over(self, older_than_ms: int = 0) -> bool:
        """Seal the open segment if it has an entry and is at least `older_than_ms` old.

        Return whether it was sealed.
        """
        return self._change(self._roll_over, older_than_ms)

    def _roll_over(self, older_than_ms: int) -> bool:
        log = self._writer.opened
        return log is not None and log.index.count > 0 and log.age(self._now()) >= older_than_ms and self._sealed()

    def _sealed(self) -> bool:
        self._writer.seal()
        return True

    def may_trim(self) -> bool:
        """Return whether `trim` would delete a segment, or the local copy of an offloaded segment.

        Ignores unfinished chunked messages, which can still prevent the deletion.
        """
        slowest = self._context.metadata.cursors.slowest(self.name)
        return bool(self._expendable(self._snapshot, slowest) or self._expendable_copies())

    def is_overdue(self) -> bool:
        """Return whether retention would delete a segment if no cursor needed it."""
        return bool(self._expendable(self._snapshot, None))

    def _expendable(self, snapshot: LogSnapshot, slowest: Position | None) -> list[RetainedSegment]:
        segments = snapshot.segments
        size_bytes = segments.size_bytes(0, len(segments))
        return expendable(map(_retained, segments), size_bytes, slowest, self._policy, self._now())

    def _expendable_copies(self) -> list[int]:
        return local_expendable(map(_retained, self._writer.list.local_copies()), self._policy, self._now())

    def trim(self) -> TrimReply:
        """Delete the segments that retention does not keep and no durable cursor needs.

        The metadata record is changed before the files are deleted.
        """
        with self.trimming, self._context.trim_latencies.timed():
            trimmed = self._change(self._trim)
        self.trimmed = (self.trimmed[0] + len(trimmed.ledgers), self.trimmed[1] + trimmed.size_bytes)
        self._context.unlisted([*trimmed.ledgers, *trimmed.local])
        return trimmed

    def _trim(self) -> TrimReply:
        """Remove from the list all segments that retention does not keep. The caller deletes their files.

        Also removes the local copies of segments that were offloaded longer ago than the policy's deletion lag.
        """
        writer, context = self._writer, self._context
        snapshot = writer.list.snapshot(writer.opened)
        # Keep all chunks of an unfinished message, and of a message of which the slowest cursor has read only some.
        needed = context.metadata.cursors.slowest(snapshot.name)
        unread = context.chunks.floor(snapshot, snapshot.end if needed is None else needed, self._now())
        trimmed = self._expendable(snapshot, unread if needed is not None or unread < snapshot.end else None)
        ids = [segment.ledger_id for segment in trimmed]
        if ids:
            writer.list.trim(ids)
            writer.publish(writer.opened)
            _log.info("%s: segments %s are trimmed", snapshot.name, ids)
        local = self._delete_local(self._expendable_copies())
        start = writer.list.snapshot(writer.opened).start
        entries, size = sum(segment.entries for segment in trimmed), sum(segment.size_bytes for segment in trimmed)
        return TrimReply(snapshot.name, ids, entries, size, start, local)

    def delete_local(self, ledger_ids: Collection[int]) -> None:
        """Delete the local copies of offloaded segments, before the deletion lag of the policy."""
        self._context.unlisted(self._change_sealed(self._delete_local, ledger_ids))

    def _delete_local(self, ledger_ids: Collection[int]) -> list[int]:
        """Record that local copies of offloaded segments are deleted. The caller then deletes the files.

        Return the ids of the segments that had a copy.
        """
        writer = self._writer
        local = [segment.ledger_id for segment in writer.list.local_copies() if segment.ledger_id in ledger_ids]
        if local:
            writer.list.delete_local(local)
            writer.publish(writer.opened)
            _log.info("%s: the local copies of segments %s are deleted", self.name, local)
        return local

    def prepare_offload(self, ledger_id: int, attempt: OffloadAttempt) -> LocalSegment | None:
        """Record a new attempt to offload a sealed segment to object storage, and return the segment to copy.

        Returns None if the segment is offloaded already. Raises NotFound if the log has no such segment.
        """
        return self._change_sealed(lambda: self._writer.list.prepare_offload(ledger_id, attempt))

    def complete_offload(self, ledger_id: int, attempt: uuid.UUID) -> None:
        """Record that an offload attempt is complete. Raises Refused if a newer attempt was recorded."""
        self._change_sealed(self._complete_offload, ledger_id, attempt)
        self._context.due(self.name, self._now())

    def _complete_offload(self, ledger_id: int, attempt: uuid.UUID) -> None:
        self._writer.list.complete_offload(ledger_id, attempt)
        self._writer.publish(self._writer.opened)

    @property
    def lacks_indexes(self) -> bool:
        """Whether a direct segment lacks its index objects in the bucket."""
        return self._writer.list.lacks_indexes

    def lacking_indexes(self) -> list[tuple[LocalSegment, OffloadAttempt]]:
        """Return the direct segments whose index objects must be put into the bucket now, with their attempts."""
        return self._change_sealed(lambda: self._writer.list.lacking_indexes())  # noqa: PLW0108 — `list` may change

    def require_indexes(self, ledger_id: int) -> None:
        """Raise Unavailable if a direct segment before segment `ledger_id` lacks its index objects in the bucket."""
        self._writer.list.require_indexes(ledger_id)

    def complete_indexes(self, ledger_ids: Collection[int]) -> None:
        """Record that the index objects of direct segments are in the bucket."""
        self._change_sealed(lambda: self._writer.list.complete_indexes(ledger_ids))

    def terminate(self) -> Position:
        """Close the log for appends for good, and return the position of its last entry. May be called again.

        Returns `(-1, -1)` if the log never had an entry.
        """
        return self._change(self._terminate)

    def _terminate(self) -> Position:
        writer = self._writer
        last = writer.list.terminated
        if last is None:
            writer.seal()
            end = writer.list.snapshot(None).end
            last = Position(end.ledger_id, end.entry_id - 1)
            writer.list.terminate(last)
            writer.publish(None)
        return last

    def change_properties(self, values: Mapping[str, str], remove: Collection[str]) -> dict[str, str]:
        """Set and remove properties, and return all properties of the log. Raises Refused for reserved names."""
        require_properties(values, remove, self.name)
        changed = self._change(self._change_properties, values, remove)
        self._context.due(self.name, self._now())
        return changed

    def _change_properties(self, values: Mapping[str, str], remove: Collection[str]) -> dict[str, str]:
        listed = self._writer.list
        remaining = {name: value for name, value in listed.properties.items() if name not in remove}
        listed.set_properties({**remaining, **values})
        listed.refresh_policy()
        return listed.properties

    def refresh_policy(self) -> None:
        """Read the policy again from the metadata."""
        with self._publishing:
            self._writer.list.refresh_policy()

    def close(self) -> None:
        """Complete all queued items and seal the open segment if possible. May be called again. Never raises."""
        self._queue.close(f"{self.name!r} is closed")
        self._writer.close()

    def _check(self, entries: Sequence[Buffer]) -> list[tuple[CheckedEntry, MessageMetadata]]:
        checked, where, most = [], f"of an append to {self.name!r}", self._entry_bytes_max
        for i, entry in enumerate(entries):
            stamp, metadata, _ = parse_entry(entry, f"entry {i} {where}")
            if run_id(metadata) is not None or is_marker(metadata):
                raise Refused(
                    f"entry {i} {where} has a transaction or marker field",
                    hint="Commit a run instead. Without a run, recovery would treat the entry as an unfinished run",
                )
            if stamp is not None:
                raise Refused(
                    f"entry {i} {where} has broker metadata already",
                    hint="Send the entry without broker metadata; the broker adds them",
                )
            checked.append((self._check_size(entry, entry_rows(metadata), most), metadata))
        return checked

    def _run_entries(self, request: CommitRun, parts: Sequence[OpenedPart]) -> list[CheckedEntry]:
        run, most = RunId(request.txn_most, request.txn_least), self._entry_bytes_max
        for part in parts:
            _require_marker(request, part)
        return [
            self._check_run_entry(entry, f"{part.part.part} entry {ordinal}", run, most)
            for part in parts
            for ordinal, entry in enumerate(part.entries)
        ]

    def _check_run_entry(self, entry: Buffer, where: str, run: RunId, most: int) -> CheckedEntry:
        metadata = parse_entry(entry, where).metadata
        found = run_id(metadata)
        if found != run:
            raise Refused(f"{where} belongs to run {found}, the commit is for run {run}")
        return self._check_size(entry, entry_rows(metadata), most)

    @property
    def _entry_bytes_max(self) -> int:
        return entry_bytes_max(self.block_bytes) - STAMP_BYTES_MAX

    def _check_size(self, entry: Buffer, rows: int, most: int) -> CheckedEntry:
        size = memoryview(entry).nbytes
        if size > most:
            raise Refused(
                f"an entry for {self.name!r} has {size} bytes, at most {most} fit into a block of "
                f"{self._writer.list.policy.block_bytes} bytes",
                hint="Send smaller entries, or create the ledger with larger blocks",
            )
        return CheckedEntry(entry, size, rows)

    def _query(self, query: Callable[[LogSnapshot], T]) -> T:
        """Run a query on the current snapshot. If it fails and the log was trimmed in the meantime, run it again."""
        while True:
            snapshot = self._snapshot
            try:
                return query(snapshot)
            except (OSError, NotFound, Corrupt, DataLoss):
                if self._snapshot.trimmed == snapshot.trimmed:
                    raise

    def _change(self, change: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Make a change of the log in the write stage, and return its result."""
        return self._queued_change(partial(change, *args, **named), settled=True)

    def _change_sealed(self, change: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Make a change that concerns only sealed segments. It does not wait for syncs."""
        return self._queued_change(partial(change, *args, **named), settled=False)

    def _queued_change(self, change: Callable[[], T], *, settled: bool) -> T:
        item = PendingChange(change, settled)
        self._queue.put(item)
        result: T = item.future.result()
        return result

    @property
    def _policy(self) -> LedgerPolicy:
        return self._writer.list.policy

    def _now(self) -> int:
        return self._context.clock()

    def _trimmed(self) -> list[SegmentDescription]:
        return self._context.metadata.segments.trimmed(self.name)

    def _publish(self, snapshot: LogSnapshot) -> None:
        with self._publishing:
            before, self._snapshot = self._snapshot, snapshot
        if self._on_moved is not None:
            self._on_moved(before, snapshot)


def _require_marker(request: CommitRun, part: OpenedPart) -> None:
    """Raise Refused if a staged part ends with the marker of another run. A part without a marker is accepted."""
    if part.marker is None:
        return
    where = f"the last entry of {part.part.part}"
    metadata = parse_entry(part.marker, where).metadata
    found = marker_summary(metadata, where) if closes_run(metadata) else None
    expected = RunSummary(request.query, request.batch, part.part.entries, part.part.rows)
    if found != expected or run_id(metadata) != RunId(request.txn_most, request.txn_least):
        raise Refused(f"{where} is {found} of run {run_id(metadata)}, expected the marker {expected}")


def _retained(segment: LogSegment) -> RetainedSegment:
    attempt = None if segment.offloaded is None else segment.offloaded.attempt
    return RetainedSegment(segment.ledger_id, segment.entries, segment.size_bytes, segment.close_ms, attempt)
