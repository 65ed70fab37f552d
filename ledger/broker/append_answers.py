"""What a producer is told of its entries, in the order in which it sent them.

    append completed ─▶ told at once, by the thread that completed it      where the way back has room
                    └▶ told by a thread of its own, which waits for room   until nothing is behind

Invariants
- One thread at a time tells, always the oldest first: an append that completes early waits for those before it.
- Whoever completes appends syncs for other logs, too: it never waits for this producer.
- After the first error nothing more is told; what is still on its way is only waited for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import msgspec

from ledger.errors import LedgerError
from ledger.managed_ledger import AppendedPart
from ledger.position import EARLIEST, Position
from ledger.protocol import Appended, WireError


class Replies(Protocol):
    """Where answers go."""

    def write(self, message: bytes) -> None:
        """Send one; waits for room."""
        ...

    def write_at_once(self, message: bytes) -> bool:
        """Send one if there is room for it now; whether it was sent."""
        ...


class AppendAnswers:
    """The way back of one append stream. `told` is called after each part with its size, whatever became of it."""

    def __init__(self, replies: Replies, told: Callable[[int], None]) -> None:
        self._replies = replies
        self._told = told
        self._parts: deque[AppendedPart] = deque()
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._behind = self._over = False
        self.error: BaseException | None = None
        threading.Thread(target=self._tell_behind, name="answer", daemon=True).start()

    def put(self, part: AppendedPart) -> None:
        """Tell of a part once it is durable or has failed. One thread puts."""
        self._parts.append(part)
        part.future.add_done_callback(self._completed)

    def close(self) -> None:
        """Everything was told: end the thread."""
        with self._changed:
            self._over = True
            self._changed.notify()

    def _completed(self, _: Future[Position] | None = None) -> None:
        # Whoever has the turn may have looked just before this was complete: it looks again once it gave the turn back.
        while self._is_due() and self._turn.acquire(blocking=False):
            try:
                behind = not self._tell_due(self._replies.write_at_once)
            finally:
                self._turn.release()
            if behind:
                with self._changed:
                    self._behind = True
                    self._changed.notify()
                return

    def _is_due(self) -> bool:
        try:
            return self._parts[0].future.done()
        except IndexError:
            return False

    def _tell_due(self, write: Callable[[bytes], bool | None]) -> bool:
        """In the turn: tell of all that is complete; false when there was no room."""
        while self._is_due():
            part = self._parts[0]
            if self.error is None and not self._tell(part, write):
                return False
            self._parts.popleft()
            self._told(part.size)
        return True

    def _tell(self, part: AppendedPart, write: Callable[[bytes], bool | None]) -> bool:
        failed = part.future.exception()
        try:
            answer = _answer(part, failed)
            # An error is told now: `serve` hears of it only when the producer sends more, and it may be waiting.
            if answer is not None and write(msgspec.msgpack.encode(answer)) is False:
                return False
            self.error = failed
        except Exception as error:  # noqa: BLE001 — the stream raises it when it ends
            self.error = failed or error
        return True

    def _tell_behind(self) -> None:
        """The thread: what there was no room for."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._behind or self._over)
                if self._over:
                    return
                self._behind = False
            with self._turn:
                self._tell_due(self._replies.write)
            self._completed()


def _answer(part: AppendedPart, failed: BaseException | None) -> Appended | None:
    """What a producer is told; None where it hears by the end of the stream."""
    if failed is None:
        return Appended(part.future.result(), part.entries)
    if isinstance(failed, LedgerError):
        return Appended(EARLIEST, 0, WireError(failed.code, failed.message, failed.hint))
    return None
