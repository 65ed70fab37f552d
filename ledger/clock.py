"""Wall clock, local time zone, random ids, and an index of due times.

No other module of the package reads the wall clock or draws a random id.

All other code takes a clock as an argument (`Clock`: milliseconds since the Unix epoch). So a test sets the time
itself, and never sleeps.
"""

from __future__ import annotations

import heapq
import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo

Clock = Callable[[], int]


def system_clock_ms() -> int:
    """Return milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return milliseconds of a clock that never goes backwards. Only the difference of two values has a meaning."""
    return time.monotonic_ns() // 1_000_000


def new_id() -> str:
    """Return a random UUID in Pulsar's canonical lower-case text form."""
    return str(uuid.uuid4())


def pause(milliseconds: int) -> None:
    """Sleep between two polls of something outside this process."""
    time.sleep(milliseconds / 1000)


class ForwardClock:
    """Clock that measures ages and continues when the system's clock is set back. Its values are not dates.

    Callers pass the newest recorded time as `at_least`. So no age is negative, also after a restart.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = self._now = clock()

    def __call__(self, at_least: int = 0) -> int:
        """Return milliseconds, at least `at_least` and never less than the previous call."""
        last, self._last = self._last, self._clock()
        self._now = max(self._now + max(self._last - last, 0), at_least)
        return self._now


class HostZone(tzinfo):
    """Local time zone of this host, with its changes of daylight saving time."""

    def __str__(self) -> str:
        return "the host's local zone"

    def utcoffset(self, at: datetime | None) -> timedelta | None:
        return None if at is None else at.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return str(self)


HOST_ZONE = HostZone()


class DueTimes:
    """Names with the next due time of each. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heap: list[tuple[int, str]] = []
        self._due: dict[str, int] = {}

    def put(self, name: str, due_ms: int) -> None:
        """Set the due time of a name. An earlier due time stays."""
        with self._lock:
            if due_ms < self._due.get(name, due_ms + 1):
                self._due[name] = due_ms
                heapq.heappush(self._heap, (due_ms, name))

    def take(self, now_ms: int) -> list[str]:
        """Remove and return the names that are due, in the order of their due times."""
        taken: list[str] = []
        with self._lock:
            while self._heap and self._heap[0][0] <= now_ms:
                due_ms, name = heapq.heappop(self._heap)
                if self._due.get(name) == due_ms:  # otherwise an earlier time has replaced this one
                    del self._due[name]
                    taken.append(name)
        return taken

    def first(self) -> int | None:
        """Return the earliest due time, or None without names."""
        with self._lock:
            while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
                heapq.heappop(self._heap)
            return self._heap[0][0] if self._heap else None
