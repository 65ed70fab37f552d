"""The threads that sync the logs of a store: where more logs wait than threads are free, one takes many at once.

    asked   A B C D E F …         one thread: A              sync A · look · answer A
                                  another:    B C D E F …    sync all of them together · look · answer B, C, D, E, F …

A log that is alone is synced by a thread as ever. Many are synced by the kernel together (`ledger.segment.file_syncs`):
the device has as much to do as if there were a thread for each, and the interpreter is not passed round between dozens
of them. The thread looks once, after the last sync and before the first answer, whether the store is still ours.

Invariants
- Each log is in one thread's hands at a time: the queue asks again only once its turn is over.
- A turn says itself whether there is still something to do: whoever needs it sooner may have done it.
- Who goes on with a log takes those that wait along: no log that never falls silent keeps another waiting for ever.
- A turn that raises is told so (`SyncTurn.fail`), and takes neither a thread nor another log along.
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


class SyncTurn(Protocol):
    """What is done for one log, step by step."""

    def take(self) -> bool:
        """Take what is to be synced; false when somebody else has."""
        ...

    def sync(self) -> None:
        """Wait until the device has it."""
        ...

    def begin(self) -> int:
        """In place of `sync`: the file that is to be synced by the caller, -1 for none."""
        ...

    def end(self, error: OSError | None) -> None:
        """What became of it."""
        ...

    def answer(self, looked: Exception | None) -> bool:
        """Answer whoever waits for it, with what the look told; whether the next has been taken already."""
        ...

    def fail(self, error: BaseException) -> None:
        """End the turn because a step raised; nothing if this thread does not have it. Raises nothing."""
        ...


class SyncCrew:
    """At most so many threads, each made when none was free. `look` raises when the store is not ours any more."""

    def __init__(self, threads: int, look: Callable[[], None]) -> None:
        self._asked: SimpleQueue[SyncTurn | None] = SimpleQueue()
        self._size = threads
        self._look = look
        self._threads: list[threading.Thread] = []
        self._starting = threading.Lock()
        self._idle: list[None] = []  # one for each thread that waits for a turn; appending and popping are atomic

    def ask(self, turn: SyncTurn) -> None:
        """Have a turn made by the next thread that is free."""
        self._asked.put(turn)
        if not self._idle and len(self._threads) < self._size:
            self._start()

    def look(self) -> Exception | None:
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

    def _next(self) -> SyncTurn | None:
        self._idle.append(None)
        try:
            return self._asked.get()
        finally:
            self._idle.pop()

    def _round(self, turns: list[SyncTurn], syncs: FileSyncs) -> list[SyncTurn]:
        """One sync of each; those that have more to sync."""
        if len(turns) == 1:
            turns[0].sync()
            return self._answered(turns)
        begun = [(turn, turn.begin()) for turn in turns]
        # Whose log is acknowledged unsynced does not wait for the others.
        more = self._ended([(turn, None) for turn, fd in begun if fd < 0])
        due = [(turn, fd) for turn, fd in begun if fd >= 0]
        errors = _synced(syncs, [fd for _, fd in due])
        return more + self._ended([(turn, error) for (turn, _), error in zip(due, errors, strict=True)])

    def _ended(self, results: list[tuple[SyncTurn, OSError | None]]) -> list[SyncTurn]:
        for turn, error in results:
            turn.end(error)
        return self._answered([turn for turn, _ in results])

    def _answered(self, turns: list[SyncTurn]) -> list[SyncTurn]:
        """Look once and answer all; those that have more to sync."""
        looked = self.look() if turns else None
        return [turn for turn in turns if answered(turn, looked)]

    def _share(self) -> list[SyncTurn]:
        """What a thread takes beside what it has, however much that is, of those that no thread is free for."""
        taken: list[SyncTurn] = []
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


def answered(turn: SyncTurn, looked: Exception | None) -> bool:
    """Answer, and return whether the turn goes on. A turn whose answer raises fails; those beside it do not."""
    try:
        return turn.answer(looked)
    except Exception as error:  # noqa: BLE001 — see above
        turn.fail(error)
        return False


def _synced(syncs: FileSyncs, files: Sequence[int]) -> list[OSError | None]:
    """The outcome of each file's sync; after an error that is not one file's, all of them have failed."""
    try:
        return syncs.sync(files)
    except Exception as error:  # noqa: BLE001 — whatever it is, every file's log is told
        _log.exception("the sync of %d files ended in a way that nobody foresaw", len(files))
        syncs.close()
        return [OSError(errno.EIO, f"not known to be synced: {error!r}") for _ in files]
