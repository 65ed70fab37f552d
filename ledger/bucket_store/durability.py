"""Durability of a store in a bucket: an append to the write-ahead log in the bucket replaces the sync of a local file.

    sync job  ─▶ unsynced bytes of the segment ─▶ one batch ─▶ acknowledged ─▶ end of the job
    records   ─▶ changed rows of a transaction ─▶ one batch ─▶ acknowledged ─▶ COMMIT

Rules
- A *sync job* makes the appended entries of one segment durable. No thread waits for the job: the thread that
  acknowledges the log object completes the job.
- The calling thread waits for the log in three other cases: a transaction, a run, and staged parts. A *run* is the
  entries of one Spark batch for one ledger.
- The bytes of a batch are read from the local file when its log object is built. The file stays open until then.
- If the log has failed, the store accepts nothing more, and its broker exits.
- To *carry* a file is to write its bytes to the log again. Only bytes that were appended to the log before are carried:
  the first `LiveFiles.length` bytes of the file.
- While a segment is synced, its later entries are already appended to the log, in *pieces* of about `piece_bytes`. So
  one ledger can have several puts in flight. A later sync of the segment waits for the piece with its last byte.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.bucket_store.live_files import LiveFiles
from pyspark_ledger.ledger.errors import LedgerError, Unavailable
from pyspark_ledger.ledger.log.sync_pool import LogPool, SyncJob
from pyspark_ledger.ledger.metrics.latencies import Latencies
from pyspark_ledger.ledger.segment.writer import SegmentWriter, UnsyncedRange
from pyspark_ledger.ledger.wal.log_object import WalRange
from pyspark_ledger.ledger.wal.packing import FileBytes, Item, MetadataRows
from pyspark_ledger.ledger.wal.writer import WalWriter

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sent:
    """State of an open segment: the end of the bytes that were appended to the log, and the unacknowledged pieces.

    A piece is the end of its bytes in the file, and the future of its batch.
    """

    end: int
    pieces: deque[tuple[int, Future[WalRange]]] = field(default_factory=deque)


class BucketDurability:
    """Durability of one open store in a bucket.

    The local metadata file contains the records of all log objects with a number below `records_from`.
    """

    in_bucket = True

    def __init__(self, wal: WalWriter, files: LiveFiles, records_from: int, piece_bytes: int) -> None:
        self.records_from = records_from
        self.replica = self
        self.room: Callable[[], None] = lambda: None
        """Waits while the local directory exceeds its limit. Set after the store is open."""
        self.piece_bytes = piece_bytes
        self._sent: dict[int, _Sent] = {}  # by segment id
        self._sending = threading.Lock()
        self._wal = wal
        self._files = files
        self._order = threading.Lock()

    def wait_for_room(self) -> None:
        self.room()

    def sync(self, writer: SegmentWriter) -> None:
        """Make a segment durable.

        `SegmentWriter.sync` calls this for runs (entries of Spark batches) and for logs of cursors.
        """
        if writer.begin_sync() >= 0:
            self.append([self._file_bytes(writer.unsynced())]).result()
        writer.end_sync(None)

    def replicate(self, rows: bytes) -> None:
        """Make the changed rows of a transaction durable."""
        self.records_from = self.append([MetadataRows(rows)]).result().last + 1

    def diverged(self, error: BaseException) -> None:
        """End the broker. Called if records are in the log, but the commit to the local metadata file has failed."""
        self._wal.fail(Unavailable(f"the local metadata cannot commit a change that is in the log: {error!r}"))

    def sync_parts(self, paths: Sequence[tuple[str, Path]]) -> None:
        """Make staged parts (files with rows of tasks) durable as one batch.

        A commit to several ledgers calls this method before it records the list of its parts.
        """
        with ExitStack() as opened:
            items = [self._whole(name, opened.enter_context(disk.opened(path))) for name, path in paths]
            if items:
                self.append(items).result()

    def pool(self, check_fenced: Callable[[], None]) -> LogPool:
        return BucketSyncPool(self, check_fenced)

    def append(self, batch: Sequence[Item]) -> Future[WalRange]:
        """Append a batch to the log. From then on, the log objects with bytes of the batch's files are needed."""
        with self._order:
            number = self._wal.end
            for item in batch:
                if isinstance(item, FileBytes):
                    self._files.record(item.file, number, item.offset + item.length)
            return self._wal.append(batch)

    def carry(self, name: str, fd: int, sealed_bytes: int) -> Future[WalRange]:
        """Append again all bytes of a file that earlier batches contain.

        `sealed_bytes` is the size of a sealed file, and 0 for an open file. Bytes after the sealed size are left out,
        because they were never acknowledged.
        """
        with self._order:
            return self._wal.append([_range(name, fd, 0, sealed_bytes or self._files.length(name))])

    def begin(self, file: UnsyncedRange) -> Future[WalRange]:
        """Append the bytes of the range that were not appended yet. Return the future of the last piece."""
        with self._sending:
            sent = self._sent.setdefault(file.ledger_id, _Sent(file.offset))
            while sent.pieces and sent.pieces[0][0] <= file.offset:
                sent.pieces.popleft()
            if sent.end < file.end:
                self._send(sent, file)
            return next(future for end, future in sent.pieces if end >= file.end)

    def send_ahead(self, file: UnsyncedRange) -> None:
        """Append bytes of a segment while a sync of the segment runs, if there are enough bytes for a piece.

        The piece has its own file descriptor. Reason: after an error the broker may close the segment before the log
        reads the bytes.
        """
        with self._sending:
            sent = self._sent.get(file.ledger_id)
            if sent is None or file.end - sent.end < self.piece_bytes:
                return
            fd = os.dup(file.fd)
            try:
                future = self._send(sent, replace(file, fd=fd))
            except BaseException:
                os.close(fd)
                raise
        future.add_done_callback(lambda _: os.close(fd))

    def drain(self, ledger_id: int) -> None:
        """Wait until all pieces of a segment are acknowledged or have failed. The segment gets no more entries."""
        with self._sending:
            sent = self._sent.pop(ledger_id, None)
        if sent is not None:
            wait([future for _, future in sent.pieces])

    def _send(self, sent: _Sent, file: UnsyncedRange) -> Future[WalRange]:
        """Append the bytes of the range that were not appended yet. Called with `_sending` locked."""
        future = self.append([self._file_bytes(replace(file, offset=max(sent.end, file.offset)))])
        sent.pieces.append((file.end, future))
        sent.end = file.end
        return future

    def _file_bytes(self, file: UnsyncedRange) -> FileBytes:
        return _range(segment_name(file.ledger_id), file.fd, file.offset, file.end - file.offset)

    @staticmethod
    def _whole(name: str, fd: int) -> FileBytes:
        return _range(name, fd, 0, os.fstat(fd).st_size)


