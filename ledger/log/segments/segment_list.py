"""Segment list of a managed ledger: the metadata record, and the segment files that it names.

Invariants
- A file exists before the list names it. The list names a segment before the segment's first entry is written.
  Exception: a staged part, a file with the rows of a Spark task, is listed as a complete segment.
- Only the last segment of the list can be open (close time 0). If a segment is open when a broker starts, an earlier
  broker ended without a seal. The new broker recovers and seals this segment, and the first append creates a new
  segment. Exception: in a store in a bucket, the new broker appends to the open segment.
- Each start of a broker raises the store's epoch (a number in the metadata), which fences the previous broker. A fenced
  broker may continue to write until it reads the epoch. No reader may see these writes. If the fenced broker still has
  the segment's file open, the new broker replaces the file by a copy, and recovers the copy.
- A seal writes entries, sizes, rows and the newest committed batches to the metadata in one transaction. An empty
  segment is removed from the list instead.
- An *offload* copies a sealed segment to object storage. An *attempt* is one upload of a segment. A *direct segment* is
  a segment whose data object a Spark task has put, and which has no local file. Its *index objects* state where the
  entries are in the data object.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import NotFound, Refused, Unavailable
from pyspark_ledger.ledger.log.context import LogContext
from pyspark_ledger.ledger.log.deduplication import Deduplication, highest_of, sequences_in
from pyspark_ledger.ledger.log.policy import DURABILITY, LedgerPolicy
from pyspark_ledger.ledger.log.retention import TrimMark
from pyspark_ledger.ledger.log.segments.committed_batches import CommittedBatches, recovered_batches
from pyspark_ledger.ledger.log.segments.log_segments import LogSegment, LogSegments
from pyspark_ledger.ledger.log.segments.segment_rows import local_segment, promoted_record, sealed_record, with_attempt
from pyspark_ledger.ledger.log.snapshot import LogSnapshot
from pyspark_ledger.ledger.log.staging.promotion import PromotedSegment
from pyspark_ledger.ledger.message.run_marker import CommittedBatch, is_written
from pyspark_ledger.ledger.metadata.offload_records import OffloadAttempt
from pyspark_ledger.ledger.metadata.records import KnownSequence, LedgerRecord
from pyspark_ledger.ledger.metadata.segment_records import LedgerInfo, SegmentRecord, attempts_of
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from pyspark_ledger.ledger.protocol.commits import CommittedRun
from pyspark_ledger.ledger.protocol.ledgers import DEDUPLICATION_ENABLED
from pyspark_ledger.ledger.segment.continuation import continue_segment
from pyspark_ledger.ledger.segment.format import HEADER_BYTES
from pyspark_ledger.ledger.segment.index import EntryIndex
from pyspark_ledger.ledger.segment.recovery import RecoveredSegment, recover_segment, seal_recovered
from pyspark_ledger.ledger.segment.writer import SealedSegment, SegmentWriter, data_path, index_path
from pyspark_ledger.ledger.tiering.direct_segment import DirectSegment
from pyspark_ledger.ledger.tiering.offloaded_segment import OffloadedSegment
from pyspark_ledger.ledger.tiering.offloader import LocalSegment
from pyspark_ledger.ledger.tiering.sealed_index import SealedIndex, entry_traits

_log = logging.getLogger(__name__)


class SegmentList:
    """Sealed segments of one managed ledger, and the metadata record that lists all segments."""

    def __init__(self, record: LedgerRecord, context: LogContext, deduplication: Deduplication | None = None) -> None:
        self._record = record
        self._context = context
        self.name = record.name
        self.incarnation = record.incarnation
        self.refresh_policy()
        self.trimmed = TrimMark.of(record.info, f"the record of {record.name!r}")
        self.deduplication = deduplication
        if deduplication is None and self.properties.get(DEDUPLICATION_ENABLED) == "true":
            self.deduplication = Deduplication(context.metadata.sequences(record.name), context.clock)
        self.committed = CommittedBatches(context.metadata.committed_batches(record.name))
        rows = [(row, row.listed()) for row in context.metadata.segments.of(record.name)]
        self.left_open = [row for row, listed in rows if not listed.timestamp]
        self._sealed = LogSegments.of(self._sealed_segment(row, listed) for row, listed in rows if listed.timestamp)
        self._copied = {segment.ledger_id for segment in self._sealed if segment.is_copied}
        attempts = attempts_of(row for row, _ in rows)
        self._without_indexes = [ledger_id for ledger_id, attempt in attempts if attempt.lacks_indexes]
        self.highest_id = max((row.ledger_id for row, _ in rows), default=self.trimmed.position.ledger_id)
        """Highest segment id that the log ever had, as far as this broker knows."""

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the record."""
        return {pair.key: pair.value for pair in self._record.info.properties}

    @property
    def _is_synced(self) -> bool:
        """Whether entries are synced before they are acknowledged. A sealed segment is always synced."""
        return self.properties.get(DURABILITY) != "os" or self._context.durability.in_bucket

    @property
    def terminated(self) -> Position | None:
        """The position of the last entry of a terminated log, or None. A terminated log accepts no more appends."""
        if not self._record.info.HasField("terminatedPosition"):
            return None
        last = self._record.info.terminatedPosition
        return Position(last.ledgerId, last.entryId)

    def refresh_policy(self) -> None:
        """Read the policy again from the metadata."""
        context = self._context
        stated = context.metadata.policies.of_ledger(self.name)
        self.policy = LedgerPolicy.of(self._record.info, *stated, context.settings)

    @classmethod
    def open(cls, name: str, context: LogContext) -> tuple[SegmentList, SegmentWriter | None]:
        """Read the list from the metadata at the first use of a log.

        In a store in a bucket, also return the open segment, to which later appends are added. In a local store,
        recover and seal the open segment instead, and return None.
        """
        ledgers = cls(context.metadata.ledger(name), context)
        if context.durability.in_bucket:
            return ledgers, ledgers._continue_left_open()
        ledgers._seal_left_open()
        return ledgers, None

    @classmethod
    def recover(cls, name: str, context: LogContext, deduplication: Deduplication | None = None) -> SegmentList:
        """Read the list from the metadata. Recover and seal a segment that an earlier broker left open.

        `deduplication` is passed if this broker reads the list again after an error. Then the sequence ids in memory
        are kept.
        """
        ledgers = cls(context.metadata.ledger(name), context, deduplication)
        ledgers._seal_left_open()
        return ledgers

    def open_next(self, first_row: int) -> SegmentWriter:
        """Create a segment at the end of the list. On return, the segment is durable and is in the metadata."""
        context, policy = self._context, self.policy
        new_id, self._record = self._record.new_id, replace(self._record, new_id=None)  # an id is used at most once
        ledger_id = self.highest_id = context.metadata.allocate_ledger_id() if new_id is None else new_id
        log = SegmentWriter.create(
            context.directory,
            ledger_id,
            store_id=context.store_id,
            block_bytes=policy.block_bytes,
            first_row=first_row,
            sync=self._is_synced,
            durability=context.durability,
            owner=self.incarnation,
        )
        now = context.clock()
        log.set_created(now)
        listed = LedgerInfo(ledgerId=ledger_id).SerializeToString()
        try:
            self._save(put=[SegmentRecord(ledger_id, policy.block_bytes, first_row, 0, 0, now, info=listed)])
        except BaseException:
            # It is unknown whether the segment is in the metadata, so its file stays. If the segment is not there, the
            # next start deletes the file.
            with suppress(OSError):
                log.forget_unacknowledged()
            log.close()
            raise
        for due_ms in policy.due_times(ledger_id, now):
            context.due(self.name, due_ms)
        return log

    def seal(self, log: SegmentWriter, *, rolls_over: bool = False) -> None:
        """Seal the file. Then record its size and the committed batches. `rolls_over` also allocates the next id."""
        sealed = log.seal()
        self._close(log.ledger_id, sealed, log.index, log.created_ms, rolls_over=rolls_over)

    def add(self, segments: Sequence[PromotedSegment], batch: CommittedBatch) -> None:
        """List complete segments at the end, together with their batch, in one transaction. No segment is open."""
        now = max(self._context.clock(), 1)
        self.highest_id = segments[-1].index.ledger_id
        rows = [promoted_record(segment, now) for segment in segments]
        self.committed.save_next(batch)
        self._save(put=rows)
        self.committed.add(batch)
        for row, segment in zip(rows, segments, strict=True):
            self._sealed = self._sealed.sealed(self._sealed_segment(row, row.listed(), segment.index))
            if segment.attempt is not None and segment.attempt.lacks_indexes:
                self._without_indexes.append(row.ledger_id)
        self._context.sealed(self.name)

    def remember(self, batch: CommittedBatch) -> None:
        """Record a batch in memory after its commit. The next seal saves the batch in the metadata."""
        self.committed.add(batch)
        self.committed.save_next(batch)

    def record(self, batch: CommittedBatch) -> CommittedRun:
        """Record a batch without entries in the metadata, and return its run."""
        self.committed.save_next(batch)
        self._save()
        self.committed.add(batch)
        return CommittedRun(False, batch.first, batch.end, batch.entries, batch.rows)

    def snapshot(self, log: SegmentWriter | None) -> LogSnapshot:
        """Return the snapshot that readers see."""
        segments = self._sealed if log is None else self._sealed.with_open(_open_segment(log))
        return LogSnapshot(self.name, segments, self.trimmed, self.terminated is not None, self.incarnation)

    def local_copies(self) -> list[LogSegment]:
        """Return the offloaded segments that still have a local copy, in order."""
        found = map(self._sealed.find, sorted(self._copied))
        return [segment for segment in found if segment is not None]

    def trim(self, gone: Sequence[int]) -> None:
        """Remove sealed segments from the start of the list. The caller then deletes their files."""
        last = self._sealed[len(gone) - 1]
        info = self._info()
        mark = TrimMark(Position(last.ledger_id, last.entries), last.row_end)
        mark.put(info)
        self._save(info, gone=gone, trimmed_to=mark.position)
        self.trimmed = mark
        self._sealed = self._sealed.without_first(len(gone))
        self._copied = self._copied.difference(gone)
        self._without_indexes = [ledger_id for ledger_id in self._without_indexes if ledger_id not in gone]

    def prepare_offload(self, ledger_id: int, attempt: OffloadAttempt) -> LocalSegment | None:
        """Record a new attempt to offload a sealed segment. The objects of an earlier attempt will be deleted.

        Returns None if the segment is already offloaded. Raises Refused if the segment is open, and NotFound if the log
        has no such segment.
        """
        row = self._row(ledger_id)
        listed = row.listed()
        before = OffloadAttempt.of(listed)
        if before is not None and before.complete:
            return None
        if not listed.timestamp:
            raise Refused(f"segment {ledger_id} of {self.name!r} is open", hint="Offload it after it is sealed")
        segment = self._sealed.find(ledger_id)
        assert segment is not None  # noqa: S101 — the segment is listed and sealed
        self._save(put=[with_attempt(row, attempt)])
        return local_segment(self.name, row, segment)

    @property
    def lacks_indexes(self) -> bool:
        """Whether a direct segment lacks its index objects in the bucket."""
        return bool(self._without_indexes)

    def lacking_indexes(self) -> list[tuple[LocalSegment, OffloadAttempt]]:
        """Return the direct segments whose index objects must be put into the bucket now, in order.

        Each segment comes with its attempt.

        If the ledger offloads segments automatically, the list ends before the first segment that is not offloaded.
        """
        lacking, found = set(self._without_indexes), []
        for segment in self._sealed if lacking else ():
            if segment.offloaded is None and self.policy.offloads:
                break
            if segment.ledger_id in lacking:
                row = self._row(segment.ledger_id)
                attempt = OffloadAttempt.of(row.listed())
                assert attempt is not None  # noqa: S101 — a direct segment has an attempt
                found.append((local_segment(self.name, row, segment), attempt))
        return found

    def require_indexes(self, ledger_id: int) -> None:
        """Raise Unavailable if a direct segment before `ledger_id` lacks its index objects in the bucket."""
        before = [lacking for lacking in self._without_indexes if lacking < ledger_id]
        if before:
            raise Unavailable(
                f"segment {ledger_id} of {self.name!r} waits: the index objects of segment {before[0]} are missing",
                hint="They are put when all earlier segments are offloaded. See the first failure in broker.log",
            )

    def complete_indexes(self, ledger_ids: Collection[int]) -> None:
        """Record that the index objects of these direct segments are in the bucket. Ignore trimmed segments."""
        done = [ledger_id for ledger_id in self._without_indexes if ledger_id in ledger_ids]
        rows = [self._row(ledger_id) for ledger_id in done]
        if rows:
            attempts = attempts_of(rows)
            self._save(put=[with_attempt(row, at.with_indexes()) for row, (_, at) in zip(rows, attempts, strict=True)])
            self._without_indexes = [ledger_id for ledger_id in self._without_indexes if ledger_id not in done]

    def complete_offload(self, ledger_id: int, attempt: uuid.UUID) -> None:
        """Record that all objects of an attempt are complete. Raises Refused if a newer attempt was recorded."""
        row = self._row(ledger_id)
        stated = OffloadAttempt.of(row.listed())
        if stated is None or stated.attempt != attempt:
            found = "not attempted" if stated is None else f"attempt {stated.attempt}"
            raise Refused(f"the offload of segment {ledger_id} of {self.name!r} is {found}, {attempt} was completed")
        if stated.complete:
            return
        done = stated.completed(max(self._context.clock(), 1))
        self._save(put=[with_attempt(row, done)])
        self._replace_attempt(ledger_id, done)

    def delete_local(self, ledger_ids: Collection[int]) -> None:
        """Record that the local data files of offloaded segments are deleted. The caller then deletes the files.

        The index file beside each segment stays. So the broker can open a log, count its rows and split ranges without
        a request to object storage. Raises Refused if a segment is not offloaded.
        """
        put, done = [], {}
        for ledger_id in ledger_ids:
            row = self._row(ledger_id)
            attempt = OffloadAttempt.of(row.listed())
            if attempt is None or not attempt.complete:
                raise Refused(
                    f"segment {ledger_id} of {self.name!r} is not in object storage: its only copy is the local file"
                )
            done[ledger_id] = attempt.without_local()
            put.append(with_attempt(row, done[ledger_id]))
        self._save(put=put)
        for ledger_id, attempt in done.items():
            self._replace_attempt(ledger_id, attempt)

    def terminate(self, last: Position) -> None:
        """Record that the log is closed for good after the entry `last`."""
        info = self._info()
        info.terminatedPosition.ledgerId, info.terminatedPosition.entryId = last.ledger_id, last.entry_id
        self._save(info)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the properties of the record."""
        info = self._info()
        del info.properties[:]
        for key, value in sorted(properties.items()):
            info.properties.add(key=key, value=value)
        self._save(info)

    def _replace_attempt(self, ledger_id: int, attempt: OffloadAttempt) -> None:
        """Replace the offload attempt of a segment in new snapshots. Earlier snapshots stay usable."""
        context = self._context
        segment = self._sealed.find(ledger_id)
        if segment is not None:
            offloaded = OffloadedSegment(ledger_id, attempt, context.offloader, context.prefer_remote)
            index = segment.index.offloaded_to(offloaded) if isinstance(segment.index, SealedIndex) else segment.index
            segment = replace(segment, index=index, offloaded=offloaded)
            self._sealed = self._sealed.replaced(segment)
            self._copied = self._copied - {ledger_id} | ({ledger_id} if segment.is_copied else set())

    def _seal_left_open(self) -> None:
        """Recover and seal the open segment of an earlier broker, if there is one."""
        if not self.left_open:
            return
        (row,) = self.left_open
        ledger_id = row.ledger_id
        context = self._context
        # Raises Fenced if another broker took the store over after the list was read. It may be writing to the segment.
        context.require_ours()
        path = data_path(context.directory, ledger_id)
        if path.exists() and disk.take_from_writer(path, index_path(context.directory, ledger_id)):
            _log.warning("%s is still open in a broker that was replaced: a copy of the file is recovered", path)
        recovered = recover_segment(
            path,
            ledger_id,
            store_id=context.store_id,
            block_bytes=row.block_bytes,
            first_row=row.first_row,
            describe=entry_traits,
            synced=self._is_synced,
        )
        if context.durability.in_bucket:
            recovered = recovered.acknowledged_part()  # only acknowledged entries are certainly in the bucket
        self._learn(recovered)
        sealed, index = seal_recovered(recovered), recovered.index
        del recovered  # otherwise the traceback of an error would keep the index file mapped
        self._close(ledger_id, sealed, index, row.created_ms)

    def _continue_left_open(self) -> SegmentWriter | None:
        """Return the open segment of a store in a bucket. Its file was built from the log in the bucket.

        If the segment has no file, it never got an entry. Then it is removed from the list.
        """
        if not self.left_open:
            return None
        (row,), context = self.left_open, self._context
        path = data_path(context.directory, row.ledger_id)
        if not path.exists():
            self._save(gone=[row.ledger_id])
            self._context.unlisted([row.ledger_id])
            return None
        recovered = recover_segment(
            path,
            row.ledger_id,
            store_id=context.store_id,
            block_bytes=row.block_bytes,
            first_row=row.first_row,
            describe=entry_traits,
            built=True,
        )
        self._learn(recovered)
        writer = continue_segment(recovered, owner=self.incarnation, durability=context.durability)
        writer.set_created(row.created_ms)
        return writer

    def _learn(self, recovered: RecoveredSegment) -> None:
        """Record the batches and the sequence ids of a recovered segment in memory."""
        now_ms = self._context.clock()
        for batch in recovered_batches(recovered, now_ms):
            # A later batch of the query can be recorded without an entry.
            if not is_written(batch.batch, batch.origin, self.committed.get(batch.query)):
                self.remember(batch)
        if self.deduplication is not None:
            self.deduplication.learn(highest_of(sequences_in(recovered.path, recovered.index), now_ms))

    def _close(
        self, ledger_id: int, sealed: SealedSegment, index: EntryIndex, created_ms: int, *, rolls_over: bool = False
    ) -> None:
        """Record a sealed segment, or remove an empty segment from the list."""
        if not sealed.entries:
            self._save(gone=[ledger_id])
            self._context.unlisted([ledger_id])
            return
        now = max(self._context.clock(), 1)
        record = sealed_record(ledger_id, sealed, index, self.policy.block_bytes, created_ms, now)
        self._save(put=[record], sequences=self._sequences(), allocate=rolls_over)
        self._sealed = self._sealed.sealed(self._sealed_segment(record, record.listed(), index))
        self._context.sealed(self.name)

    def _row(self, ledger_id: int) -> SegmentRecord:
        found = self._context.metadata.segments.get(self.name, ledger_id)
        if found is None:
            raise NotFound(f"{self.name!r} has no segment {ledger_id}", hint="Retention may have deleted it")
        return found

    def _info(self) -> ManagedLedgerInfo:
        info = ManagedLedgerInfo()
        info.CopyFrom(self._record.info)
        return info

    def _sequences(self) -> list[KnownSequence] | None:
        """Return the sequence ids to save with a seal, or None without de-duplication."""
        if self.deduplication is None:
            return None
        settings = self._context.settings
        return self.deduplication.snapshot(
            inactive_ms=settings.brokerDeduplicationProducerInactivityTimeoutMinutes * 60_000,
        )

    def _save(
        self,
        info: ManagedLedgerInfo | None = None,
        *,
        put: Collection[SegmentRecord] = (),
        gone: Collection[int] = (),
        trimmed_to: Position | None = None,
        sequences: list[KnownSequence] | None = None,
        allocate: bool = False,
    ) -> None:
        expired_ms = self._context.clock() - self._context.settings.stagingRetentionSeconds * 1000
        self._record = self._context.metadata.update_ledger(
            self._record,
            self._record.info if info is None else info,
            put=put,
            gone=gone,
            committed=self.committed.unsaved(),
            forgotten=self.committed.expired(expired_ms),
            trimmed_to=trimmed_to,
            sequences=sequences,
            allocate=allocate,
        )
        self.committed.saved(expired_ms)

    def _sealed_segment(self, record: SegmentRecord, listed: LedgerInfo, index: EntryIndex | None = None) -> LogSegment:
        ledger_id, context = record.ledger_id, self._context
        path, attempt, offloaded = data_path(context.directory, ledger_id), OffloadAttempt.of(listed), None
        if attempt is not None and attempt.complete:
            direct = DirectSegment.of(record)
            offloaded = OffloadedSegment(ledger_id, attempt, context.offloader, context.prefer_remote, direct)
        source = SealedIndex(path, listed.entries, record, context.store_id, index, offloaded)
        return LogSegment(
            ledger_id,
            listed.entries,
            record.first_row,
            record.rows,
            listed.size,
            listed.timestamp,
            path,
            source,
            offloaded,
            record.file_bytes - HEADER_BYTES,
            record.row_entries,
        )


def _open_segment(log: SegmentWriter) -> LogSegment:
    """Return the acknowledged entries of the open segment, as readers see them."""
    index, acknowledged = log.index, log.acknowledged_size
    entries, first, row_end = index.count, index.first_row, index.row_end
    return LogSegment(log.ledger_id, entries, first, row_end - first, acknowledged, 0, log.path, lambda: index)
