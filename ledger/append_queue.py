"""Appends that wait for the disk: one sync for all of them, taken by the sync in flight and not by a timer.

Invariants
- What is taken keeps the order of arrival; so order of acknowledgement is order in the log.
- A group holds appends only, or one run only: nothing is written between the entries of a run.
- At most one thread drains a queue. While it syncs, later appends gather here and become the next group.
- After each group the thread goes to whoever has waited longest for one: logs that never fall silent keep no other
  log waiting for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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
    """Entries that get consecutive ids in one ledger."""

    entries: Sequence[CheckedEntry]
    size: int


@dataclass(slots=True, eq=False)
class PendingRun(Pending[CommittedRun]):
    """A run: the verified entries of a batch, to be closed by a marker. `size` is in bytes, frames included."""

    request: CommitRun
    entries: Sequence[CheckedEntry]
    size: int


@dataclass(frozen=True, slots=True)
class Room:
    """How much a group may take before the ledger is full. At least one item always fits."""

    entries: int
    size: int


class AppendQueue:
    """The queue of one managed ledger; `commit` is called with one group at a time, on the executor's threads."""

    def __init__(self, executor: Executor, room: Callable[[], Room], commit: Callable[[Group], None]) -> None:
        self._executor = executor
        self._room = room
        self._commit = commit
        self._waiting: deque[PendingAppend | PendingRun] = deque()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._draining = False
        self._closed = ""

    def put(self, item: PendingAppend | PendingRun) -> None:
        """Queue an item and see to it that somebody drains."""
        with self._lock:
            if self._closed:
                raise Unavailable(self._closed)
            self._waiting.append(item)
            if self._draining:
                return
            self._draining = True
        self._executor.submit(self._drain)

    def close(self, reason: str) -> None:
        """Refuse what comes from now on with `reason`, and wait until all that was queued is settled."""
        with self._idle:
            self._closed = reason
            self._idle.wait_for(lambda: not self._draining)

    def _drain(self) -> None:
        room = self._room()
        with self._idle:
            group = self._take(room)
        if group is not None:
            self._commit(group)
        with self._idle:
            if not self._waiting:
                self._draining = False
                self._idle.notify_all()
                return
        self._executor.submit(self._drain)

    def _take(self, room: Room) -> Group | None:
        if not self._waiting:
            return None
        head = self._waiting.popleft()
        if isinstance(head, PendingRun):
            return head
        group, entries, size = [head], len(head.entries), head.size
        while self._waiting:
            item = self._waiting[0]
            if isinstance(item, PendingRun):
                break
            entries += len(item.entries)
            size += item.size
            if entries > room.entries or size > room.size:
                break
            group.append(item)
            self._waiting.popleft()
        return group


Group = list[PendingAppend] | PendingRun
