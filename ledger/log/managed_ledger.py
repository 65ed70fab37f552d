"""A managed ledger: one durable log made of ledgers (segments), of which the last may be open.

`append` and `commit_run` check each entry's checksum and count its rows on the caller's thread, and queue it with the
log's writer (`ledger.log.writer`). Readers see a snapshot, which the writer replaces when the committed end has moved.

Invariants: what is queued is whole and sound; a refusal changes nothing; readers see acknowledged entries only.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Corrupt, DataLoss, LedgerError, NotFound, Refused
from pyspark_ledger.ledger.log import changes
from pyspark_ledger.ledger.log.append_queue import CheckedEntry, PendingAppend, PendingChange, PendingRun
from pyspark_ledger.ledger.log.deduplication import (
    AppendSession,
    Deduplication,
    EntrySequence,
    SequenceClaim,
    SequenceRange,
    duplicate_of,
    entry_sequence,
)
from pyspark_ledger.ledger.log.policy import require_properties
from pyspark_ledger.ledger.log.queries import log_description, log_end, prefix, prefix_left, reading_left
from pyspark_ledger.ledger.log.segment_list import LogContext
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.log.staging import OpenedPart
from pyspark_ledger.ledger.log.writer import LogWriter
from pyspark_ledger.ledger.message.entry import STAMP_BYTES_MAX, entry_rows, is_marker, parse_entry
from pyspark_ledger.ledger.message.run_marker import CommittedBatch, RunId, run_id
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from pyspark_ledger.ledger.protocol.actions import LedgerDescription, LedgerEnd, SegmentDescription
from pyspark_ledger.ledger.protocol.commits import CommitRun, CommittedRun
from pyspark_ledger.ledger.protocol.ledgers import TrimReply
from pyspark_ledger.ledger.protocol.reads import LogStatus, ReadProgress, SplitPart
from pyspark_ledger.ledger.segment.reader import SegmentBlock
from pyspark_ledger.ledger.tiering.offloader import LocalSegment

T = TypeVar("T")


class AppendAck(NamedTuple):
    """Some entries of an append, and when they are durable."""

    future: Future[Position]
    entries: int
    size: int


class ManagedLedger:
    """One log of a store. All methods may be called from any thread."""

    def __init__(self, name: str, context: LogContext) -> None:
        self._snapshot = LogSnapshot.of(name, ())
        self._context = context
        self._moved = threading.Condition()
        self._told: Callable[[LogSnapshot, LogSnapshot], None] | None = None  # opening a log does not move it
        self._writer = LogWriter(name, context, self._publish)
        self._told = context.moved

    @property
    def name(self) -> str:
        """The canonical name."""
        return self._writer.list.name

    @property
    def incarnation(self) -> str:
        """Told anew at each creation: a ledger deleted and made again is another one."""
        return self._writer.list.incarnation

    @property
    def snapshot(self) -> LogSnapshot:
        """All committed entries at this moment."""
        return self._snapshot

    @property
    def given_up(self) -> LedgerError | None:
        """Why the log takes nothing any more, None while it does."""
        return self._writer.given_up

    def append(self, entries: Sequence[Buffer]) -> Future[Position]:
        """Append entries with consecutive ids; the future has the first one's position once all are durable."""
        parts = self.append_parts(entries, AppendSession())
        if len(parts) != 1:
            raise Refused(f"an append to {self.name!r} is made of {len(parts)} parts: it holds duplicates")
        return parts[0].future

    def append_parts(self, entries: Sequence[Buffer], session: AppendSession) -> list[AppendAck]:
        """Append entries, each part with consecutive ids. Where the log has de-duplication, a duplicate is a part of
        its own, is not written, and has the position `DUPLICATE`.
        """
        if not entries:
            raise Refused(f"an append to {self.name!r} holds no entry", hint="Send at least one")
        self._writer.refuse_terminated()
        checked = self._checked(entries)
        deduplication = self._writer.list.deduplication
        if deduplication is None:
            item = PendingAppend([entry for entry, _ in checked], sum(entry.size for entry, _ in checked))
            self._writer.put(item, here=True)
            return [AppendAck(item.future, len(checked), item.size)]
        where = f"an append to {self.name!r}"
        sequences = [entry_sequence(metadata, f"entry {i} of {where}") for i, (_, metadata) in enumerate(checked)]
        with deduplication.turn:
            return [
                self._append_span(deduplication, session, span, checked, sequences)
                for span in deduplication.split(session, sequences, where)
            ]

    def _append_span(
        self,
        deduplication: Deduplication,
        session: AppendSession,
        span: SequenceRange,
        checked: list[tuple[CheckedEntry, MessageMetadata]],
        sequences: list[EntrySequence | None],
    ) -> AppendAck:
        entries = [entry for entry, _ in checked[span.start : span.end]]
        size = sum(entry.size for entry in entries)
        if span.duplicate:
            return AppendAck(duplicate_of(span.original), len(entries), size)
        admission = SequenceClaim(session)
        item = PendingAppend(entries, size, admission=admission)
        self._writer.put(item)
        deduplication.admit(sequences[span.start : span.end], admission, item.future)
        return AppendAck(item.future, len(entries), size)

    def last_sequence_id(self, producer: str, timeout_ms: int) -> int | None:
        """The highest sequence id of a producer that is durable, once nothing of it is on its way; -1 for none.

        None for a log without de-duplication.
        """
        deduplication = self._writer.list.deduplication
        return None if deduplication is None else deduplication.last_sequence_id(producer, timeout_ms)

    def require_run(self, request: CommitRun, parts: Sequence[OpenedPart]) -> None:
        """Refuse what `commit_run` would refuse."""
        self._writer.refuse_terminated()
        self._run_entries(request, parts)

    def commit_run(self, request: CommitRun, parts: Sequence[OpenedPart]) -> Future[CommittedRun]:
        """Append the parts as one run, unless this batch of this query is in the log already."""
        entries = self._run_entries(request, parts)
        item = PendingRun(request, entries, sum(part.part.length for part in parts))
        self._writer.put(item)
        return item.future

    def committed_batch(self, query: str) -> CommittedBatch | None:
        """The newest batch of a query that is in the log."""
        return self._writer.list.committed.get(query)

    def end(self, since: Position | None = None) -> LedgerEnd:
        """Where the log ends, and how much lies after `since`."""
        return self._asked(lambda snapshot: log_end(snapshot, self.incarnation, since))

    def wait_past(self, position: Position, timeout_ms: int) -> None:
        """Return when the log's end has passed `position`, when it never will, or after `timeout_ms`."""
        with self._moved:
            self._moved.wait_for(lambda: self._snapshot.end > position or self._snapshot.terminated, timeout_ms / 1000)

    def describe(self, *, lists: bool = True) -> LedgerDescription:
        """The whole of it; with `lists` segment by segment."""
        listed = self._writer.list
        return self._asked(
            lambda snapshot: log_description(
                snapshot, listed.incarnation, listed.properties, listed.terminated, lists=lists
            )
        )

    def blocks(self, range_: PositionRange, max_block_bytes: int) -> list[SegmentBlock]:
        """Where the entries of a range lie."""
        return self._asked(lambda snapshot: snapshot.blocks(range_, max_block_bytes))

    def split(self, range_: PositionRange, target_bytes: int, max_parts: int) -> list[SplitPart]:
        """Cut a range into parts of about `target_bytes`."""
        return self._asked(lambda snapshot: snapshot.split(range_, target_bytes, max_parts))

    def survey(self, reading: ReadProgress, skipped: PositionSet | None = None) -> LogStatus:
        """The log as it stands, and what a reading of it has left beside what is skipped."""
        return self._asked(lambda snapshot: reading_left(snapshot, self.incarnation, reading, self._trimmed, skipped))

    def prefix(
        self, range_: PositionRange, rows: int, size_bytes: int, skipped: PositionSet | None = None
    ) -> SplitPart:
        """The longest beginning of a range with at most so many rows and bytes beside what is skipped."""
        if skipped:
            return self._asked(lambda snapshot: prefix_left(snapshot, range_, skipped, rows, size_bytes))
        return self._asked(lambda snapshot: prefix(snapshot, range_, rows, size_bytes))

    def seek_time(self, timestamp_ms: int) -> Position:
        """The first entry at or after a broker timestamp."""
        return self._asked(lambda snapshot: snapshot.seek_time(timestamp_ms))

    def roll_over_if_due(self) -> bool:
        """Seal the open ledger if its age says so and it holds an entry."""
        due = changes.is_due(self._writer, self._context)
        return due and self._change(lambda: changes.roll_over_if_due(self._writer, self._context))

    def roll_over(self, older_than_ms: int = 0) -> bool:
        """Seal the open ledger, if it holds an entry and is at least so old."""
        return self._change(lambda: changes.roll_over(self._writer, self._context, older_than_ms))

    def may_trim(self) -> bool:
        """Whether `trim` would find anything, chunked messages aside."""
        return changes.may_trim(self._snapshot, self._writer, self._context)

    def trim(self) -> TrimReply:
        """Delete what the policy lets go and no durable cursor needs: one change of the record, then the files."""
        trimmed = self._change(lambda: changes.trim(self._writer, self._context))
        self._context.unlisted([*trimmed.ledgers, *trimmed.local])
        return trimmed

    def prepare_offload(self, ledger_id: int, attempt: OffloadAttempt) -> LocalSegment | None:
        """State a new attempt to offload a sealed ledger; None when it is offloaded. NotFound when it is gone."""
        return self._change(lambda: changes.prepare_offload(self._writer, ledger_id, attempt))

    def complete_offload(self, ledger_id: int, attempt: uuid.UUID) -> None:
        """State that an attempt is complete; Refused when it is not the newest any more."""
        self._change(lambda: changes.complete_offload(self._writer, ledger_id, attempt))

    def terminate(self) -> Position:
        """End the log for good; the position of its last entry, `(-1, -1)` when it never had one. May be repeated."""
        return self._change(lambda: changes.terminate(self._writer))

    def change_properties(self, values: Mapping[str, str], remove: Collection[str]) -> dict[str, str]:
        """Set and remove properties; answers all there are then."""
        require_properties(values, remove, self.name)
        return self._change(lambda: changes.change_properties(self._writer, values, remove))

    def refresh_policy(self) -> None:
        """Go by the policy as the metadata states it now."""
        with self._moved:
            self._writer.list.refresh_policy()

    def close(self) -> None:
        """Settle what was queued and seal the open ledger, where that can be done. May be repeated; raises nothing."""
        self._writer.close()

    def _checked(self, entries: Sequence[Buffer]) -> list[tuple[CheckedEntry, MessageMetadata]]:
        checked, where, most = [], f"of an append to {self.name!r}", self._entry_bytes_max
        for i, entry in enumerate(entries):
            stamp, metadata, _ = parse_entry(entry, f"entry {i} {where}")
            if run_id(metadata) is not None or is_marker(metadata):
                raise Refused(
                    f"entry {i} {where} carries a transaction or marker field",
                    hint="Commit a run instead: such an entry alone would be taken for an unfinished run",
                )
            if stamp is not None:
                raise Refused(
                    f"entry {i} {where} carries broker metadata already",
                    hint="Send the entry as the producer made it; the broker stamps it",
                )
            checked.append((self._sized(entry, entry_rows(metadata), most), metadata))
        return checked

    def _run_entries(self, request: CommitRun, parts: Sequence[OpenedPart]) -> list[CheckedEntry]:
        wanted, most = RunId(request.txn_most, request.txn_least), self._entry_bytes_max
        return [
            self._checked_of_run(entry, f"{part.part.part} entry {ordinal}", wanted, most)
            for part in parts
            for ordinal, entry in enumerate(part.entries)
        ]

    def _checked_of_run(self, entry: Buffer, where: str, wanted: RunId, most: int) -> CheckedEntry:
        metadata = parse_entry(entry, where).metadata
        found = run_id(metadata)
        if found != wanted:
            raise Refused(f"{where} belongs to run {found}, the commit is of run {wanted}")
        return self._sized(entry, entry_rows(metadata), most)

    @property
    def _entry_bytes_max(self) -> int:
        return self._writer.list.policy.entry_bytes_max - STAMP_BYTES_MAX

    def _sized(self, entry: Buffer, rows: int, most: int) -> CheckedEntry:
        size = memoryview(entry).nbytes
        if size > most:
            raise Refused(
                f"an entry of {size} bytes for {self.name!r} exceeds the {most} bytes that a block of "
                f"{self._writer.list.policy.block_bytes} bytes holds",
                hint="Send smaller entries, or create the ledger with larger blocks",
            )
        return CheckedEntry(entry, size, rows)

    def _asked(self, question: Callable[[LogSnapshot], T]) -> T:
        """Ask the snapshot; once more when the files it looked at were trimmed meanwhile."""
        while True:
            snapshot = self._snapshot
            try:
                return question(snapshot)
            except (OSError, NotFound, Corrupt, DataLoss):
                if self._snapshot.trimmed == snapshot.trimmed:
                    raise

    def _change(self, change: Callable[[], T]) -> T:
        item = PendingChange(change)
        self._writer.put(item)
        done: T = item.future.result()
        return done

    def _trimmed(self) -> list[SegmentDescription]:
        return self._context.metadata.segments.trimmed(self.name)

    def _publish(self, snapshot: LogSnapshot) -> None:
        with self._moved:
            before, self._snapshot = self._snapshot, snapshot
            self._moved.notify_all()
        if self._told is not None:
            self._told(before, snapshot)
