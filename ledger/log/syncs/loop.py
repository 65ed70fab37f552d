"""Thread that has the syncs of many logs in flight, and answers the appends of each log after its own sync.

    waiting ──take──▶ due ──begin──▶ running ──end──▶ completed      a log with more groups is due again

To *complete* a log is to answer the appends that its sync covers. A *group* is entries that were written together.

The thread sleeps until the kernel signals the end of a sync, or `submit` signals a job. A step of the thread completes
all ended syncs after one check that this broker still owns the store.

Invariants
- A log is completed after its own sync, and after the check that follows.
- Logs are served in the order in which they became due, so a busy log does not keep others waiting.
- If the system calls fail with an unexpected error, every file whose result is unknown counts as failed.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from itertools import count

from pyspark_ledger.ledger.log.syncs.job import RunningSync, SyncJob
from pyspark_ledger.ledger.segment.file_syncs import FILES_MAX, FileSyncs

Complete = Callable[[list[RunningSync]], list[SyncJob]]
"""Completes the jobs of ended syncs. Returns the jobs that need another sync."""
# If at least 8 syncs are running, one of them ends soon and wakes the thread. So `submit` need not wake it.
_SOON = 8
_log = logging.getLogger(__name__)


class SyncLoop:
    """Loop of syncs. Its thread starts with the first job."""

    def __init__(self, complete: Complete) -> None:
        self._complete = complete
        self._waiting: deque[SyncJob] = deque()
        self._due: deque[SyncJob] = deque()
        self._running: dict[int, RunningSync] = {}
        self._numbers = count()
        self._closing = False
        self._event = -1
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether a sync is running, so that the thread will look for jobs."""
        return bool(self._running)

    def submit(self, job: SyncJob) -> None:
        """Queue a job. Raises RuntimeError if the thread cannot be started."""
        if self._thread is None:
            self._start()
        # Queued before the check of `_running`. A sync that ends after the check wakes the thread, which finds the job.
        self._waiting.append(job)
        if len(self._running) < _SOON:
            self._wake()

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

    def _wake(self) -> None:
        os.eventfd_write(self._event, 1)

    def _work(self, syncs: FileSyncs) -> None:
        while self._waiting or self._due or self._running or not self._closing:
            os.eventfd_read(self._event)
            try:
                self._step(syncs)
            except Exception as error:  # noqa: BLE001 — other logs need the thread
                self._fail_all(syncs, error)
        syncs.close()

    def _step(self, syncs: FileSyncs) -> None:
        """Complete the ended syncs, and begin the syncs of the logs that are due."""
        ended = self._ended(syncs)
        self._take_waiting()
        self._begin_due(syncs)
        self._finish(ended)
        self._begin_due(syncs)
        if self._due and len(self._running) < FILES_MAX:
            self._wake()

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
        started = [RunningSync(self._due.popleft()) for _ in range(min(len(self._due), room))]
        numbered = {next(self._numbers): sync for sync in started if sync.fd >= 0}
        self._running.update(numbered)
        try:
            syncs.begin({number: sync.fd for number, sync in numbered.items()})
        except Exception as error:  # noqa: BLE001 — reported to the log of every file
            self._finish(self._lose(syncs, error))
        self._finish([sync for sync in started if sync.fd < 0])

    def _ended(self, syncs: FileSyncs) -> list[RunningSync]:
        """Return the ended syncs with their results."""
        try:
            ended = syncs.ended()
        except Exception as error:  # noqa: BLE001 — reported to the log of every file
            return self._lose(syncs, error)
        return [self._end(number, error) for number, error in ended]

    def _lose(self, syncs: FileSyncs, error: Exception) -> list[RunningSync]:
        """Return all running syncs as failed, because their results are unknown."""
        _log.error("the sync of %d files failed with an unexpected error", len(self._running), exc_info=error)
        syncs.close()
        self._wake()  # `submit` may have left this to the end of a sync
        unknown = f"the result of the sync is unknown: {error!r}"
        return [self._end(number, OSError(errno.EIO, unknown)) for number in list(self._running)]

    def _end(self, number: int, error: OSError | None) -> RunningSync:
        sync = self._running.pop(number)
        sync.end(error)
        return sync

    def _finish(self, syncs: list[RunningSync]) -> None:
        """Complete the jobs of ended syncs. A log with more groups is due again."""
        try:
            self._due += self._complete(syncs)
        except Exception as error:  # noqa: BLE001 — other logs need the thread
            _fail([sync.job for sync in syncs], error)

    def _fail_all(self, syncs: FileSyncs, error: Exception) -> None:
        """Fail all jobs that the thread has taken, after an error in a step."""
        jobs = [*self._due, *(sync.job for sync in self._lose(syncs, error))]
        self._due.clear()
        _fail(jobs, error)


def _fail(jobs: list[SyncJob], error: Exception) -> None:
    """End jobs after an unexpected error."""
    _log.error("the sync jobs of %d logs failed with an unexpected error", len(jobs), exc_info=error)
    for job in jobs:
        job.fail(error)
