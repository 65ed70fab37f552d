"""Sync of one log: the job that the append queue submits to a pool, the file to sync, and the sync while it runs.

    take          the job takes the written groups       file, begin_sync    the groups name their file
    end_sync      the file gets the result               answer              the futures are completed

Invariants
- One thread at a time works on a log. The append queue submits its job again only after its sync stage has ended.
- `SyncJob.take` returns False if another thread has already started the job.
- An error of one file is the error of its log only.
"""

from __future__ import annotations

from typing import Protocol

from pyspark_ledger.ledger.segment.writer import UnsyncedRange


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


class RunningSync:
    """Sync of one log. `error` is the error of the sync, or of a step before the sync."""

    __slots__ = ("_file", "error", "fd", "job")

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
