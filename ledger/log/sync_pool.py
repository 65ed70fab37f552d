"""Thread pool that syncs the logs of a store. A thread syncs several logs together if no other thread is idle.

    queue   A B C D E F …         one thread: A              sync A · check epoch · complete A
                                  another:    B C D E F …    sync all together · check epoch · complete B, C, D, E, F …

The pool performs the syncs of appends. A job is the sync stage of one log (`ledger.log.append_queue`). A job names its
file and gets the result of the sync. For one job, a thread makes one system call. For several jobs, the kernel syncs
the files at the same time (`ledger.segment.file_syncs`). Reason: the device then works on all files at once, as with a
thread for each file. But no threads compete for Python's global interpreter lock. After the syncs and before the
acknowledgements, the thread checks once that this broker still owns the store.

Invariants
- One thread at a time works on a log. The append queue submits its job again only after its sync stage has ended.
- `SyncJob.take` returns False if another thread has already started the job.
- A thread whose log needs another sync also takes waiting jobs of other logs. Reason: a busy log must not keep other
  logs waiting.
- If a job raises an error, only this job fails (`SyncJob.fail`). The thread and the other jobs continue.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Protocol

from pyspark_ledger.ledger.metrics.latencies import Latencies
from pyspark_ledger.ledger.segment.file_syncs import FileSyncs
from pyspark_ledger.ledger.segment.writer import SegmentWriter, UnsyncedRange

_log = logging.getLogger(__name__)
# Maximum number of jobs in one round. A round waits for its slowest file. So many logs are divided between the threads.
_TAKEN_MAX = 8


class SyncJob(Protocol):
    """Sync job of one log."""

    def take(self) -> bool:
        """Start the job: take groups of entries that were written together, up to `LogPool.sync_bytes`.

        Return False if another thread has started it.
        """
        ...

    def file(self) -> SyncedFile | None:
        """Return the file to sync, or None if no sync is needed."""
        ...

    def answer(self, error: Exception | None) -> bool:
        """Complete the waiting futures, with `error` if it is set. Return whether the log needs another sync."""
        ...

    def fail(self, error: BaseException) -> None:
        """End the job after an error in one of its steps. Does nothing if another thread runs the job. Never raises."""
        ...


class SyncedFile(Protocol):
    """File that the pool syncs for its owner, for example a `SegmentWriter`."""

    def begin_sync(self) -> int:
        """Return the file descriptor to sync, or -1 if entries of the file are acknowledged without a sync.

        The sync covers at least the entries of the groups that the job took.
        """
        ...

    def unsynced(self) -> UnsyncedRange:
        """Return the bytes that the current sync covers. `begin_sync` has started this sync."""
        ...

    def end_sync(self, error: OSError | None) -> None:
        """Record the result of the sync that `begin_sync` started."""
        ...


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


class RunningSync:
    """Sync of one log. `error` is the error of the sync, or of a step before the sync."""

    def __init__(self, job: SyncJob) -> None:
        self.job = job
        self.fd = -1
        self.error: Exception | None = None
        self._file: SyncedFile | None = None
        try:
            self._file = job.file()
            if self._file is not None:
                self.fd = self._file.begin_sync()
                if self.fd < 0:
                    self._file.end_sync(None)
        except Exception as error:  # noqa: BLE001 — reported to the waiting futures
            self.error = error

    def unsynced(self) -> UnsyncedRange:
        """Return the bytes that the sync covers. Called only if `fd` is a file descriptor."""
        assert self._file is not None  # noqa: S101 — for the type checker
        return self._file.unsynced()

    def end(self, error: Exception | None) -> None:
        """Record the result of the sync. Only an `OSError` marks the file as failed."""
        self.error = error
        try:
            if self._file is not None and (error is None or isinstance(error, OSError)):
                self._file.end_sync(error)
        except Exception as raised:  # noqa: BLE001 — reported to the waiting futures
            self.error = raised


class SyncPool:
    """Pool of at most `threads` threads, started on demand. `check_fenced` raises if another broker owns the store."""

    sync_bytes = 0

    def __init__(self, threads: int, check_fenced: Callable[[], None]) -> None:
        self._jobs: SimpleQueue[SyncJob | None] = SimpleQueue()
        self._size = threads
        self._check_fenced = check_fenced
        self.latencies = Latencies()
        """Durations of syncs. If files are synced together, each file counts once."""
        self._threads: list[threading.Thread] = []
        self._start_lock = threading.Lock()
        self._idle: list[None] = []  # one element for each idle thread; append and pop are atomic

    def written(self, file: SegmentWriter) -> None:
        """Do nothing, because the next sync of the file covers the entries."""

    def drain(self, file: SegmentWriter) -> None:
        """Do nothing, because a sync of a local file reads no bytes through this process."""

    def submit(self, job: SyncJob) -> None:
        """Queue a job for the next idle thread."""
        self._jobs.put(job)
        if not self._idle and len(self._threads) < self._size:
            self._start()

    def _fencing_error(self) -> Exception | None:
        """Return the error if another broker owns the store or the check failed, None if this broker owns the store."""
        try:
            self._check_fenced()
        except Exception as error:  # noqa: BLE001 — reported to the waiting futures
            return error
        return None

    def close(self) -> None:
        """Run all submitted jobs and end the threads. No job may be submitted afterwards."""
        with self._start_lock:
            for _ in self._threads:
                self._jobs.put(None)
            for thread in self._threads:
                thread.join()
            self._size = 0

    def _start(self) -> None:
        with self._start_lock:
            if len(self._threads) >= self._size:
                return
            thread = threading.Thread(target=self._work, name=f"sync-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if not self._threads:
                    raise
                _log.warning("a sync thread could not be started: %s", error)
                return  # the running threads take the waiting jobs
            self._threads.append(thread)

    def _work(self) -> None:
        syncs = FileSyncs()
        while (job := self._next()) is not None:
            jobs = [job]
            try:
                jobs = [job] if job.take() else []
                while jobs:
                    jobs += self._take_waiting()
                    jobs = self._round(jobs, syncs)
            except Exception as error:  # noqa: BLE001 — other logs need the thread
                _log.exception("the sync jobs of %d logs failed with an unexpected error", len(jobs))
                for job in jobs:
                    job.fail(error)
        syncs.close()

    def _next(self) -> SyncJob | None:
        self._idle.append(None)
        try:
            return self._jobs.get()
        finally:
            self._idle.pop()

    def run_inline(self, job: SyncJob) -> bool:
        """Sync a log once on the calling thread. Return whether the log needs another sync."""
        return bool(self._round([job], FileSyncs()))

    def _round(self, jobs: list[SyncJob], syncs: FileSyncs) -> list[SyncJob]:
        """Sync each log once. Return the jobs that need another sync."""
        started = [RunningSync(job) for job in jobs]
        # Logs that are acknowledged without a sync do not wait for the other logs.
        more = self._complete([sync for sync in started if sync.fd < 0])
        due = [sync for sync in started if sync.fd >= 0]
        started_s = perf_counter()
        errors = _sync_files(syncs, [sync.fd for sync in due])
        if due:
            self.latencies.observe(perf_counter() - started_s, len(due))
        for sync, error in zip(due, errors, strict=True):
            sync.end(error)
        return more + self._complete(due)

    def _complete(self, syncs: list[RunningSync]) -> list[SyncJob]:
        """Check the epoch once and complete all jobs. Return the jobs that need another sync."""
        fencing_error = self._fencing_error() if syncs else None
        return [sync.job for sync in syncs if _answer(sync.job, sync.error or fencing_error)]

    def _take_waiting(self) -> list[SyncJob]:
        """Take up to `_TAKEN_MAX` waiting jobs that no idle thread will serve, and return them."""
        jobs: list[SyncJob] = []
        for _ in range(min(self._jobs.qsize() - len(self._idle), _TAKEN_MAX)):
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is None:
                self._jobs.put(None)  # each None in the queue ends one thread, and this one is for another thread
                break
            if job.take():
                jobs.append(job)
        return jobs


def _answer(job: SyncJob, error: Exception | None) -> bool:
    """Complete a job and return whether it needs another sync. If the job raises, only this job fails."""
    try:
        return job.answer(error)
    except Exception as raised:  # noqa: BLE001 — any error fails the job
        job.fail(raised)
        return False


def _sync_files(syncs: FileSyncs, files: Sequence[int]) -> Sequence[Exception | None]:
    """Sync files and return one error or None for each. An error of the call itself fails all files."""
    try:
        return syncs.sync(files)
    except Exception as error:  # noqa: BLE001 — reported to the log of every file
        if len(files) == 1:
            return [error]
        _log.exception("the sync of %d files failed with an unexpected error", len(files))
        syncs.close()
        return [OSError(errno.EIO, f"the result of the sync is unknown: {error!r}") for _ in files]
