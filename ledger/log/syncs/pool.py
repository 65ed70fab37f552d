"""Threads that sync the logs of a store.

    one log      its own thread     sync A · check epoch · complete A
    many logs    one loop           all syncs in flight; whenever some have ended: check epoch · complete these

The pool performs the syncs of appends. A job is the sync stage of one log (`ledger.log.append_queue`). The pool has two
threads. If no other job is running, the first thread takes a new job, and syncs the file with one system call. This is
the fastest way for a single file. The second thread runs a loop (`ledger.log.syncs.loop`), which takes all other jobs
and syncs their files at the same time. One thread for each file would not be faster for the device. The threads would
also compete for Python's global interpreter lock. After a sync and before the acknowledgement, the thread checks that
this broker still owns the store.

Invariants
- One thread at a time works on a log. The append queue submits its job again only after its sync stage has ended.
- If a job raises an error, only this job fails (`SyncJob.fail`). The thread and the other jobs continue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from pyspark_ledger.ledger.log.syncs.job import RunningSync, SyncJob
from pyspark_ledger.ledger.log.syncs.loop import SyncLoop
from pyspark_ledger.ledger.metrics.latencies import Latencies
from pyspark_ledger.ledger.segment.file_syncs import sync_file
from pyspark_ledger.ledger.segment.writer import SegmentWriter


class LogPool(Protocol):
    """Pool that makes the logs of a store durable."""

    latencies: Latencies
    sync_bytes: int
    """Size of a sync in bytes. A sync takes written groups until they have this size. 0: all written groups."""

    def written(self, file: SegmentWriter) -> None:
        """Prepare the sync of entries that were written during another sync of the same file. Raises no error."""

    def drain(self, file: SegmentWriter) -> None:
        """Wait until no sync reads bytes of a file. Called before the file is truncated."""

    def submit(self, job: SyncJob) -> None:
        """Queue a job. The caller does not wait."""

    def run_inline(self, job: SyncJob) -> bool:
        """Sync a log once and wait for the result. Return whether the log needs another sync."""

    def close(self) -> None:
        """Run all submitted jobs and end the threads. No job may be submitted afterwards."""


class SyncPool:
    """Pool of two threads, started on demand. `check_fenced` raises if another broker owns the store."""

    sync_bytes = 0

    def __init__(self, check_fenced: Callable[[], None]) -> None:
        self._check_fenced = check_fenced
        self.latencies = Latencies()
        """Durations of syncs. The logs record them, so that each log and the store have the same numbers."""
        self._jobs: SimpleQueue[SyncJob | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._occupied = threading.Lock()  # held from the submission of the thread's job to its end
        self._loop = SyncLoop(self._complete)

    def written(self, file: SegmentWriter) -> None:
        """Do nothing, because the next sync of the file covers the entries."""

    def drain(self, file: SegmentWriter) -> None:
        """Do nothing, because a sync of a local file reads no bytes through this process."""

    def submit(self, job: SyncJob) -> None:
        """Queue a job. Raises RuntimeError if a thread cannot be started."""
        if self._loop.busy or not self._occupied.acquire(blocking=False):
            self._loop.submit(job)
            return
        try:
            self._start()
        except BaseException:
            self._occupied.release()
            raise
        self._jobs.put(job)

    def run_inline(self, job: SyncJob) -> bool:
        """Sync a log once on the calling thread. Return whether the log needs another sync."""
        sync = RunningSync(job)
        if sync.fd >= 0:
            sync.end(sync_file(sync.fd))
        return bool(self._complete([sync]))

    def close(self) -> None:
        """Run all submitted jobs and end the threads. No job may be submitted afterwards."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        self._loop.close()

    def _start(self) -> None:
        """Start the thread. Called with `_occupied` held."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="sync", daemon=True)
            thread.start()
            self._thread = thread

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                more = job.take()
                while more:
                    more = self.run_inline(job)
            except Exception as error:  # noqa: BLE001 — other logs need the thread
                job.fail(error)
            finally:
                self._occupied.release()

    def _complete(self, syncs: list[RunningSync]) -> list[SyncJob]:
        """Check the epoch once and complete all jobs. Return the jobs that need another sync."""
        fencing_error = self._fencing_error() if syncs else None
        return [sync.job for sync in syncs if _answer(sync.job, sync.error or fencing_error)]

    def _fencing_error(self) -> Exception | None:
        """Return the error if another broker owns the store or the check failed, None if this broker owns the store."""
        try:
            self._check_fenced()
        except Exception as error:  # noqa: BLE001 — reported to the waiting futures
            return error
        return None


def _answer(job: SyncJob, error: Exception | None) -> bool:
    """Complete a job and return whether it needs another sync. If the job raises, only this job fails."""
    try:
        return job.answer(error)
    except Exception as raised:  # noqa: BLE001 — any error fails the job
        job.fail(raised)
        return False
