"""Queue of the appends to one managed ledger. One sync makes many appends durable, because a sync is slow.

Appends pass two stages. Each stage is run by one thread at a time. The *executor* is the store's thread pool.

- Write stage: takes as many queued appends as fit into the open segment (a *group*), and writes them. If the log is
  idle, the thread that appends may run this stage. If the pool syncs other logs meanwhile, the pool's thread runs it
  for a small append. Otherwise a thread of the executor runs it. Exception: in a store in a bucket, appends that
  arrive during a sync wait in the queue. The end of the sync starts the write stage. The stage starts earlier if the
  waiting appends together have `sync_bytes` bytes, the maximum of one sync.
- Sync stage: performs one sync for all groups written so far, and completes their futures. The stage repeats until
  all written groups are synced. It runs on the store's `SyncPool` while the write stage writes the next groups.

Invariants
- Entries are written and acknowledged in the order of arrival (`ledger.log.groups`).
- A run or a change starts only when no other group is in flight (written and not yet synced). Exception: a change that
  concerns only sealed segments does not wait.
- After a failed sync, the failed groups and all groups written after them are retried before later appends. The writer
  decides which appends are retried (`LogWriter._failed`).
- If the write stage must wait for a sync that no thread has started, it performs the sync itself. Reason: otherwise all
  threads could wait for a sync, and none would be left to sync.
- After 8 groups the write stage goes to the end of the executor's queue. Reason: a busy log must not starve other logs.
- An unexpected error that ends a stage closes the log for writes: later appends are refused. Each stage fails its own
  appends and all queued appends, so that no caller waits for ever. The stage that ends last seals the open segment at
  the acknowledged end.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Executor

from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.log.groups import Groups
from pyspark_ledger.ledger.log.pending import Group, Item, PendingAppend, PendingChange, PendingRun, Written
from pyspark_ledger.ledger.log.sync_pool import LogPool, SyncJob
from pyspark_ledger.ledger.log.writer import LogWriter
from pyspark_ledger.ledger.segment.writer import UnsyncedRange

_GROUPS_IN_A_ROW = 8
_QUICK_BYTES_MAX = 256 * 1024
_UNTIL_RESTART = (
    "Stop the store's broker and connect again, which recovers the log. The store's broker.log has the cause"
)
_log = logging.getLogger(__name__)


class AppendQueue(SyncJob):
    """Append queue of one managed ledger. It drives the log's writer, and is the log's job in the pool of syncs."""

    def __init__(self, executor: Executor, pool: LogPool, writer: LogWriter) -> None:
        self._executor = executor
        self._pool = pool
        self._writer = writer
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._groups = Groups()
        self._delayed_bytes = 0  # bytes of the appends that wait for the end of the sync
        self._writing = self._syncing = False
        self._write_submitted = False  # the executor has the write stage in its queue and has not started it
        self._sync_submitted = False  # the pool has the sync stage in its queue and has not started it
        self._syncer = 0  # id of the thread in the sync stage
        self._closed: Unavailable | None = None
        self._given_up: Unavailable | None = None

    def put(self, item: Item, *, here: bool = False) -> None:
        """Queue an item and start the write stage if no thread runs it. Raises Unavailable after `close`.

        With `here` the calling thread runs the write stage, which may call the callbacks of futures. So the caller
        must not hold a lock that a callback acquires.
        """
        with self._lock:
            if self._closed is not None:
                raise self._closed.with_traceback(None)
            self._groups.put(item)
            if self._writing or self._may_wait(item):
                return
            self._writing = True
            idle = not self._syncing
        if not here:
            self._submit_write_stage()
        elif not (idle and self._is_quick(item) and self._pool.write(self)):
            self.write()

    def write(self) -> None:
        """Run the write stage. Raises no `Exception`."""
        try:
            more = self._write_groups()
        except BaseException as error:
            self.fail(error)  # does nothing unless this thread also runs the sync stage
            self._fail_all(error)
            if not isinstance(error, Exception):
                raise
        else:
            if more:
                self._submit_write_stage()

    def _is_quick(self, item: Item) -> bool:
        """Return whether the write of an item takes little time, so that other logs can wait for it.

        A rollover takes long, because it syncs two files.
        """
        return isinstance(item, PendingAppend) and item.size <= _QUICK_BYTES_MAX and self._writer.is_writable()

    def _may_wait(self, item: Item) -> bool:
        """Return whether an append waits in the queue until the sync ends. Called with the lock held.

        The end of the sync starts the write stage. Reason for the wait: the write stage takes the same time for one
        append as for many.
        """
        most = self._pool.sync_bytes
        if not most or not self._syncing or not isinstance(item, PendingAppend):
            return False
        self._delayed_bytes += item.size
        return self._delayed_bytes < most

    def close(self, reason: str) -> None:
        """Refuse new items with `reason`, and wait until all queued items are completed."""
        with self._lock:
            self._closed = self._closed or Unavailable(reason)
            self._changed.wait_for(lambda: not self._writing and not self._syncing)

    def _settled(self, broken: bool) -> list[PendingAppend]:
        """Wait until all written groups are synced, and return the appends to write again, in order.

        If the segment is `broken`, the groups whose sync has not started are among them. Called in the write stage,
        also by the writer. Raises Unavailable if the log was closed after an unexpected error.
        """
        unsynced: list[PendingAppend] = []
        if broken:
            with self._lock:
                unsynced = self._groups.take_back()
        more = self.take()  # the sync stage, unless another thread has started it
        while more:
            more = self._pool.run_inline(self)
        with self._lock:
            self._changed.wait_for(lambda: not self._syncing)
            if self._given_up is not None:
                raise self._given_up.with_traceback(None)
            return self._groups.take_retries() + unsynced

    def _submit_write_stage(self) -> None:
        """Submit the write stage to the executor."""
        with self._lock:
            self._write_submitted = True
        try:
            self._executor.submit(self._write_if_submitted)
        except Exception as error:  # noqa: BLE001 — after any error, no thread would run the write stage
            with self._lock:
                submitted, self._write_submitted = self._write_submitted, False
            if submitted:  # False if the executor has started the stage although `submit` raised
                self._fail_all(error)

    def _write_if_submitted(self) -> None:
        with self._lock:
            submitted, self._write_submitted = self._write_submitted, False
        if submitted:
            self.write()

    def _write_groups(self) -> bool:
        """Write up to 8 groups. Return whether more groups wait; then the write stage must be submitted again."""
        for _ in range(_GROUPS_IN_A_ROW):
            group = self._next_group()
            if isinstance(group, PendingRun):
                self._writer.commit_run(group)
            elif isinstance(group, PendingChange):
                self._writer.make_change(group)
            elif group:
                self._submit_sync(self._writer.write(group, self._settled))
            with self._lock:
                self._groups.completed()
                if self._given_up is not None:
                    break
                if not self._groups.waits:
                    self._writing = False
                    self._changed.notify_all()
                    return False
        else:
            return True
        self._end_given_up(syncing=False)
        return False

    def _next_group(self) -> Group:
        """Return the appends to retry, or the next queued group if there are none.

        Before a run or a change, waits until all written groups are synced. Exception: a change that concerns only
        sealed segments.
        """
        with self._lock:
            self._delayed_bytes = 0
            group = self._groups.take(self._writer.room)
        if isinstance(group, list) or (isinstance(group, PendingChange) and not group.settled):
            return group
        if retries := self._settled(False):
            with self._lock:
                self._groups.put_back(group)
            return retries
        return group

    def _submit_sync(self, part: Written | None) -> None:
        """Pass a written group to the sync stage. After a failed sync, first write its appends and the group again."""
        while part is not None:
            with self._lock:
                if self._given_up is not None:
                    raise self._given_up.with_traceback(None)
                retries = self._groups.take_retries()
                if not retries:
                    self._groups.wrote(part)
                    during_sync = self._syncing
                    self._syncing = True
                    self._sync_submitted |= not during_sync
                    break
            # A sync of this group's segment has failed. The appends to retry and this group go to the next segment.
            part = self._writer.write(retries + part.group, self._settled)
        else:
            return
        if during_sync:
            self._pool.written(part.ledger)
        else:
            self._pool.submit(self)

    def take(self) -> bool:
        """Start the sync stage with the first written groups. Return False if another thread has started the stage."""
        with self._lock:
            if not self._sync_submitted:
                return False
            self._sync_submitted = False
            self._syncer = threading.get_ident()
            self._groups.begin_sync(self._pool.sync_bytes)
            return True

    def begin_sync(self) -> int:
        """Return the file descriptor to sync for the groups in the sync stage, or -1 if there is nothing to sync."""
        groups = self._groups.syncing
        return self._writer.begin_sync(groups) if groups else -1

    def unsynced(self) -> UnsyncedRange:
        """Return the bytes that the current sync covers."""
        return self._groups.syncing[-1].ledger.unsynced()

    def end_sync(self, error: OSError | None, seconds: float) -> None:
        """Record the result of the sync that `begin_sync` started, and its duration."""
        self._writer.end_sync(self._groups.syncing, error, seconds)

    def answer(self, error: Exception | None) -> bool:
        """Complete the synced groups and take the groups written since then. Return False if there are none."""
        # The thread may change: `BucketSyncPool` calls `take` and `answer` in different threads.
        self._syncer = threading.get_ident()
        groups = self._groups.syncing
        retries = self._writer.settle(groups, error) if groups else []
        with self._lock:
            self._groups.end_sync(retries)
            self._groups.begin_sync(self._pool.sync_bytes)
            more, given_up = bool(self._groups.syncing), self._given_up is not None
            if not more and not given_up:
                self._syncing = False
                self._changed.notify_all()
            starts = not self._writing and not given_up and self._groups.waits
            self._writing |= starts
        if starts:
            self._submit_write_stage()
        elif given_up and not more:
            self._end_given_up(syncing=True)
        return more

    def fail(self, error: BaseException) -> None:
        """Close the log after an error in the sync stage. Does nothing unless this thread runs the sync stage."""
        with self._lock:
            if not self._syncing or self._sync_submitted or self._syncer != threading.get_ident():
                return
        self._fail_all(error, syncing=True)

    def _fail_all(self, error: BaseException, *, syncing: bool = False) -> None:
        """Close the log for writes after an unexpected error of a stage, and end this stage."""
        with self._lock:
            first = self._given_up is None
            if first:
                message = f"{self._writer.name!r} accepts no append until its broker is restarted: {error!r}"
                self._given_up = Unavailable(message, hint=_UNTIL_RESTART)
                self._closed = self._closed or self._given_up
            if self._sync_submitted:  # prevents a thread from starting the sync
                self._sync_submitted = self._syncing = False
        if first:
            _log.error("%s is closed for appends because of an unexpected error", self._writer.name, exc_info=error)
        self._end_given_up(syncing=syncing)

    def _end_given_up(self, *, syncing: bool) -> None:
        """End a stage of a failed log: fail the stage's items and all queued items.

        The stage that ends last seals the open segment.
        """
        assert self._given_up is not None  # noqa: S101 — for the type checker
        with self._lock:
            items = self._groups.fail(syncing=syncing)
            last = not (self._writing if syncing else self._syncing)
        message = f"{self._given_up.message}; it is unknown whether this append or change is in the log"
        try:
            for item in items:
                if not item.future.done():
                    item.fail(Unavailable(message, hint=self._given_up.hint))
            if last:
                self._writer.give_up(self._given_up)
        finally:
            with self._lock:
                if syncing:
                    self._syncing = False
                else:
                    self._writing = False
                self._changed.notify_all()
