"""Limits of calls, readers, connections, streams and bytes in flight at a broker, and the broker's idle time.

Rules of limits
- Each limit can change while the broker runs.
- A call or a reader uses a thread. A connection uses a descriptor.
- A caller above a limit gets `Unavailable`, and clients retry until their deadline. So a short overload only delays
  calls. Calls fail only in a long overload.
- Exception: if too many bytes wait for the disk, the broker refuses nothing. Producers and staging streams wait.

Rules of idle time
- Idle time begins when the last call ended. It is 0 while a call runs or a lease is valid.
- A lease is the right of a running query to use its subscription. It counts because the query will need the broker
  again: a query with one trigger an hour makes no call between the triggers.
"""

from __future__ import annotations

import itertools
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark_ledger.ledger.broker.live_settings import LiveSettings
from pyspark_ledger.ledger.clock import Clock
from pyspark_ledger.ledger.errors import Unavailable

_COUNT_AGAIN_MS = 250
_EXPECTED_MS = 30_000
_EXPECTED_PART = 4
_LOOK_SECONDS = 1
_MB = 1024 * 1024


class ConcurrencyLimit:
    """Counter of running calls and readers. At the limit of a setting, it refuses a further one."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._lock = threading.Lock()
        self.running = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count one call or reader during the context. Raises Unavailable at the limit."""
        with self._lock:
            most = self._most()
            if self.running >= most:
                raise Unavailable(
                    f"this broker has {self.running} calls, setting 'maxConcurrentRequests' allows {most}",
                    hint="Try again later, or raise the limit: ledger settings set maxConcurrentRequests NUMBER",
                )
            self.running += 1
        try:
            yield
        finally:
            with self._lock:
                self.running -= 1


class Connections:
    """Counter of the broker's connections. It counts the open sockets of the process, because gRPC has no count."""

    def __init__(self, monotonic_ms: Clock, most: int = 16_384) -> None:
        self._most = most
        self._clock = monotonic_ms
        self._lock = threading.Lock()
        self._counted_ms = 0
        self._count = 0
        self._own = 0

    def begin(self) -> None:
        """Count the open sockets, which `count` then excludes. Called when the broker listens and has no client yet."""
        self._own = _sockets()

    @property
    def count(self) -> int:
        """The number of connections at the last count."""
        return self._count

    def require_room(self) -> None:
        """Raise Unavailable if the broker has too many connections. The caller's connection is one of them."""
        with self._lock:
            now = self._clock()
            self._count += 1  # an upper bound, because not every caller has a new connection
            if now - self._counted_ms >= _COUNT_AGAIN_MS or self._count > self._most:
                self._count, self._counted_ms = _sockets() - self._own, now
            if self._count > self._most:
                raise Unavailable(
                    f"this broker has {self._count} connections, and allows {self._most}",
                    hint="Close connections that you do not use, or try again later",
                )


