"""The one place where the package reads the wall clock and draws randomness for ids.

Everything below the shells takes a clock as an argument (`Clock`: milliseconds since the epoch), so that tests
move time by hand and no test sleeps.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

Clock = Callable[[], int]


def system_clock_ms() -> int:
    """Milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds of a clock that never goes backwards; only differences mean anything."""
    return time.monotonic_ns() // 1_000_000


def new_id() -> str:
    """A random UUID in Pulsar's canonical lower-case text form."""
    return str(uuid.uuid4())


def pause(milliseconds: int) -> None:
    """Let time pass, in a shell that polls something outside of this process."""
    time.sleep(milliseconds / 1000)


class ForwardClock:
    """Time that passes while a clock is set back: it goes on from where it was. Not for dates, for ages.

    `at_least` is the newest time that anybody wrote down before: no age is negative after a restart, either.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = self._now = clock()

    def __call__(self, at_least: int = 0) -> int:
        """Milliseconds, never less than before."""
        last, self._last = self._last, self._clock()
        self._now = max(self._now + max(self._last - last, 0), at_least)
        return self._now
