"""Watch of a client: one waiting call to the broker for all readers of this process that wait for new entries.

    1,000 readers ── wait ──▶ EndWatch ── two threads, one waiting call (`ledger.protocol.ends`) ──▶ broker

Rules
- A reader is registered only while it waits. Its news come into its own queue, so a reader waits for no other.
- While one thread waits for the broker, a reader can wait for a further ledger. The second thread then makes a call for
  all ledgers, and the broker ends the earlier call.
- A ledger stays in the calls until it moves while no reader waits for it. So a reader that returns after its work
  causes no further call.
- The threads end when no reader waits any more, at the latest after `_WAIT_MS`.
- An error of the call goes to every waiting reader, the error of one ledger only to the readers of this ledger.
- A reader inside `parking` holds no thread while it waits: `wait` raises Parked, and a callback tells of the news. The
  reader stays registered until it waits again, or calls `Parked.leave`.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.protocol.ends import KnownEnd, MovedEnd, WaitEnds
from pyspark_ledger.ledger.protocol.request import Reply, Request

_WAIT_MS = 10_000  # of one call
_ATTEMPT_SECONDS = 30.0  # after which a broker that does not answer is given up
_EXIT_SECONDS = 1.0
_THREADS_MAX = 2


class AskInTime(Protocol):
    """Function that sends a request, and waits for the reply for a limited time."""

    def __call__(self, request: Request[Reply], /, *, deadline_ms: int | None = ..., attempt_seconds: float) -> Reply:
        """Return the reply. Raises the errors of `BrokerConnection.ask`."""


_on_news: ContextVar[Callable[[], None] | None] = ContextVar("on_news", default=None)


class Parked(Exception):
    """Wait that goes on without a thread. Repeat it after the news, or after `milliseconds`."""

    def __init__(self, milliseconds: int) -> None:
        super().__init__()
        self.milliseconds = milliseconds
        self.leave: Callable[[], None] = lambda: None
        """End the registration of the reader."""


@contextmanager
def parking(on_news: Callable[[], None]) -> Iterator[None]:
    """Let the waits of this block raise Parked where they would hold the thread. `on_news` may run in any thread."""
    token = _on_news.set(on_news)
    try:
        yield
    finally:
        _on_news.reset(token)


class WaitingReader:
    """Queue of the news for one reader. `wake` may be called from a signal handler, because it takes no lock."""

    def __init__(self) -> None:
        self._news: SimpleQueue[MovedEnd | BaseException | None] = SimpleQueue()
        self._on_news: Callable[[], None] | None = None

    def wake(self) -> None:
        """End a wait that runs, or else the next one."""
        self.tell(None)

    def tell(self, news: MovedEnd | BaseException | None) -> None:
        self._news.put(news)
        if self._on_news is not None:
            self._on_news()

    def news(self, milliseconds: int) -> list[MovedEnd]:
        """Return the ledgers that have moved, and wait for the first one. Raises the error of the call, and Parked."""
        found: list[MovedEnd] = []
        self._on_news = _on_news.get()
        if self._on_news is not None and self._news.empty() and milliseconds:
            raise Parked(milliseconds)
        with suppress(Empty):
            news = self._news.get(timeout=milliseconds / 1000)
            while True:
                if isinstance(news, BaseException):
                    raise news
                if news is not None:
                    found.append(news)
                news = self._news.get_nowait()
        return found


class _WatchedLedger:
    """Ledger of the calls: its newest known state, and the readers that wait for it, with the state that each knows."""

    def __init__(self, known: KnownEnd) -> None:
        self.known = known
        self.readers: dict[WaitingReader, KnownEnd] = {}


class EndWatch:
    """Watch of one client. Any thread may call `wait`. `ask` is the client's method."""

    def __init__(self, ask: AskInTime) -> None:
        self._ask = ask
        self._id = new_id()
        self._changed = threading.Condition()
        self._ledgers: dict[str, _WatchedLedger] = {}
        self._turn = 0
        self._outdated = False  # the newest call has ended, or lacks a ledger
        self._threads: set[threading.Thread] = set()
        self._idle = 0  # threads that wait until the newest call is outdated
        self._ended = False

    def wait(self, reader: WaitingReader, ledgers: Iterable[KnownEnd], milliseconds: int) -> list[MovedEnd]:
        """Return those of the ledgers that have moved; none after the time, or after `reader.wake`.

        Raises the error of the call to the broker, such as Unavailable.
        """
        known = list(ledgers)
        leave = partial(self._leave, reader, known)
        try:
            self._register(reader, known)
            news = reader.news(milliseconds)
        except Parked as parked:
            parked.leave = leave
            raise
        except BaseException:
            leave()
            raise
        leave()
        return news

    def _leave(self, reader: WaitingReader, ledgers: Sequence[KnownEnd]) -> None:
        with self._changed:
            for ledger in ledgers:
                if (watched := self._ledgers.get(ledger.name)) is not None:
                    watched.readers.pop(reader, None)

    def _register(self, reader: WaitingReader, ledgers: Sequence[KnownEnd]) -> None:
        with self._changed:
            for known in ledgers:
                watched = self._ledgers.get(known.name)
                if watched is None:
                    watched = self._ledgers[known.name] = _WatchedLedger(known)
                    self._outdated = True
                if (moved := _moved(known, watched.known)) is not None:
                    reader.tell(moved)
                else:
                    watched.readers[reader] = known
            if self._outdated:
                self._call()

    def _call(self) -> None:
        """Let a thread make the next call. If all threads are in calls, the first that returns makes it."""
        if self._idle:
            self._changed.notify()
        elif len(self._threads) < _THREADS_MAX:
            thread = threading.Thread(target=self._run, name="end watch", daemon=True)
            self._threads.add(thread)
            _watches.add(self)
            thread.start()

    def _run(self) -> None:
        while (request := self._next()) is not None:
            try:
                moved = self._ask(request, attempt_seconds=_ATTEMPT_SECONDS).moved
            except Exception as error:  # noqa: BLE001 — raised by each reader that waits
                self._failed(request.turn, error)
            else:
                self._answered(request.turn, moved)

    def _next(self) -> WaitEnds | None:
        """Return the next call, or None if the thread has to end."""
        with self._changed:
            while not self._ended and self._ledgers and not self._outdated:
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            if self._ended or not self._ledgers:
                self._threads.discard(threading.current_thread())
                self._changed.notify_all()
                return None
            self._outdated = False
            self._turn += 1
            return WaitEnds(self._id, self._turn, _WAIT_MS, [watched.known for watched in self._ledgers.values()])

    def _answered(self, turn: int, moved: Sequence[MovedEnd]) -> None:
        with self._changed:
            for state in moved:
                self._tell(state)
            if turn == self._turn:  # otherwise a later call has replaced this one
                self._outdated = True
                if not moved:  # the whole time has passed
                    self._ledgers = {name: watched for name, watched in self._ledgers.items() if watched.readers}

    def _tell(self, state: MovedEnd) -> None:
        """Tell the readers of a ledger. Drop a ledger without a reader, and one that moves no more."""
        watched = self._ledgers.get(state.name)
        if watched is None:
            return
        if not watched.readers or state.terminated or state.error is not None:
            del self._ledgers[state.name]
        watched.known = KnownEnd(state.name, state.incarnation, state.end, state.partitions)
        for reader, known in list(watched.readers.items()):
            if state.terminated or state.error is not None or _moved(known, watched.known) is not None:
                reader.tell(state)
                del watched.readers[reader]

    def _failed(self, turn: int, error: Exception) -> None:
        with self._changed:
            if turn == self._turn:
                ledgers, self._ledgers = self._ledgers, {}
                for reader in {reader for watched in ledgers.values() for reader in watched.readers}:
                    reader.tell(error)

    def end(self) -> None:
        """End the threads, before the interpreter ends. A thread that returned into it later could end the process."""
        with self._changed:
            self._ended = True
            threads = list(self._threads)
            self._changed.notify_all()
            self._turn += 1
            last = WaitEnds(self._id, self._turn, 0, [])
        if threads:
            with suppress(LedgerError):
                self._ask(last, deadline_ms=0, attempt_seconds=_EXIT_SECONDS)
            for thread in threads:
                thread.join(_EXIT_SECONDS)


def _moved(known: KnownEnd, now: KnownEnd) -> MovedEnd | None:
    """Return the present state of a ledger if a reader with the state `known` has to learn it."""
    if known.partitions != now.partitions:
        return MovedEnd(now.name, partitions=now.partitions)
    return known.moved(now.incarnation, now.end, terminated=False)


_watches: weakref.WeakSet[EndWatch] = weakref.WeakSet()


def _end_all() -> None:
    for watch in list(_watches):
        watch.end()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_watches.clear)