class InFlightBytes:
    """Counter of the bytes of all producers and staging streams that wait for the disk. At the limit, they wait.

    A staging stream reserves the bytes that it *expects* before it receives them. At most a quarter of the limit is for
    expected bytes. Reasons: they must not keep producers waiting, and gRPC and Arrow each have a copy of a batch.
    After `_EXPECTED_MS` a reservation ends, because a client can vanish without an end of its connection.
    """

    def __init__(self, most: Callable[[], int], monotonic_ms: Clock) -> None:
        self._most = most
        self._clock = monotonic_ms
        self._changed = threading.Condition()
        self._bytes = 0
        self._expected: dict[int, tuple[int, int]] = {}
        self._numbers = itertools.count()

    @property
    def size(self) -> int:
        """The reserved bytes."""
        with self._changed:
            return self._bytes + self._expected_bytes()

    def take(self, size: int, waits_no_more: Callable[[], object]) -> None:
        """Reserve `size` bytes. Wait until the limit allows them, or until `waits_no_more` returns true.

        The callback returns true if the producer has no bytes in flight. Such a producer does not wait for other
        producers.
        """
        with self._changed:
            if self._expected or self._bytes + size > self._most():
                self._wait(lambda: self._bytes + self._expected_bytes() + size <= self._most() or waits_no_more())
            self._bytes += size

    def give(self, size: int) -> None:
        """Release bytes whose append is durable or has failed."""
        with self._changed:
            self._bytes -= size
            self._changed.notify_all()

    def expect(self, size: int) -> int:
        """Reserve bytes that a staging stream will receive. Return the number of the reservation.

        Waits until there is room. A stream does not wait if no other stream expects bytes. A size above a quarter
        of the limit counts as a quarter.
        """
        with self._changed:
            size = min(size, self._most() // _EXPECTED_PART)
            self._wait(lambda: not self._expected_bytes() or self._has_room(size))
            number = next(self._numbers)
            self._expected[number] = (size, self._clock() + _EXPECTED_MS)
            return number

    def give_expected(self, number: int) -> None:
        """Release a reservation. Ignores a number that was released already."""
        with self._changed:
            self._expected.pop(number, None)
            self._changed.notify_all()

    def _has_room(self, size: int) -> bool:
        expected = self._expected_bytes() + size
        return expected <= self._most() // _EXPECTED_PART and self._bytes + expected <= self._most()

    def _expected_bytes(self) -> int:
        if not self._expected:
            return 0
        now = self._clock()
        self._expected = {number: found for number, found in self._expected.items() if found[1] > now}
        return sum(size for size, _ in self._expected.values())

    def _wait(self, done: Callable[[], object]) -> None:
        """Wait until `done` returns true. Nobody notifies when a reservation ends, so check again."""
        while not self._changed.wait_for(done, _LOOK_SECONDS if self._expected else None):
            continue


class StreamsOfClients:
    """Counter of the open streams of each client, which is the host of its address."""

    def __init__(self, most: int = 1_024) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()

    @contextmanager
    def counted(self, client: str) -> Iterator[None]:
        """Count one stream during the context. Raises Unavailable at the limit.

        With an empty `client`, does nothing: such a client is a process of this user on this host.
        """
        if not client:
            yield
            return
        with self._lock:
            if self._open[client] >= self._most:
                raise Unavailable(
                    f"this broker has {self._open[client]} streams of {client}, and allows {self._most} for each host",
                    hint="Close producers that you do not use, or try again later",
                )
            self._open[client] += 1
        try:
            yield
        finally:
            with self._lock:
                self._open[client] -= 1
                self._open += Counter()  # removes the clients without a stream


class BrokerLimits:
    """Limits of one broker. Its servers at all addresses share them."""

    def __init__(self, settings: LiveSettings, monotonic_ms: Clock) -> None:
        self.requests = ConcurrencyLimit(lambda: settings.now.maxConcurrentRequests)
        self.in_flight = InFlightBytes(lambda: settings.now.maxMessagePublishBufferSizeInMB * _MB, monotonic_ms)
        self.streams = StreamsOfClients()
        self.connections = Connections(monotonic_ms)


def _sockets() -> int:
    count = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 — only the names are needed
        try:
            count += stat.S_ISSOCK(os.fstat(int(name)).st_mode)
        except OSError:
            continue  # closed meanwhile; `listdir` also lists its own descriptor, which is closed by now
    return count


class Activity:
    """Counter of running calls and valid leases, which computes the idle time. The clock must be monotonic."""

    def __init__(self, monotonic_ms: Clock) -> None:
        self._clock = monotonic_ms
        self._lock = threading.Lock()
        self._running = 0
        self._last_ms = monotonic_ms()
        self._leases: dict[str, int] = {}

    @contextmanager
    def call(self) -> Iterator[None]:
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                self._last_ms = self._clock()

    def idle_ms(self) -> int:
        """Return the milliseconds since the last call ended; 0 while a call runs or a lease is valid."""
        with self._lock:
            now = self._clock()
            self._leases = {key: until for key, until in self._leases.items() if until > now}
            return 0 if self._running or self._leases else now - self._last_ms

    def hold(self, key: str, milliseconds: int) -> None:
        """Record that the lease `key` is valid for `milliseconds` from now; 0 records its release."""
        with self._lock:
            self._leases[key] = self._clock() + milliseconds
