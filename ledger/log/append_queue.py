"""Appends that wait for the disk: while some are synced others are written, and one sync takes all that was written.

Two turns, each held by one thread at a time. The *writing turn* takes what waits and writes it: whoever appends to an
idle log may take it, and leaves it to the executor when others keep coming. The *syncing turn* takes all that was
written so far, syncs it once and answers, for as long as there is more: a thread of the store's crew makes it, step by
step and beside those of other logs (`ledger.log.sync_pool`).

Invariants
- What is taken keeps the order of arrival, through both turns; so order of acknowledgement is order in the log.
- A group holds appends only, or one run only, or one change of the log itself (a rollover, a trim, its end). A run and
  a change are made with nothing in flight before or beside them.
- Appends whose sync failed, and all that was written behind them, are written again before anything that came later.
- Whoever waits in the writing turn for a sync that no thread has begun makes it: were all of the executor's threads to
  wait, none would be left to sync.
- Every few groups the executor's thread goes to whoever has waited longest for one: logs that never fall silent keep
  no other log waiting for ever.
- An error that no step handles gives the log up: each turn fails its own appends and all queued ones, later appends are
  refused, and the last turn to end has the log sealed at its acknowledged end. Nobody waits for a turn that is gone.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import LedgerError, Unavailable
from pyspark_ledger.ledger.log.deduplication import SequenceClaim
from pyspark_ledger.ledger.log.sync_pool import SyncedFile, SyncPool
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.commits import CommitRun, CommittedRun


class CheckedEntry(NamedTuple):
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
    admission: SequenceClaim | None = None


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
_GROUPS_IN_A_ROW = 8
_UNTIL_RESTART = (
    "Stop the store's broker and connect again: the log is recovered. broker.log in the store has the cause"
)
_log = logging.getLogger(__name__)


class Log(Protocol[Written]):
    """What the queue writes to. Where nothing else is said, a call is made in the writing turn."""

    name: str

    def room(self) -> Room:
        """What the ledger that is being written still takes."""
        ...

    def write(self, group: list[PendingAppend]) -> Written | None:
        """Write a group; the answer waits for its sync. None when all of it was told that it failed.

        May call `wait_settled` and `reclaim` of the queue.
        """
        ...

    def items(self, written: list[Written]) -> list[PendingAppend]:
        """The appends of what was written, in order."""
        ...

    def file(self, written: list[Written]) -> SyncedFile | None:
        """In the syncing turn: the file that holds what was written, None if it need not be synced."""
        ...

    def settle(self, written: list[Written], error: Exception | None) -> list[PendingAppend]:
        """In the syncing turn, after the sync: answer; returns, in order, what must be written again in a new ledger.

        With an `error` nothing of it is durable, or it is not ours any more.
        """
        ...

    def commit_run(self, run: PendingRun) -> None:
        """Write, sync and answer a run, while nothing else is in flight."""
        ...

    def make_change(self, change: PendingChange) -> None:
        """Make and answer a change of the log, while nothing is in flight."""
        ...

    def give_up(self, error: LedgerError) -> None:
        """Seal the log at its acknowledged end, while nothing is in flight and nothing will be. Raises nothing."""
        ...


class AppendQueue(Generic[Written]):
    """The queue of one managed ledger."""

    def __init__(self, executor: Executor, crew: SyncPool, log: Log[Written]) -> None:
        self._executor = executor
        self._crew = crew
        self._log = log
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[Item] = deque()
        self._written: list[Written] = []
        self._taken: list[Written] = []
        self._again: list[PendingAppend] = []
        self._hand: list[Item] = []  # what the writing turn has taken and passed on to nobody
        self._writing = self._syncing = False
        self._write_asked = False  # of the executor, which has not come to it
        self._sync_asked = False  # of the crew, which has not come to it
        self._syncer = 0  # the thread that has the syncing turn
        self._closed: Unavailable | None = None
        self._given_up: Unavailable | None = None

    def put(self, item: Item, *, here: bool = False) -> None:
        """Queue an item, and see to it that somebody writes.

        With `here` the caller does, where nobody else is at it. It must hold nothing that an answer may wait for.
        """
        with self._lock:
            if self._closed is not None:
                raise self._closed.with_traceback(None)
            self._waiting.append(item)
            if self._writing:
                return
            self._writing = True
        if here:
            self._write_turn()
        else:
            self._hand_over()

    def close(self, reason: str) -> None:
        """Refuse what comes from now on with `reason`, and wait until all that was queued is settled."""
        with self._lock:
            self._closed = self._closed or Unavailable(reason)
            self._changed.wait_for(lambda: not self._writing and not self._syncing)

    def wait_settled(self) -> list[PendingAppend]:
        """In the writing turn: wait until all that was written is synced; returns what must be written again.

        Raises Unavailable once the log is given up.
        """
        self._sync_if_asked()
        with self._lock:
            self._changed.wait_for(lambda: not self._syncing)
            if self._given_up is not None:
                raise self._given_up.with_traceback(None)
            again, self._again = self._again, []
            self._hand = again + self._hand
            return again

    def reclaim(self) -> list[PendingAppend]:
        """In the writing turn: take back what no sync has taken yet, wait for the sync in flight.

        Returns all that must be written again, in order. Raises Unavailable once the log is given up.
        """
        with self._lock:
            back, self._written = self._log.items(self._written), []
            self._hand = back + self._hand
        return self.wait_settled() + back

    def _hand_over(self) -> None:
        """Have the executor go on with the writing turn."""
        with self._lock:
            self._write_asked = True
        try:
            self._executor.submit(self._write_if_asked)
        except Exception as error:  # noqa: BLE001 — without a thread for it the log would stand still
            with self._lock:
                asked, self._write_asked = self._write_asked, False
            if asked:  # an executor may refuse with an error what one of its threads takes all the same
                self._fail_all(error)

    def _write_if_asked(self) -> None:
        with self._lock:
            asked, self._write_asked = self._write_asked, False
        if asked:
            self._write_turn()

    def _write_turn(self) -> None:
        try:
            more = self._write_groups()
        except BaseException as error:
            self.fail(error)  # if it came from a sync that this thread made
            self._fail_all(error)
            if not isinstance(error, Exception):
                raise
        else:
            if more:
                self._hand_over()

    def _write_groups(self) -> bool:
        """Write a few groups; false at the turn's end."""
        for _ in range(_GROUPS_IN_A_ROW):
            group = self._next_group()
            if isinstance(group, PendingRun):
                self._log.commit_run(group)
            elif isinstance(group, PendingChange):
                self._log.make_change(group)
            elif group:
                self._to_be_synced(self._log.write(group))
            with self._lock:
                self._hand = []
                if self._given_up is not None:
                    break
                if not self._waiting and not self._again:
                    self._writing = False
                    self._changed.notify_all()
                    return False
        else:
            return True
        self._end_given_up(syncing=False)
        return False

    def _to_be_synced(self, part: Written | None) -> None:
        while part is not None:
            with self._lock:
                if self._given_up is not None:
                    raise self._given_up.with_traceback(None)
                again, self._again = self._again, []
                if not again:
                    self._written.append(part)
                    self._hand = []
                    if self._syncing:
                        return
                    self._syncing = self._sync_asked = True
                    break
                self._hand = again + self._hand
            # The ledger that it was written to has been given up: it goes to the next one, behind what was before it.
            part = self._log.write(again + self._log.items([part]))
        else:
            return
        self._crew.ask(self)

    def take(self) -> bool:
        """Take the syncing turn and all that was written, unless another thread has since it was asked for."""
        with self._lock:
            if not self._sync_asked:
                return False
            self._sync_asked = False
            self._syncer = threading.get_ident()
            self._taken, self._written = self._written, []
            return True

    def file(self) -> SyncedFile | None:
        """In the syncing turn: the file that holds what was taken."""
        return self._log.file(self._taken) if self._taken else None

    def answer(self, error: Exception | None) -> bool:
        """In the syncing turn: answer what was taken, and take what was written meanwhile; false at the turn's end."""
        again = self._log.settle(self._taken, error) if self._taken else []
        with self._lock:
            if again:
                self._again = again + self._log.items(self._written)
                self._written = []
            self._taken, self._written = self._written, []
            if self._taken:
                return True
            if self._given_up is None:
                self._syncing = False
                self._changed.notify_all()
                if self._writing or not self._again:
                    return False
                self._writing = True
        if self._given_up is not None:
            self._end_given_up(syncing=True)
        else:
            self._hand_over()
        return False

    def fail(self, error: BaseException) -> None:
        """In the syncing turn: give the log up. Does nothing if another thread has the turn, or none has."""
        with self._lock:
            if not self._syncing or self._sync_asked or self._syncer != threading.get_ident():
                return
        self._fail_all(error, syncing=True)

    def _fail_all(self, error: BaseException, *, syncing: bool = False) -> None:
        """Give the log up because of an error that one of its turns did not handle, and end that turn."""
        with self._lock:
            first = self._given_up is None
            if first:
                message = f"{self._log.name!r} is given up until its broker is started again: {error!r}"
                self._given_up = Unavailable(message, hint=_UNTIL_RESTART)
                self._closed = self._closed or self._given_up
            if self._sync_asked:  # of nobody any more
                self._sync_asked = self._syncing = False
        if first:
            _log.error("%s is given up, an error was not handled", self._log.name, exc_info=error)
        self._end_given_up(syncing=syncing)

    def _end_given_up(self, *, syncing: bool) -> None:
        """End a turn of a log that was given up: fail what it has and what is queued. The last turn seals the log."""
        assert self._given_up is not None  # noqa: S101 — told to the type checker
        with self._lock:
            left: list[Item] = [*self._again, *self._log.items(self._written), *self._waiting]
            if syncing:
                left, self._taken = [*self._log.items(self._taken), *left], []
            else:
                left, self._hand = [*self._hand, *left], []
            self._again, self._written = [], []
            self._waiting.clear()
            last = not (self._writing if syncing else self._syncing)
        message = f"{self._given_up.message}; whether this append or change is in the log is not known"
        try:
            for item in left:
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

    def _sync_if_asked(self) -> None:
        """Take the syncing turn to its end, unless another thread has taken it since it was asked for."""
        more = self.take()
        while more:
            more = self._crew.make_here(self)

    def _next_group(self) -> Group:
        """What must be written again, else what waits; a run or a change only when nothing is in flight."""
        with self._lock:
            again, self._again = self._again, []
            self._hand = list(again)
            group = again or self._take()
        if not isinstance(group, list) and (again := self.wait_settled()):
            with self._lock:
                self._waiting.appendleft(group)
                self._hand = list(again)
            return again
        return group

    def _take(self) -> Group:
        if not self._waiting:
            return []
        head = self._waiting.popleft()
        self._hand = [head]
        if not isinstance(head, PendingAppend):
            return head
        if not self._waiting:
            return [head]
        room = self._log.room()
        group, entries, size = [head], len(head.entries), head.size
        self._hand = group  # type: ignore[assignment]  # nothing but appends is put into it
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
