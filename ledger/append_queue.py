"""Appends that wait for the disk: while one group is synced the next is written, and one sync takes all that gathered.

Two turns, each held by one thread at a time. The *writing turn* takes what waits and writes it, also while a sync is in
flight; when that sync is over, the same thread takes the *syncing turn*, gives the writing turn away, and syncs all
that was written. So a lone append is written and synced by one thread, and a busy log writes and syncs at once.

Invariants
- What is taken keeps the order of arrival, through both turns; so order of acknowledgement is order in the log.
- A group holds appends only, or one run only, or one change of the log itself (a rollover, a trim, its end). A run and
  a change are made with nothing in flight before or beside them.
- Appends whose sync failed are written again before anything that came later.
- After each group the thread goes to whoever has waited longest for one: logs that never fall silent keep no other
  log waiting for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ledger.deduplication import Admission
from ledger.entry import Buffer
from ledger.errors import LedgerError, Unavailable
from ledger.position import Position
from ledger.protocol import CommitRun, CommittedRun


@dataclass(frozen=True, slots=True)
class CheckedEntry:
    """An entry whose checksum was verified, and the rows that a reader will get from it."""

    data: Buffer
    size: int
    rows: int


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Pending(Generic[T]):
    """Something that waits for the disk, and whoever waits for it."""

    future: Future[T] = field(default_factory=Future, kw_only=True)

    def __post_init__(self) -> None:
        # What is on its way to the disk cannot be called back: `cancel` of the caller's future says so.
        self.future.set_running_or_notify_cancel()

    def fail(self, error: LedgerError) -> None:
        """Tell the waiter that it did not happen, or that nobody knows."""
        self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class PendingAppend(Pending[Position]):
    """Entries that get consecutive ids in one ledger. `tried`: the disk has failed them once already.

    With an `admission` they are written only while that stands.
    """

    entries: Sequence[CheckedEntry]
    size: int
    tried: bool = False
    admission: Admission | None = None


@dataclass(slots=True, eq=False)
class PendingRun(Pending[CommittedRun]):
    """A run: the verified entries of a batch, to be closed by a marker. `size` is in bytes, frames included."""

    request: CommitRun
    entries: Sequence[CheckedEntry]
    size: int


@dataclass(slots=True, eq=False)
class PendingChange(Pending[Any]):
    """A change of the log itself, made by the thread that has the writing turn."""

    change: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Room:
    """How much a group may take before the ledger is full. At least one item always fits."""

    entries: int
    size: int


Item = PendingAppend | PendingRun | PendingChange
Group = list[PendingAppend] | PendingRun | PendingChange
Written = TypeVar("Written")


class Log(Protocol[Written]):
    """What the queue writes to. All but `settle` are called in the writing turn."""

    def room(self) -> Room:
        """What the ledger that is being written still takes."""
        ...

    def write(self, before: list[Written], group: list[PendingAppend]) -> list[Written]:
        """Write a group behind what was written before and is not synced; returns all that is to be synced now.

        Whoever is not in the answer was told that it failed. May call `AppendQueue.wait_settled`.
        """
        ...

    def items(self, written: list[Written]) -> list[PendingAppend]:
        """The appends of what was written, in order."""
        ...

    def settle(self, written: list[Written]) -> list[PendingAppend]:
        """In the syncing turn: sync and answer; returns, in order, what must be written again in a new ledger."""
        ...

    def commit_run(self, run: PendingRun) -> None:
        """Write, sync and answer a run, while nothing else is in flight."""
        ...

    def make_change(self, change: PendingChange) -> None:
        """Make and answer a change of the log, while nothing is in flight."""
        ...


class AppendQueue(Generic[Written]):
    """The queue of one managed ledger; its turns are taken on the executor's threads."""

    def __init__(self, executor: Executor, log: Log[Written]) -> None:
        self._executor = executor
        self._log = log
        self._waiting: deque[Item] = deque()
        self._again: list[PendingAppend] = []
        self._changed = threading.Condition()
        self._writing = self._syncing = False
        self._closed = ""

    def put(self, item: Item) -> None:
        """Queue an item and see to it that somebody writes."""
        with self._changed:
            if self._closed:
                raise Unavailable(self._closed)
            self._waiting.append(item)
            if self._writing:
                self._changed.notify_all()
                return
            self._writing = True
        self._executor.submit(self._take_turns)

    def close(self, reason: str) -> None:
        """Refuse what comes from now on with `reason`, and wait until all that was queued is settled."""
        with self._changed:
            self._closed = reason
            self._changed.wait_for(lambda: not self._writing and not self._syncing)

    def wait_settled(self) -> list[PendingAppend]:
        """In the writing turn: wait for the sync in flight; returns what must be written again before all else."""
        with self._changed:
            self._changed.wait_for(lambda: not self._syncing)
            again, self._again = self._again, []
            return again

    def _take_turns(self) -> None:
        group = self._next_group()
        if not isinstance(group, list):
            if isinstance(group, PendingRun):
                self._log.commit_run(group)
            else:
                self._log.make_change(group)
            self._pass_writing_on(syncing=False)
            return
        written = self._write_until_settled(group)
        self._pass_writing_on(syncing=bool(written))
        if written:
            self._settle(written)

    def _pass_writing_on(self, *, syncing: bool) -> None:
        with self._changed:
            self._syncing = syncing
            self._writing = bool(self._waiting)
            self._changed.notify_all()
            if not self._writing:
                return
        self._executor.submit(self._take_turns)

    def _settle(self, written: list[Written]) -> None:
        again = self._log.settle(written)
        with self._changed:
            self._again += again
            self._syncing = False
            self._changed.notify_all()
            if self._writing or not again:
                return
            self._writing = True
        self._executor.submit(self._take_turns)

    def _next_group(self) -> Group:
        """What must be written again, else what waits; a run or a change only when nothing is in flight."""
        with self._changed:
            again, self._again = self._again, []
            group = again or self._take()
        if not isinstance(group, list) and (again := self.wait_settled()):
            with self._changed:
                self._waiting.appendleft(group)
            return again
        return group

    def _write_until_settled(self, group: list[PendingAppend]) -> list[Written]:
        """Write the group, and what arrives during the sync before it; returns when that sync is over."""
        written = self._log.write([], group)
        over = False
        while not over:
            with self._changed:
                self._changed.wait_for(lambda: not self._syncing or self._takes_more())
                over = not self._syncing
                again, self._again = self._again, []
                more = self._take() if not again and self._takes_more() else []
            if again:
                # The ledger that all of this went to is given up: everything goes to the next one, in order.
                written = self._log.write([], again + self._log.items(written))
            elif isinstance(more, list) and more:
                written = self._log.write(written, more)
        return written

    def _takes_more(self) -> bool:
        """Whether what waits longest is an append that the ledger has room for."""
        if not self._waiting or not isinstance(self._waiting[0], PendingAppend):
            return False
        room, item = self._log.room(), self._waiting[0]
        return len(item.entries) <= room.entries and item.size <= room.size

    def _take(self) -> Group:
        head = self._waiting.popleft()
        if not isinstance(head, PendingAppend):
            return head
        room = self._log.room()
        group, entries, size = [head], len(head.entries), head.size
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
