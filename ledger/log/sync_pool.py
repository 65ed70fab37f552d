"""The threads that sync the logs of a store: where more logs wait than threads are free, one takes many at once.

    asked   A B C D E F …         one thread: A              sync A · look · answer A
                                  another:    B C D E F …    sync all of them together · look · answer B, C, D, E, F …

All syncing of appends is here: a log names its file, and is told what became of it. One that is alone is synced by one
call. Many are synced by the kernel together (`ledger.segment.file_syncs`): the device has as much to do as if there
were a thread for each, and the interpreter is not passed round between dozens
of them. The thread looks once, after the last sync and before the first answer, whether the store is still ours.

Invariants
- Each log is in one thread's hands at a time: the queue asks again only once its turn is over.
- A turn says itself whether there is still something to do: whoever needs it sooner may have done it.
- Who goes on with a log takes those that wait along: no log that never falls silent keeps another waiting for ever.
- A turn that raises is told so (`SyncJob.fail`), and takes neither a thread nor another log along.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

from pyspark_ledger.ledger.segment.file_syncs import FILES_MAX, FileSyncs

_log = logging.getLogger(__name__)


class SyncJob(Protocol):
    """A log that waits for a sync."""

    def take(self) -> bool:
        """Take what is to be synced; false when somebody else has."""
        ...

    def file(self) -> SyncedFile | None:
        """The file that is to be synced, None for none."""
        ...

    def answer(self, error: Exception | None) -> bool:
        """Answer whoever waits, with what kept entries from being durable; whether the next has been taken already."""
        ...

    def fail(self, error: BaseException) -> None:
        """End the turn because a step raised; nothing if this thread does not have it. Raises nothing."""
        ...


class SyncedFile(Protocol):
    """A file that is synced for its owner, as `SegmentWriter` is."""

    def begin_sync(self) -> int:
        """The descriptor to sync, up to what is written now; -1 if the file is acknowledged unsynced."""
        ...

    def end_sync(self, error: OSError | None) -> None:
        """Note the result of the sync that `begin_sync` began."""
        ...


class _Sync:
    """One sync of one log. `error` is what kept it from being made."""

    def __init__(self, turn: SyncJob) -> None:
        self.turn = turn
        self.fd = -1
        self.error: Exception | None = None
        self._file: SyncedFile | None = None
        try:
            self._file = turn.file()
            if self._file is not None:
                self.fd = self._file.begin_sync()
                if self.fd < 0:
                    self._file.end_sync(None)
        except Exception as error:  # noqa: BLE001 — whoever waits is told, whatever it is
            self.error = error

    def end(self, error: Exception | None) -> None:
        """Note what came of it. Only an error of the device is one of the file."""
        self.error = error
        try:
            if self._file is not None and (error is None or isinstance(error, OSError)):
                self._file.end_sync(error)
        except Exception as raised:  # noqa: BLE001 — as above
            self.error = raised


class SyncPool:
    """At most so many threads, each made when none was free. `look` raises when the store is not ours any more."""

    def __init__(self, threads: int, look: Callable[[], None]) -> None:
        self._asked: SimpleQueue[SyncJob | None] = SimpleQueue()
        self._size = threads
        self._look = look
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._idle: list[None] = []  # one for each thread that waits for a turn; appending and popping are atomic

    def ask(self, turn: SyncJob) -> None:
        """Have a turn made by the next thread that is free."""
        self._asked.put(turn)
        if not self._idle and len(self._threads) < self._size:
            self._start()

    def _looked(self) -> Exception | None:
        """What keeps synced entries from being acknowledged, if anything does."""
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 — whoever waits is told, whatever it is
            return error
        return None

    def close(self) -> None:
        """Make all turns that were asked for, and end the threads; none may be asked for any more."""
        with self._starting:
            for _ in self._threads:
                self._asked.put(None)
            for thread in self._threads:
                thread.join()
            self._size = 0

    def _start(self) -> None:
        with self._starting:
            if len(self._threads) >= self._size:
                return
            thread = threading.Thread(target=self._work, name=f"sync-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if not self._threads:
                    raise
                _log.warning("one thread fewer than wanted syncs: %s", error)
                return  # those that there are take what waits along
            self._threads.append(thread)

    def _work(self) -> None:
        syncs = FileSyncs()
        while (turn := self._next()) is not None:
            held = [turn]
            try:
                held = [turn] if turn.take() else []
                while held:
                    held += self._share()
                    held = self._round(held, syncs)
            except Exception as error:  # noqa: BLE001 — other logs need the thread
                _log.exception("the turns of %d logs ended in a way that nobody foresaw", len(held))
                for turn in held:
                    turn.fail(error)
        syncs.close()

    def _next(self) -> SyncJob | None:
        self._idle.append(None)
        try:
            return self._asked.get()
        finally:
            self._idle.pop()

    def make_here(self, turn: SyncJob) -> bool:
        """Sync a log once on the caller's thread; whether it has more to sync."""
        return bool(self._round([turn], FileSyncs()))

    def _round(self, turns: list[SyncJob], syncs: FileSyncs) -> list[SyncJob]:
        """One sync of each; those that have more to sync."""
        begun = [_Sync(turn) for turn in turns]
        # Whose log is acknowledged unsynced does not wait for the others.
        more = self._answered([one for one in begun if one.fd < 0])
        due = [one for one in begun if one.fd >= 0]
        for one, error in zip(due, _synced(syncs, [one.fd for one in due]), strict=True):
            one.end(error)
        return more + self._answered(due)

    def _answered(self, syncs: list[_Sync]) -> list[SyncJob]:
        """Look once and answer all; those that have more to sync."""
        looked = self._looked() if syncs else None
        return [one.turn for one in syncs if _answered(one.turn, one.error or looked)]

    def _share(self) -> list[SyncJob]:
        """What a thread takes beside what it has, however much that is, of those that no thread is free for."""
        taken: list[SyncJob] = []
        for _ in range(min(self._asked.qsize() - len(self._idle), FILES_MAX)):
            try:
                turn = self._asked.get_nowait()
            except Empty:
                break
            if turn is None:
                self._asked.put(None)  # for the thread that it is meant for
                break
            if turn.take():
                taken.append(turn)
        return taken


def _answered(turn: SyncJob, error: Exception | None) -> bool:
    """Answer, and return whether the turn goes on. A turn whose answer raises fails; those beside it do not."""
    try:
        return turn.answer(error)
    except Exception as raised:  # noqa: BLE001 — see above
        turn.fail(raised)
        return False


def _synced(syncs: FileSyncs, files: Sequence[int]) -> Sequence[Exception | None]:
    """The outcome of each file's sync; after an error that is not one file's, all of them have failed."""
    try:
        return syncs.sync(files)
    except Exception as error:  # noqa: BLE001 — whatever it is, every file's log is told
        if len(files) == 1:
            return [error]
        _log.exception("the sync of %d files ended in a way that nobody foresaw", len(files))
        syncs.close()
        return [OSError(errno.EIO, f"not known to be synced: {error!r}") for _ in files]
