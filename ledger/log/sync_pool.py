"""Threads that sync the segment files of all logs of a store, and answer the appends of each log after its own sync.

    one log      its own thread     sync A · check epoch · complete A
    many logs    one loop           write · all syncs in flight; if some have ended: check epoch · complete these

A *job* is the sync stage of one log (`ledger.log.append_queue`). To *complete* a job is to answer the appends that its
sync covers. The pool has two threads. If no other job is running, the first thread takes a new job, and syncs the file
with one system call. This is the fastest way for a single file. The second thread runs a loop, which takes all other
jobs and syncs their files at the same time. One thread for each file would not be faster for the device. The threads
would also compete for Python's global interpreter lock. So the loop also writes small appends while it has other jobs.
A thread that writes gives the lock away at each system call.

    unwritten ──write──▶ waiting ──take──▶ due ──begin──▶ running ──end──▶ completed

A job with more groups (entries that were written together) is due again. The loop's thread sleeps until the kernel
signals the end of a sync, or `submit` or `write` signals a job. A job that comes during a step needs no signal, because
the thread looks for jobs at the end of the step. A step completes all ended syncs after one check that this broker
still owns the store.

Invariants
- One thread at a time works on a log. The append queue submits its job again only after its sync stage has ended.
- A log is completed after its own sync, and after the check that follows.
- Logs are served in the order in which they became due, so a busy log does not keep others waiting.
- If a job raises an error, only this job fails (`SyncJob.fail`). The threads and the other jobs continue.
- If the system calls fail with an unexpected error, every file whose result is unknown counts as failed.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from itertools import count
from queue import SimpleQueue
from time import perf_counter
from typing import Protocol

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.metrics.latencies import Latencies
from pyspark_ledger.ledger.segment.file_syncs import FILES_MAX, FileSyncs
from pyspark_ledger.ledger.segment.writer import SegmentWriter, UnsyncedRange

# If at least 8 syncs are running, one of them ends soon and wakes the thread. So `submit` need not wake it.
_SOON = 8
_log = logging.getLogger(__name__)


class SyncJob(ABC):
    """Sync job of one log, and its current sync.

    A pool calls `take` once. Then it calls `begin`, `end` and `answer` for each sync, until `answer` returns False.
    """

    fd = -1
    """File descriptor to sync, or -1 if the current sync needs none."""
    error: Exception | None = None
    """Error of the current sync, or of a step before it."""
    _started_s = 0.0

    def begin(self) -> None:
        """Begin a sync of the taken groups. Sets `fd`."""
        self.fd, self.error = -1, None
        try:
            self.fd = self.begin_sync()
        except Exception as error:  # noqa: BLE001 — reported to the waiting futures
            self.error = error
        self._started_s = perf_counter()

    def end(self, error: Exception | None) -> None:
        """Record the result of the sync. Only an `OSError` marks the file as failed."""
        self.error = error
        try:
            if error is None or isinstance(error, OSError):
                self.end_sync(error, perf_counter() - self._started_s)
        except Exception as raised:  # noqa: BLE001 — reported to the waiting futures
            self.error = raised

    @abstractmethod
    def write(self) -> None:
        """Write the queued appends, and submit the job if it must sync. Called if `LogPool.write` returned True."""

    @abstractmethod
    def take(self) -> bool:
        """Start the job: take groups of entries that were written together, up to `LogPool.sync_bytes`.

        Return False if another thread has started it.
        """

    @abstractmethod
    def begin_sync(self) -> int:
        """Return the file descriptor to sync, or -1 if no sync is needed.

        The sync covers at least the entries of the groups that the job took.
        """

    @abstractmethod
    def unsynced(self) -> UnsyncedRange:
        """Return the bytes that the current sync covers. `begin_sync` has started this sync."""

    @abstractmethod
    def end_sync(self, error: OSError | None, seconds: float) -> None:
        """Record the result and the duration of the sync for which `begin_sync` returned a file descriptor."""

    @abstractmethod
    def answer(self, error: Exception | None) -> bool:
        """Complete the waiting futures, with `error` if it is set. Return whether the log needs another sync."""

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """End the job after an error in one of its steps. Does nothing if another thread runs the job. Never raises."""


Complete = Callable[[list[SyncJob]], list[SyncJob]]
"""Completes the jobs of ended syncs. Returns the jobs that need another sync."""


class LogPool(Protocol):
    """Pool that makes the logs of a store durable."""

    latencies: Latencies
    sync_bytes: int
    """Size of a sync in bytes. A sync takes written groups until they have this size. 0: all written groups."""

    def written(self, file: SegmentWriter) -> None:
        """Prepare the sync of entries that were written during another sync of the same file. Raises no error."""

    def drain(self, file: SegmentWriter) -> None:
        """Wait until no sync reads bytes of a file. Called before the file is truncated."""

    def write(self, job: SyncJob) -> bool:
        """Make a thread of the pool call `SyncJob.write`. Return False if the caller must call it."""

    def submit(self, job: SyncJob) -> None:
        """Queue a job. The caller does not wait."""

    def run_inline(self, job: SyncJob) -> bool:
        """Sync a log once and wait for the result. Return whether the log needs another sync."""

    def close(self) -> None:
        """Run all submitted jobs and end the threads. No job may be submitted afterwards."""


class SyncLoop:
    """Loop of syncs. Its thread starts with the first job."""

    def __init__(self, complete: Complete) -> None:
        self._complete = complete
        self._unwritten: deque[SyncJob] = deque()
        self._waiting: deque[SyncJob] = deque()
        self._due: deque[SyncJob] = deque()
        self._running: dict[int, SyncJob] = {}
        self._numbers = count()
        self._closing = False
        self._signalled = False  # the thread is in a step, or is about to make one
        self._event = -1
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether the thread is at work or a sync is running, so that the thread will look for jobs."""
        return self._signalled or bool(self._running)

    def write(self, job: SyncJob) -> bool:
        """Queue a job whose appends are not written yet. Return False if the thread does not run."""
        if self._thread is None or self._closing:
            return False
        self._unwritten.append(job)
        self._signal()
        return True

    def submit(self, job: SyncJob) -> None:
        """Queue a job. Raises RuntimeError if the thread cannot be started."""
        if self._thread is None:
            self._start()
        self._waiting.append(job)
        self._signal()

    def close(self) -> None:
        """Run all submitted jobs and end the thread. May be called again."""
        with self._start_lock:
            if self._thread is None:
                return
            self._closing = True
            self._wake()
            self._thread.join()
            os.close(self._event)
            self._thread = None

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is not None:
                return
            event = os.eventfd(0)
            thread = threading.Thread(target=self._work, args=(FileSyncs(event),), name="sync-loop", daemon=True)
            self._event = event
            try:
                thread.start()
            except BaseException:
                os.close(event)
                raise
            self._thread = thread

    def _signal(self) -> None:
        """Wake the thread for queued jobs. A job is queued before the check, and the thread looks after it."""
        if not self._signalled and len(self._running) < _SOON:
            self._signalled = True
            self._wake()

    def _wake(self) -> None:
        os.eventfd_write(self._event, 1)

    def _work(self, syncs: FileSyncs) -> None:
        while self._unwritten or self._waiting or self._due or self._running or not self._closing:
            os.eventfd_read(self._event)
            self._signalled = True
            try:
                self._step(syncs)
            except Exception as error:  # noqa: BLE001 — other logs need the thread
                self._fail_all(syncs, error)
            self._signalled = False
            if self._unwritten or self._waiting or self._due:
                self._signal()
        syncs.close()

    def _step(self, syncs: FileSyncs) -> None:
        """Complete the ended syncs, write, and begin the syncs of the logs that are due."""
        ended = self._ended(syncs)
        try:
            for _ in range(len(self._unwritten)):
                self._unwritten.popleft().write()
            self._take_waiting()
            self._begin_due(syncs)
        finally:
            self._finish(ended)
        self._begin_due(syncs)

    def _take_waiting(self) -> None:
        for _ in range(len(self._waiting)):
            job = self._waiting.popleft()
            try:
                if job.take():
                    self._due.append(job)
            except Exception as error:  # noqa: BLE001 — any error fails the job
                job.fail(error)

    def _begin_due(self, syncs: FileSyncs) -> None:
        """Begin the syncs of the due logs. Complete logs whose entries need no sync."""
        room = FILES_MAX - len(self._running)
        started = [self._due.popleft() for _ in range(min(len(self._due), room))]
        for job in started:
            job.begin()
        numbered = {next(self._numbers): job for job in started if job.fd >= 0}
        unsynced = [job for job in started if job.fd < 0]
        self._running.update(numbered)
        try:
            syncs.begin({number: job.fd for number, job in numbered.items()})
        except Exception as error:  # noqa: BLE001 — reported to the log of every file
            self._finish(self._lose(syncs, error))
        self._finish(unsynced)

    def _ended(self, syncs: FileSyncs) -> list[SyncJob]:
        """Return the ended syncs with their results."""
        try:
            ended = syncs.ended()
        except Exception as error:  # noqa: BLE001 — reported to the log of every file
            return self._lose(syncs, error)
        return [self._end(number, error) for number, error in ended]

    def _lose(self, syncs: FileSyncs, error: Exception) -> list[SyncJob]:
        """Return all running syncs as failed, because their results are unknown."""
        _log.error("the sync of %d files failed with an unexpected error", len(self._running), exc_info=error)
        syncs.close()
        self._wake()  # `submit` may have left this to the end of a sync
        unknown = f"the result of the sync is unknown: {error!r}"
        return [self._end(number, OSError(errno.EIO, unknown)) for number in list(self._running)]

    def _end(self, number: int, error: OSError | None) -> SyncJob:
        job = self._running.pop(number)
        job.end(error)
        return job

    def _finish(self, jobs: list[SyncJob]) -> None:
        """Complete the jobs of ended syncs. A log with more groups is due again."""
        try:
            self._due += self._complete(jobs)
        except Exception as error:  # noqa: BLE001 — other logs need the thread
            _fail(jobs, error)

    def _fail_all(self, syncs: FileSyncs, error: Exception) -> None:
        """Fail all jobs that the thread has taken, after an error in a step."""
        jobs = [*self._due, *self._lose(syncs, error)]
        self._due.clear()
        _fail(jobs, error)


def _fail(jobs: list[SyncJob], error: Exception) -> None:
    """End jobs after an unexpected error."""
    _log.error("the sync jobs of %d logs failed with an unexpected error", len(jobs), exc_info=error)
    for job in jobs:
        job.fail(error)


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

    def write(self, job: SyncJob) -> bool:
        """Make the loop call `SyncJob.write`. Return False if the loop is idle, so that the caller is faster."""
        return self._loop.busy and self._loop.write(job)

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
        job.begin()
        if job.fd >= 0:
            job.end(disk.sync_result(job.fd))
        return bool(self._complete([job]))

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

    def _complete(self, jobs: list[SyncJob]) -> list[SyncJob]:
        """Check the epoch once and complete all jobs. Return the jobs that need another sync."""
        fencing_error = self._fencing_error() if jobs else None
        return [job for job in jobs if _answer(job, job.error or fencing_error)]

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
