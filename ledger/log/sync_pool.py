"""Thread pool that syncs the logs of a store. A thread syncs many logs together if no other thread is idle.

    queue   A B C D E F …         one thread: A              sync A · check epoch · complete A
                                  another:    B C D E F …    sync all together · check epoch · complete B, C, D, E, F …

The pool performs all syncs of appends. A job names its file and gets the result of the sync. A single file is synced
with one call. Many files are synced by the kernel together (`ledger.segment.file_syncs`). Reason: the device is as busy
as with one thread per file, and the threads do not compete for the interpreter. After the last sync and before the
first answer, the thread checks once that this broker still owns the store.

Invariants
- One thread at a time works on a log. The append queue submits its job again only after its sync stage has ended.
- A job reports whether there is still something to sync. Another thread may have synced it already.
- A thread that continues with a log also takes waiting jobs. Reason: a busy log must not starve other logs.
- A job that raises is failed (`SyncJob.fail`). The thread and the other jobs continue.
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
from pyspark_ledger.ledger.segment.file_syncs import FILES_MAX, FileSyncs

_log = logging.getLogger(__name__)


class SyncJob(Protocol):
    """Sync job of one log."""

    def take(self) -> bool:
        """Take everything that must be synced. Return False if another thread has taken it."""
        ...

    def file(self) -> SyncedFile | None:
        """Return the file to sync, None if there is none."""
        ...

    def answer(self, error: Exception | None) -> bool:
        """Complete the waiting futures, with `error` if the sync failed. Return whether there is more to sync."""
        ...

    def fail(self, error: BaseException) -> None:
        """End the job because a step raised. Does nothing unless this thread runs the job. Never raises."""
        ...


class SyncedFile(Protocol):
    """File that the pool syncs for its owner, for example a `SegmentWriter`."""

    def begin_sync(self) -> int:
        """Return the file descriptor to sync, -1 if entries of the file are acknowledged without a sync.

        The sync covers everything written before this call.
        """
        ...

    def end_sync(self, error: OSError | None) -> None:
        """Record the result of the sync that `begin_sync` started."""
        ...


class _Sync:
    """Single sync of one log. `error` is the error that prevented it."""

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

    def __init__(self, threads: int, check_fenced: Callable[[], None]) -> None:
        self._jobs: SimpleQueue[SyncJob | None] = SimpleQueue()
        self._size = threads
        self._check_fenced = check_fenced
        self.latencies = Latencies()
        """Durations of syncs; files that are synced together count once each."""
        self._threads: list[threading.Thread] = []
        self._start_lock = threading.Lock()
        self._idle: list[None] = []  # one element for each idle thread; append and pop are atomic

    def submit(self, job: SyncJob) -> None:
        """Queue a job for the next idle thread."""
        self._jobs.put(job)
        if not self._idle and len(self._threads) < self._size:
            self._start()

    def _fencing_error(self) -> Exception | None:
        """Return the error that prevents synced entries from being acknowledged, None if there is none."""
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
        """Sync a log once on the calling thread. Return whether there is more to sync."""
        return bool(self._round([job], FileSyncs()))

    def _round(self, jobs: list[SyncJob], syncs: FileSyncs) -> list[SyncJob]:
        """Sync each log once. Return the jobs that have more to sync."""
        started = [_Sync(job) for job in jobs]
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

    def _complete(self, syncs: list[_Sync]) -> list[SyncJob]:
        """Check the epoch once and complete all jobs. Return the jobs that have more to sync."""
        fencing_error = self._fencing_error() if syncs else None
        return [sync.job for sync in syncs if _answer(sync.job, sync.error or fencing_error)]

    def _take_waiting(self) -> list[SyncJob]:
        """Take up to `FILES_MAX` waiting jobs that no idle thread will serve, and return them."""
        jobs: list[SyncJob] = []
        for _ in range(min(self._jobs.qsize() - len(self._idle), FILES_MAX)):
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is None:
                self._jobs.put(None)  # end mark of another thread
                break
            if job.take():
                jobs.append(job)
        return jobs


def _answer(job: SyncJob, error: Exception | None) -> bool:
    """Complete a job and return whether there is more to sync. A job that raises fails alone."""
    try:
        return job.answer(error)
    except Exception as raised:  # noqa: BLE001 — any error fails the job
        job.fail(raised)
        return False


def _sync_files(syncs: FileSyncs, files: Sequence[int]) -> Sequence[Exception | None]:
    """Sync files and return the error of each, None for success. An error without a file fails all files."""
    try:
        return syncs.sync(files)
    except Exception as error:  # noqa: BLE001 — reported to the log of every file
        if len(files) == 1:
            return [error]
        _log.exception("the sync of %d files failed with an unexpected error", len(files))
        syncs.close()
        return [OSError(errno.EIO, f"not known to be synced: {error!r}") for _ in files]
