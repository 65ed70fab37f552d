"""Queue of the appends to one managed ledger. One sync makes many appends durable, because a sync is slow.

Appends pass two stages. Each stage is run by one thread at a time. The *executor* is the store's thread pool.

- Write stage: takes as many queued appends as fit into the open segment (a *group*), and writes them. If the log is
  idle, the thread that appends may run this stage. Otherwise a thread of the executor runs it. Exception: in a store in
  a bucket, appends that arrive during a sync wait in the queue. The end of the sync starts the write stage. The stage
  starts earlier if the waiting appends together have `sync_bytes` bytes, the maximum of one sync.
- Sync stage: performs one sync for all groups written so far, and completes their futures. The stage repeats until
  all written groups are synced. It runs on the store's `SyncPool` while the write stage writes the next groups.

Invariants
- Entries are written and acknowledged in the order of arrival.
- A group contains either appends, or one run, or one change of the log. A *run* has all entries of one committed Spark
  batch. A *change* is for example a rollover or a trim. A run or a change starts only when no other group is in flight
  (written and not yet synced). Exception: a change that concerns only sealed segments does not wait.
- After a failed sync, the failed groups and all groups written after them are retried before later appends.
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
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import LedgerError, Unavailable
from pyspark_ledger.ledger.log.deduplication import SequenceClaim
from pyspark_ledger.ledger.log.staging.direct_run import DirectRun
from pyspark_ledger.ledger.log.staging.opened_part import OpenedPart
from pyspark_ledger.ledger.log.syncs.job import SyncedFile
from pyspark_ledger.ledger.log.syncs.pool import LogPool
from pyspark_ledger.ledger.logs.batch import BatchId, current_batch
from pyspark_ledger.ledger.message.run_marker import CommittedBatch, RunOrigin
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.commits import CommitRun, CommittedRun


class CheckedEntry(NamedTuple):
    """Entry whose checksum was verified, its size in bytes, and the number of rows that readers get from it."""

    data: Buffer
    size: int
    rows: int


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Pending(Generic[T]):
    """Queued item with the future of its caller."""

    future: Future[T] = field(default_factory=Future, kw_only=True)

    def __post_init__(self) -> None:
        # A queued item cannot be cancelled: after this call, `cancel()` of the future returns False.
        self.future.set_running_or_notify_cancel()

    def fail(self, error: LedgerError) -> None:
        """Complete the future with `error`."""
        self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class PendingAppend(Pending[Position]):
    """Queued append: entries that get consecutive ids in one segment.

    `retried` is true after the first failed write or sync. `claim` reserves the sequence ids of the entries
    (`ledger.log.deduplication`). If the reservation was cancelled, the entries are not written. `queued_s` is the time
    of the call, measured by `perf_counter`.
    """

    entries: Sequence[CheckedEntry]
    size: int
    retried: bool = False
    claim: SequenceClaim | None = None
    queued_s: float = field(default_factory=perf_counter)


@dataclass(slots=True, eq=False)
class PendingRun(Pending[CommittedRun]):
    """Queued run: the verified entries of a batch. The writer adds the marker, the entry that ends a run.

    `size` is in bytes and includes the header of each entry in the file. `parts` are set if the staged parts (the files
    of the tasks) become segments (`ledger.log.staging.promotion`). `direct` is set if the parts are data objects in the
    bucket; then the run has no entries here. `batch` is the id of the Spark batch, for messages of Python's `logging`.
    `decided` is the recorded origin of a batch that was judged before, as a batch of several ledgers is.
    """

    request: CommitRun
    entries: Sequence[CheckedEntry]
    size: int
    parts: Sequence[OpenedPart] = ()
    direct: DirectRun | None = None
    decided: RunOrigin | None = None
    batch: BatchId | None = field(default_factory=current_batch)

    def committed(self, first: Position, end: Position, entries: int, rows: int, now_ms: int) -> CommittedBatch:
        """Return the record of the batch, whose entries are `[first, end)`."""
        request, origin = self.request, self.decided or RunOrigin()
        return CommittedBatch(request.query, request.batch, first, end, entries, rows, now_ms, request.once, origin)


@dataclass(slots=True, eq=False)
class PendingChange(Pending[Any]):
    """Queued change of the log itself. The thread of the write stage calls `change`.

    `settled`: the change starts only when no group is in flight. False for a change that concerns only sealed segments.
    """

    change: Callable[[], object]
    settled: bool = True


@dataclass(frozen=True, slots=True)
class Room:
    """Number of entries and bytes that fit before the segment is full. The first item need not fit."""

    entries: int
    size: int


Item = PendingAppend | PendingRun | PendingChange
Group = list[PendingAppend] | PendingRun | PendingChange
Written = TypeVar("Written")
_GROUPS_IN_A_ROW = 8
_UNTIL_RESTART = (
    "Stop the store's broker and connect again, which recovers the log. The store's broker.log has the cause"
)
_log = logging.getLogger(__name__)


class Log(Protocol[Written]):
    """Log that the queue writes to. The write stage calls the methods, unless a method names the sync stage."""

    name: str

    def room(self) -> Room:
        """Return the free room of the open segment."""
        ...

    def write(self, group: list[PendingAppend]) -> Written | None:
        """Write a group, and return the written group. Returns None if all appends of the group failed.

        May call `wait_settled` and `reclaim` of the queue.
        """
        ...

    def items(self, written: list[Written]) -> list[PendingAppend]:
        """Return the appends of the written groups, in order."""
        ...

    def written_during_sync(self, group: Written) -> None:
        """Make the pool prepare the next sync, after a group was written during a sync. Never raises.

        For example, the pool asks the system to start the transfer of the group to the device.
        """
        ...

    def file(self, written: list[Written]) -> SyncedFile | None:
        """Return the file of the written groups, or None if a sync is not allowed. Called in the sync stage."""
        ...

    def settle(self, written: list[Written], error: Exception | None) -> list[PendingAppend]:
        """Complete the futures of the groups after their sync. Return, in order, the appends to retry in a new segment.

        `error` is set if the sync failed or if another broker owns the store. Called in the sync stage.
        """
        ...

    def commit_run(self, run: PendingRun) -> None:
        """Write and sync a run, and complete its future. No other group is in flight."""
        ...

    def make_change(self, change: PendingChange) -> None:
        """Perform a change of the log and complete its future. If the change is `settled`, no group is in flight."""
        ...

    def give_up(self, error: LedgerError) -> None:
        """Seal the open segment at its acknowledged end. No group is in flight, and no group follows. Never raises."""
        ...


class AppendQueue(Generic[Written]):
    """Append queue of one managed ledger."""

    def __init__(self, executor: Executor, pool: LogPool, log: Log[Written]) -> None:
        self._executor = executor
        self._pool = pool
        self._log = log
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[Item] = deque()
        self._written: list[Written] = []
        self._syncing_groups: list[Written] = []
        self._retries: list[PendingAppend] = []
        self._in_progress: list[Item] = []  # items that the write stage has taken and not yet passed to the sync stage
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
            self._waiting.append(item)
            if self._writing or self._may_wait(item):
                return
            self._writing = True
        if here:
            self._run_write_stage()
        else:
            self._submit_write_stage()

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

    def wait_settled(self) -> list[PendingAppend]:
        """Wait until all written groups are synced, and return the appends to retry. Called in the write stage.

        Raises Unavailable if the log was closed after an unexpected error.
        """
        self._sync_if_submitted()
        with self._lock:
            self._changed.wait_for(lambda: not self._syncing)
            if self._given_up is not None:
                raise self._given_up.with_traceback(None)
            retries, self._retries = self._retries, []
            self._in_progress = retries + self._in_progress
            return retries

    def reclaim(self) -> list[PendingAppend]:
        """Take back the written groups whose sync has not started, and wait for the sync in flight.

        Returns, in order, the appends of these groups and of failed syncs: all must be written again. Called in the
        write stage. Raises Unavailable if the log was closed after an unexpected error.
        """
        with self._lock:
            unsynced, self._written = self._log.items(self._written), []
            self._in_progress = unsynced + self._in_progress
        return self.wait_settled() + unsynced

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
            self._run_write_stage()

    def _run_write_stage(self) -> None:
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

    def _write_groups(self) -> bool:
        """Write up to 8 groups. Return whether more groups wait; then the write stage must be submitted again."""
        for _ in range(_GROUPS_IN_A_ROW):
            group = self._next_group()
            if isinstance(group, PendingRun):
                self._log.commit_run(group)
            elif isinstance(group, PendingChange):
                self._log.make_change(group)
            elif group:
                self._submit_sync(self._log.write(group))
            with self._lock:
                self._in_progress = []
                if self._given_up is not None:
                    break
                if not self._waiting and not self._retries:
                    self._writing = False
                    self._changed.notify_all()
                    return False
        else:
            return True
        self._end_given_up(syncing=False)
        return False

    def _submit_sync(self, part: Written | None) -> None:
        """Pass a written group to the sync stage. After a failed sync, first write its appends and the group again."""
        while part is not None:
            with self._lock:
                if self._given_up is not None:
                    raise self._given_up.with_traceback(None)
                retries, self._retries = self._retries, []
                if not retries:
                    self._written.append(part)
                    self._in_progress = []
                    during_sync = self._syncing
                    self._syncing = True
                    self._sync_submitted |= not during_sync
                    break
                self._in_progress = retries + self._in_progress
            # A sync of this group's segment has failed. The appends to retry and this group go to the next segment.
            part = self._log.write(retries + self._log.items([part]))
        else:
            return
        if during_sync:
            self._log.written_during_sync(part)
        else:
            self._pool.submit(self)

    def take(self) -> bool:
        """Start the sync stage with the first written groups. Return False if another thread has started the stage."""
        with self._lock:
            if not self._sync_submitted:
                return False
            self._sync_submitted = False
            self._syncer = threading.get_ident()
            self._syncing_groups = self._take_written()
            return True

    def _take_written(self) -> list[Written]:
        """Remove and return the first written groups, as many as one sync covers. Called with the lock held."""
        count, size, most = 0, 0, self._pool.sync_bytes
        while count < len(self._written) and (not most or size < most):
            size += sum(item.size for item in self._log.items([self._written[count]])) if most else 0
            count += 1
        groups, self._written = self._written[:count], self._written[count:]
        return groups

    def file(self) -> SyncedFile | None:
        """Return the file of the groups in the sync stage, or None if a sync is not allowed."""
        return self._log.file(self._syncing_groups) if self._syncing_groups else None

    def answer(self, error: Exception | None) -> bool:
        """Complete the synced groups and take the groups written since then. Return False if there are none."""
        # The thread may change: `BucketSyncPool` calls `take` and `answer` in different threads.
        self._syncer = threading.get_ident()
        retries = self._log.settle(self._syncing_groups, error) if self._syncing_groups else []
        with self._lock:
            if retries:
                self._retries = retries + self._log.items(self._written)
                self._written = []
            self._syncing_groups = self._take_written()
            more, given_up = bool(self._syncing_groups), self._given_up is not None
            if not more and not given_up:
                self._syncing = False
                self._changed.notify_all()
            starts = not self._writing and not given_up and bool(self._waiting or (self._retries and not more))
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
                message = f"{self._log.name!r} accepts no append until its broker is restarted: {error!r}"
                self._given_up = Unavailable(message, hint=_UNTIL_RESTART)
                self._closed = self._closed or self._given_up
            if self._sync_submitted:  # prevents a thread from starting the sync
                self._sync_submitted = self._syncing = False
        if first:
            _log.error("%s is closed for appends because of an unexpected error", self._log.name, exc_info=error)
        self._end_given_up(syncing=syncing)

    def _end_given_up(self, *, syncing: bool) -> None:
        """End a stage of a failed log: fail the stage's items and all queued items.

        The stage that ends last seals the open segment.
        """
        assert self._given_up is not None  # noqa: S101 — for the type checker
        with self._lock:
            items: list[Item] = [*self._retries, *self._log.items(self._written), *self._waiting]
            if syncing:
                items, self._syncing_groups = [*self._log.items(self._syncing_groups), *items], []
            else:
                items, self._in_progress = [*self._in_progress, *items], []
            self._retries, self._written = [], []
            self._waiting.clear()
            last = not (self._writing if syncing else self._syncing)
        message = f"{self._given_up.message}; it is unknown whether this append or change is in the log"
        try:
            for item in items:
                if not item.future.done():
                    item.fail(Unavailable(message, hint=self._given_up.hint))
            if last:
                self._log.give_up(self._given_up)
        finally:
            with self._lock:
                if syncing:
                    self._syncing = False
                else:
                    self._writing = False
                self._changed.notify_all()

    def _sync_if_submitted(self) -> None:
        """Run the sync stage to its end on this thread, unless another thread has started the stage."""
        more = self.take()
        while more:
            more = self._pool.run_inline(self)

    def _next_group(self) -> Group:
        """Return the appends to retry, or the next queued group if there are none.

        Before a run or a change, waits until all written groups are synced. Exception: a change that concerns only
        sealed segments.
        """
        with self._lock:
            retries, self._retries = self._retries, []
            self._in_progress = list(retries)
            group = retries or self._next_queued()
        if isinstance(group, list) or (isinstance(group, PendingChange) and not group.settled):
            return group
        if retries := self.wait_settled():
            with self._lock:
                self._waiting.appendleft(group)
                self._in_progress = list(retries)
            return retries
        return group

    def _next_queued(self) -> Group:
        """Return the next run or change, or as many queued appends as fit. Called with the lock held."""
        if not self._waiting:
            return []
        self._delayed_bytes = 0
        head = self._waiting.popleft()
        self._in_progress = [head]
        if not isinstance(head, PendingAppend):
            return head
        if not self._waiting:
            return [head]
        room = self._log.room()
        group, entries, size = [head], len(head.entries), head.size
        self._in_progress = group  # type: ignore[assignment]  # contains only appends
        while self._waiting:
            item = self._waiting[0]
            if not isinstance(item, PendingAppend):
                break
            entries += len(item.entries)
            size += item.size
            if entries > room.entries or size > room.size:
                break
            group.append(item)
            self._waiting.popleft()
        return group
