"""How many a broker serves at once: calls, readers, connections. Each has a limit that may change while it runs.

A call costs a thread, a reader the blocks on their way to it, a connection a descriptor. Who comes too many is told so
with `Unavailable`, which clients try again until their deadline: a burst is served late, and only what lasts fails.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ledger.broker.live_settings import LiveSettings
from ledger.clock import Clock
from ledger.errors import Unavailable

_COUNT_AGAIN_MS = 250
_MB = 1024 * 1024


class Admission:
    """Counts what is going on, and refuses one more than the setting allows."""

    def __init__(self, setting: str, what: str, most: Callable[[], int]) -> None:
        self._setting = setting
        self._what = what
        self._most = most
        self._lock = threading.Lock()
        self.running = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """One of them, for as long as it lasts. Raises Unavailable."""
        with self._lock:
            most = self._most()
            if self.running >= most:
                raise _too_many(self._what, self.running, self._setting, most)
            self.running += 1
        try:
            yield
        finally:
            with self._lock:
                self.running -= 1


class Connections:
    """The sockets of this process. gRPC shows none of them, so they are counted where the kernel lists them."""

    def __init__(self, setting: str, most: Callable[[], int], monotonic_ms: Clock) -> None:
        self._setting = setting
        self._most = most
        self._clock = monotonic_ms
        self._lock = threading.Lock()
        self._counted_ms = 0
        self._count = 0
        self._own = 0

    def begin(self) -> None:
        """What is open now are the broker's own: it listens, and nobody has come yet."""
        self._own = _sockets()

    def require_room(self) -> None:
        """Raises Unavailable when there are more than may be, that of the caller among them."""
        with self._lock:
            now = self._clock()
            self._count += 1  # as if each caller had just come: never too few
            if now - self._counted_ms >= _COUNT_AGAIN_MS or self._count > self._most():
                self._count, self._counted_ms = _sockets() - self._own, now
            if self._count > self._most():
                raise _too_many("connections", self._count, self._setting, self._most())


class InFlightBytes:
    """Bytes of all producers that wait for the disk. Back-pressure, never a refusal."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._bytes = 0

    def take(self, size: int, waits_no_more: Callable[[], object]) -> None:
        """Wait until there is room, or `waits_no_more`: a producer that has nothing here need not wait for others."""
        with self._changed:
            self._changed.wait_for(lambda: self._bytes + size <= self._most() or waits_no_more())
            self._bytes += size

    def give(self, size: int) -> None:
        """So many are on the disk, or will never be."""
        with self._changed:
            self._bytes -= size
            self._changed.notify_all()


class BrokerAdmission:
    """What all servers of one broker let in together."""

    def __init__(self, settings: LiveSettings, monotonic_ms: Clock) -> None:
        self.requests = Admission("maxConcurrentRequests", "calls", lambda: settings.now.maxConcurrentRequests)
        self.in_flight = InFlightBytes(lambda: settings.now.maxMessagePublishBufferSizeInMB * _MB)
        self.readers = Admission("maxConcurrentReaders", "readers", lambda: settings.now.maxConcurrentReaders)
        self.connections = Connections("brokerMaxConnections", lambda: settings.now.brokerMaxConnections, monotonic_ms)


def _too_many(what: str, running: int, setting: str, most: int) -> Unavailable:
    return Unavailable(
        f"this broker has {running} {what}, setting {setting!r} allows {most}",
        hint=f"Try again later, or allow more: ledger settings set {setting} NUMBER",
    )


def _sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 — names are all that is wanted
        try:
            count += stat.S_ISSOCK(os.fstat(int(name)).st_mode)
        except OSError:
            continue  # it was closed since it was listed, as the listing itself
    return count
