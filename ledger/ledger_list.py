"""The list of ledgers behind a managed ledger: the metadata record and the files, kept in step.

Invariants
- A file exists before the list names it. The list names a ledger before its first entry is written.
- At most the last ledger of the list is open (close time 0); one found open at start was left by a broker that died:
  it is recovered and sealed, and the log goes on in a new ledger, made at the first append.
- A broker that was taken over may live and write on, until it looks at the epoch. What it writes must reach nobody: a
  ledger that is still held by its writer is recovered from a copy, which takes the name.
- Sealing puts entries, sizes, rows and the newest committed batches into the metadata in one transaction. An empty
  ledger leaves the list instead.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ledger import disk
from ledger.clock import Clock
from ledger.entry import entry_rows, parse_entry
from ledger.ledger_policy import LedgerPolicy
from ledger.log_snapshot import LogSegment, LogSnapshot
from ledger.metadata import LedgerRecord, Metadata, SegmentRecord
from ledger.open_ledger import OpenLedger
from ledger.position import Position
from ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from ledger.run import CommittedBatch, closes_run, marker_summary, run_id
from ledger.segment_format import FRAME_BYTES
from ledger.segment_index import EntryIndex
from ledger.segment_recovery import EntryTraits, RecoveredSegment, recover_segment, seal_recovered
from ledger.segment_verification import load_or_rebuild_index
from ledger.segment_writer import SealedSegment, SegmentWriter, data_path, index_path
from ledger.settings import Settings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogContext:
    """What every managed ledger of a store shares."""

    store_id: str
    epoch: int
    directory: Path
    metadata: Metadata
    settings: Settings
    clock: Clock
    executor: Executor


class LedgerList:
    """The ledgers of one managed ledger, sealed ones and the metadata record that lists them all."""

    def __init__(self, record: LedgerRecord, context: LogContext) -> None:
        self._record = record
        self._context = context
        self.name = record.name
        self.incarnation = record.incarnation
        self.policy = LedgerPolicy.of(record.info, context.settings)
        self.properties = {pair.key: pair.value for pair in record.info.properties}
        self.committed = {batch.query: batch for batch in context.metadata.committed_batches(record.name)}
        self._unsaved: dict[str, CommittedBatch] = {}
        rows = {segment.ledger_id: segment for segment in context.metadata.segments(record.name)}
        self._sealed = [
            self._sealed_segment(info.ledgerId, info.entries, info.size, info.timestamp, rows[info.ledgerId])
            for info in record.info.ledgerInfo
            if info.timestamp
        ]

    @classmethod
    def recover(cls, name: str, context: LogContext) -> LedgerList:
        """The list as the metadata has it; a ledger that a dead broker left open is recovered and sealed."""
        ledgers = cls(context.metadata.ledger(name), context)
        ledgers._seal_left_open()
        return ledgers

    def open_next(self, first_row: int) -> OpenLedger:
        """A new ledger at the end of the list, durable and listed."""
        context, policy = self._context, self.policy
        ledger_id = context.metadata.allocate_ledger_id()
        writer = SegmentWriter.create(
            context.directory,
            ledger_id,
            store_id=context.store_id,
            block_bytes=policy.block_bytes,
            first_row=first_row,
        )
        info = self._info()
        info.ledgerInfo.add(ledgerId=ledger_id)
        now = context.clock()
        log = OpenLedger(writer, now)
        try:
            self._save(info, SegmentRecord(ledger_id, policy.block_bytes, first_row, 0, 0, now))
        except BaseException:
            # Whether it is listed is not known: the file stays, small, and the next start sweeps it if it is not.
            with suppress(OSError):
                log.forget_unacknowledged()
            log.let_go()
            raise
        return log

    def seal(self, log: OpenLedger) -> None:
        """Close the open ledger for good: file first, then the record; the committed batches go with it."""
        sealed = log.seal()
        self._close(log.ledger_id, sealed, log.index, log.created_ms)

    def remember(self, batch: CommittedBatch) -> None:
        """Keep a batch that was just committed; its marker is in the open ledger, the seal will record it."""
        self.committed[batch.query] = batch
        self._unsaved[batch.query] = batch

    def snapshot(self, log: OpenLedger | None) -> LogSnapshot:
        """What readers see."""
        last = () if log is None else (log.segment(),)
        return LogSnapshot(self.name, (*self._sealed, *last))

    def _seal_left_open(self) -> None:
        left = [info.ledgerId for info in self._record.info.ledgerInfo if not info.timestamp]
        if not left:
            return
        (ledger_id,) = left
        context = self._context
        # The list was read before: what it names is not the ledger that a taker of the store writes now.
        context.metadata.require_epoch(context.epoch)
        kept = next(s for s in context.metadata.segments(self.name) if s.ledger_id == ledger_id)
        path = data_path(context.directory, ledger_id)
        if path.exists() and disk.take_from_writer(path, index_path(context.directory, ledger_id)):
            _log.warning("%s is still held by a broker that lost the store: a copy of it is recovered", path)
        recovered = recover_segment(
            path,
            ledger_id,
            store_id=context.store_id,
            block_bytes=kept.block_bytes,
            first_row=kept.first_row,
            describe=entry_traits,
        )
        for batch in _batches_of(recovered, context.clock()):
            self.remember(batch)
        sealed, index = seal_recovered(recovered), recovered.index
        del recovered  # it views the sidecar, and an error from here on would keep that open
        self._close(ledger_id, sealed, index, kept.created_ms)

    def _close(self, ledger_id: int, sealed: SealedSegment, index: EntryIndex, created_ms: int) -> None:
        info = self._info()
        listed = info.ledgerInfo[-1]
        now = max(self._context.clock(), 1)
        record = SegmentRecord(
            ledger_id,
            self.policy.block_bytes,
            index.first_row,
            sealed.row_end - index.first_row,
            sealed.file_bytes,
            created_ms,
        )
        if sealed.entries:
            listed.entries, listed.size, listed.timestamp = sealed.entries, sealed.size_bytes, now
            self._save(info, record)
            self._sealed.append(self._sealed_segment(ledger_id, sealed.entries, sealed.size_bytes, now, record, index))
            return
        del info.ledgerInfo[-1]
        self._save(info, None)
        for path in (
            data_path(self._context.directory, ledger_id),
            index_path(self._context.directory, ledger_id),
        ):
            path.unlink(missing_ok=True)

    def _info(self) -> ManagedLedgerInfo:
        info = ManagedLedgerInfo()
        info.CopyFrom(self._record.info)
        return info

    def _save(self, info: ManagedLedgerInfo, segment: SegmentRecord | None) -> None:
        self._record = self._context.metadata.update_ledger(
            self._record, info, segment=segment, committed=list(self._unsaved.values())
        )
        self._unsaved.clear()

    def _sealed_segment(
        self,
        ledger_id: int,
        entries: int,
        size: int,
        close_ms: int,
        record: SegmentRecord,
        index: EntryIndex | None = None,
    ) -> LogSegment:
        path = data_path(self._context.directory, ledger_id)
        source = SealedIndex(path, entries, record, self._context.store_id, index)
        return LogSegment(ledger_id, entries, record.first_row, record.rows, size, close_ms, path, source)


def files_of(info: ManagedLedgerInfo, directory: Path) -> list[Path]:
    """Every file of every ledger that a record lists, what recovery set aside included."""
    return [
        path
        for listed in info.ledgerInfo
        for path in (
            data_path(directory, listed.ledgerId),
            index_path(directory, listed.ledgerId),
            data_path(directory, listed.ledgerId).with_suffix(".torn"),
        )
    ]


class SealedIndex:
    """The index of a sealed ledger, loaded when it is first asked for and kept."""

    def __init__(
        self, path: Path, entries: int, record: SegmentRecord, store_id: str, index: EntryIndex | None
    ) -> None:
        self._path = path
        self._entries = entries
        self._record = record
        self._store_id = store_id
        self._index = index
        self._lock = threading.Lock()

    def __call__(self) -> EntryIndex:
        """The index; rebuilt from the data, loudly, when the sidecar is lost."""
        with self._lock:
            if self._index is None:
                record = self._record
                self._index = load_or_rebuild_index(
                    self._path,
                    record.ledger_id,
                    store_id=self._store_id,
                    entries=self._entries,
                    file_bytes=record.file_bytes,
                    first_row=record.first_row,
                    block_bytes=record.block_bytes,
                    describe=entry_traits,
                )
            return self._index


def entry_traits(entry: memoryview) -> EntryTraits:
    """What recovery and verification must know of an entry; raises Corrupt when its checksum is wrong."""
    parsed = parse_entry(entry, "an entry")
    run = run_id(parsed.metadata)
    txn = None if run is None else (run.most, run.least)
    return EntryTraits(entry_rows(parsed.metadata), txn, closes_run(parsed.metadata), parsed.stamp)


def _batches_of(recovered: RecoveredSegment, now_ms: int) -> list[CommittedBatch]:
    """The batches whose markers a recovered segment holds, oldest first."""
    index, found = recovered.index, []
    starts = np.concatenate(([index.first_row], index.row_ends[:-1])) if index.count else np.empty(0)
    for entry_id in np.flatnonzero(index.row_ends == starts).tolist():
        where = f"{recovered.path} entry {entry_id}"
        metadata = parse_entry(_entry_at(recovered, entry_id), where).metadata
        said = marker_summary(metadata, where) if closes_run(metadata) else None
        if said is not None:
            first = Position(recovered.ledger_id, entry_id - said.entries)
            end = Position(recovered.ledger_id, entry_id + 1)
            found.append(CommittedBatch(said.query, said.batch, first, end, said.entries, said.rows, now_ms))
    return found


def _entry_at(recovered: RecoveredSegment, entry_id: int) -> bytes:
    index = recovered.index
    with disk.opened(recovered.path) as fd:
        return disk.read_exact(fd, int(index.lengths[entry_id]), int(index.offsets[entry_id]) + FRAME_BYTES)
