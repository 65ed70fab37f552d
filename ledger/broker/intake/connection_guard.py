"""Guard of a TCP port: it closes connections that send much, or wait long, before a call with a valid token.

gRPC receives the whole body of a call before the broker's code runs, and Flight in Python offers no limit for its size.
The system counts the bytes that each connection has received (`TCP_INFO`). So the guard compares this number with a
limit every few milliseconds. It is no exact limit: a fast client sends more between two comparisons.

    connection ──▶ unknown ──▶ call with a valid token ──▶ admitted: no limit of this guard
                      │
                      └─▶ too many bytes, too long, or too many such connections: closed

Rules
- A connection is admitted by a call with a valid token, until it ends.
- An unknown connection is closed after `_SECONDS`, or after it has received `_ABOVE` bytes more than a request may
  have.
- All unknown connections together may receive `_SUM_MAX` bytes, or as much as one of them. There may be `_UNKNOWN_MAX`.
  Above these limits the guard closes those with the most bytes, and those that are the oldest.
- A comparison takes at most a twentieth of the guard's time, however many files are open.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import unquote

from pyspark_ledger.ledger.clock import Clock

_MB = 1024 * 1024
_ABOVE = 8 * _MB
_SUM_MAX = 128 * _MB
_UNKNOWN_MAX = 1024
_SECONDS = 30
_INTERVAL_MS = 20
_SHARE = 20  # of the time, the part that the guard may use
_RECEIVED = struct.Struct("=128xQ")  # `tcpi_bytes_received` of Linux's `struct tcp_info`
_log = logging.getLogger(__name__)

Peer = tuple[str, int]
"""Address and port of a client."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Open connection of a client. `inode` is the number of its socket, which no other open socket has."""

    inode: int
    peer: Peer
    received: int
    close: Callable[[], None]


Sockets = tuple[set[int], list[Connection]]
"""Inodes of all open sockets, and the connections among them that the guard does not know."""


class ConnectionGuard:
    """Guard of one port. Thread-safe."""

    def __init__(
        self, connections: Callable[[AbstractSet[int]], Sockets], request_max: int, monotonic_ms: Clock
    ) -> None:
        self._connections = connections
        self._request_max = request_max
        self._clock = monotonic_ms
        self._lock = threading.Lock()
        self._peers: dict[str, tuple[Peer | None, int]] = {}
        self._admitted: dict[int, Peer] = {}
        self._foreign: set[int] = set()  # sockets that are no connections of the port, such as those to S3
        self._since: dict[int, int] = {}
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the thread that compares."""
        threading.Thread(target=self._run, name="connection guard", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def admit(self, peer: str) -> None:
        """Admit a connection, because a call with a valid token came over it. `peer` is gRPC's name of the client."""
        if peer not in self._peers:
            with self._lock:
                self._peers[peer] = (peer_of(peer), self._clock())

    def sweep(self) -> int:
        """Compare all connections with the limits once. Return the number of connections that were closed."""
        unknown, now = self._noted(), self._clock()
        most = self._request_max + _ABOVE
        small = [found for found in unknown if found.received <= most]
        large = [found for found in unknown if found.received > most]
        closing = {
            found.inode: "sent too much before a call with a valid token"
            for found in (*large, *_largest_above(small, max(most, _SUM_MAX)))
        }
        unknown.sort(key=lambda found: self._since[found.inode])
        for place, found in enumerate(unknown):
            if now - self._since[found.inode] > _SECONDS * 1000 or place < len(unknown) - _UNKNOWN_MAX:
                closing.setdefault(found.inode, "made no call with a valid token in time")
        self._close([found for found in unknown if found.inode in closing], closing)
        return len(closing)

    def _noted(self) -> list[Connection]:
        """Record which connections are new, admitted or gone. Return those that are not admitted."""
        inodes, connections = self._connections(self._admitted.keys() | self._foreign)
        self._foreign = inodes - self._admitted.keys() - {found.inode for found in connections}
        now = self._clock()
        with self._lock:
            admitted = {peer for peer, _ in self._peers.values()}
            self._admitted = {inode: peer for inode, peer in self._admitted.items() if inode in inodes}
            self._admitted |= {found.inode: found.peer for found in connections if found.peer in admitted}
            peers = set(self._admitted.values())
            # A new connection may be missing in `connections`, so its name is kept for a while.
            self._peers = {
                name: (peer, at) for name, (peer, at) in self._peers.items() if peer in peers or now - at < 10_000
            }
        unknown = [found for found in connections if found.inode not in self._admitted]
        self._since = {found.inode: self._since.get(found.inode, now) for found in unknown}
        return unknown

    def _close(self, connections: list[Connection], reasons: dict[int, str]) -> None:
        for found in connections:
            found.close()
        for reason in sorted({reasons[found.inode] for found in connections}):
            closed = [found for found in connections if reasons[found.inode] == reason]
            most = max(closed, key=lambda found: found.received)
            _log.warning(
                "closed %d connections that %s; that of %s:%d had sent %d bytes",
                *(len(closed), reason, *most.peer, most.received),
            )

    def _run(self) -> None:
        pause = _INTERVAL_MS
        while not self._stopped.wait(pause / 1000):
            begin = self._clock()
            try:
                self.sweep()
            except Exception:  # noqa: BLE001 — the guard goes on
                _log.exception("the connections could not be compared with their limits")
            pause = max(_INTERVAL_MS, _SHARE * (self._clock() - begin))