def segment_name(ledger_id: int) -> str:
    """Return the name of a segment's file in the directory of the store."""
    return f"ledgers/{ledger_id}.ledger"


def _range(name: str, fd: int, start: int, length: int) -> FileBytes:
    return FileBytes(name, start, length, lambda offset, size: disk.read_exact(fd, size, offset))


class BucketSyncPool:
    """Pool of sync jobs without threads of its own. The thread that acknowledges a log object completes its jobs."""

    def __init__(self, durability: BucketDurability, check_fenced: Callable[[], None]) -> None:
        self.latencies = Latencies()
        """Durations from the append of a segment's bytes to their acknowledgement."""
        self.sync_bytes = durability.piece_bytes
        self._durability = durability
        self._check_fenced = check_fenced

    def written(self, file: SegmentWriter) -> None:
        """Append written entries to the log, if there are enough bytes for a piece."""
        try:
            self._durability.send_ahead(file.written())
        except (
            LedgerError,
            OSError,
        ) as error:  # the next sync appends these entries again, and reports its own error
            _log.debug("bytes of segment %d are not appended before their sync: %s", file.ledger_id, error)

    def drain(self, file: SegmentWriter) -> None:
        """Wait until the log has read the pieces of the file."""
        self._durability.drain(file.ledger_id)

    def write(self, job: SyncJob) -> bool:  # noqa: ARG002 — as other pools
        """Return False, because the pool has no thread."""
        return False

    def submit(self, job: SyncJob) -> None:
        try:
            if job.take():
                self._begin(job)
        except Exception as error:  # noqa: BLE001 — any error fails the job
            job.fail(error)

    def run_inline(self, job: SyncJob) -> bool:
        job.begin()
        if job.fd >= 0:
            try:
                self._durability.begin(job.unsynced()).result()
            except LedgerError as error:
                job.end(error)
            else:
                job.end(None)
        return self._answer(job)

    def close(self) -> None:
        """Do nothing: the append queue of each ledger has already waited for its jobs."""

    def _begin(self, job: SyncJob) -> None:
        more = True
        while more:
            job.begin()
            if job.fd >= 0:
                try:
                    future = self._durability.begin(job.unsynced())
                except LedgerError as error:
                    job.end(error)
                else:
                    if not future.done():
                        future.add_done_callback(lambda done: self._end(job, done))
                        return
                    job.end(_error_of(future))
            more = self._answer(job)

    def _end(self, job: SyncJob, done: Future[WalRange]) -> None:
        """Complete a job. Called by the thread that acknowledges the object."""
        try:
            job.end(_error_of(done))
            if self._answer(job):
                self._begin(job)
        except Exception as error:  # noqa: BLE001 — any error fails the job
            job.fail(error)

    def _answer(self, job: SyncJob) -> bool:
        """Complete the futures of a job. Return whether the job has more bytes to sync."""
        error = job.error
        if error is None:
            try:
                self._check_fenced()
            except LedgerError as fenced:
                error = fenced
        try:
            return job.answer(error)
        except Exception as raised:  # noqa: BLE001 — any error fails the job
            job.fail(raised)
            return False


def _error_of(done: Future[WalRange]) -> Exception | None:
    error = done.exception()
    return error if error is None or isinstance(error, Exception) else Unavailable(f"the log ended: {error!r}")
