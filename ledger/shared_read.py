"""One answer for all who ask at the same time: a question that many threads ask again and again, and that costs.

Invariant: whoever asks gets an answer that was begun to be sought after they asked. So an answer that was on its way
already is not theirs; they share the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, NoReturn, TypeVar

T = TypeVar("T")


class SharedRead(Generic[T]):
    """Calls `read` for the callers; one call at a time, each for all who wait when it begins."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._changed = threading.Condition()
        self._reading = False
        self._begun = self._ended = 0
        self._answer: Callable[[], T] = read

    def __call__(self) -> T:
        """What `read` returns, or raises."""
        with self._changed:
            wanted = self._begun + 1
            self._changed.wait_for(lambda: self._ended >= wanted or not self._reading)
            if self._ended >= wanted:
                answer = self._answer
            else:
                self._reading = True
                self._begun += 1
                answer = None
        return self._lead() if answer is None else answer()

    def _lead(self) -> T:
        answer: Callable[[], T]
        try:
            found = self._read()
        except BaseException as error:
            answer = _raising(error)
            raise
        else:
            answer = lambda: found  # noqa: E731 — an answer is a call, as a failure is
            return found
        finally:
            with self._changed:
                self._answer, self._reading, self._ended = answer, False, self._begun
                self._changed.notify_all()


def _raising(error: BaseException) -> Callable[[], NoReturn]:
    """A call that raises what another thread's read has raised."""

    def fail() -> NoReturn:
        raise error

    return fail