def _largest_above(connections: list[Connection], most: int) -> Iterator[Connection]:
    """Yield the connections with the most bytes, until the others have at most `most` bytes together."""
    left = sum(found.received for found in connections)
    for found in sorted(connections, key=lambda found: found.received, reverse=True):
        if left <= most:
            return
        left -= found.received
        yield found


def peer_of(name: str) -> Peer | None:
    """Return the client that gRPC names `ipv4:1.2.3.4:5` or `ipv6:[::1]:5`, with its brackets or escaped."""
    kind, _, rest = unquote(name).partition(":")
    host, _, port = rest.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    return _plain(host.strip("[]")), int(port)


def _plain(host: str) -> str:
    """Return the text of an address, the same for an IPv4 address and its form in IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def connections_of(port: int, known: AbstractSet[int]) -> Sockets:
    """Return the open sockets of this process, and its connections at one of its ports that are not `known`.

    A known socket costs one call of the system, another five. A process can have thousands.
    """
    inodes, found = set[int](), list[Connection]()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 — only the names are needed
        with suppress(OSError):  # closed meanwhile
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                inodes.add(status.st_ino)
                if status.st_ino not in known:
                    found += _connection(int(name), status.st_ino, port)
    return inodes, found


def _connection(fd: int, inode: int, port: int) -> list[Connection]:
    """Return the connection of a descriptor, if it is one of the port. The descriptor may be closed at any time."""
    with _duplicate(fd) as own:
        if own.family not in (socket.AF_INET, socket.AF_INET6) or own.type != socket.SOCK_STREAM:
            return []
        if own.getsockname()[1] != port or os.fstat(own.fileno()).st_ino != inode:
            return []
        try:
            host, number = own.getpeername()[:2]
        except OSError:
            return []  # the listening socket
        (received,) = _RECEIVED.unpack(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size))
    return [Connection(inode, (_plain(host), number), received, lambda: _shut(fd, inode))]


def _shut(fd: int, inode: int) -> None:
    """End a connection. gRPC then frees its memory, and closes the descriptor itself."""
    with suppress(OSError), _duplicate(fd) as own:
        if os.fstat(own.fileno()).st_ino == inode:
            own.shutdown(socket.SHUT_RDWR)


def _duplicate(fd: int) -> socket.socket:
    """Return a second descriptor of the same socket, which nobody else closes."""
    return socket.socket(fileno=os.dup(fd))
