"""Transport of a producer's entries to the broker: through shared memory on one host, or by Flight from any host.

    to the broker     AppendCommand + descriptor of the ring, then packets of offsets; a packet with a descriptor is
                      one entry, in a file of its own
    from the broker   Appended …

On the broker's host an entry is copied once, and only its offset crosses the socket. The broker chooses the abstract
name of the socket and sends it in its welcome. Both ends check that the other is the same user.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Sequence
from functools import cache
from typing import Protocol, TypeAlias

from pyarrow import flight

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.client.broker_connection import BrokerConnection
from pyspark_ledger.ledger.protocol.actions import ENTRY_SCHEMA, AppendCommand, Welcome
from pyspark_ledger.ledger.protocol.names import request_body
from pyspark_ledger.ledger.transport.shared_ring import RingWriter, entry_batch, is_same_user, pack_places, sealed_file

_log = logging.getLogger(__name__)
# A kernel's answers to a call that a container's policy forbids.
_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_REPLY_BYTES_MAX = 64 * 1024
# A ring larger than the data of a few syncs gains nothing, and the kernel must allocate each of its pages.
_RING_BYTES_MAX = 32 * 1024 * 1024

# An entry until it is acknowledged: its bytes, or its offset in the ring.
SentEntry: TypeAlias = "Buffer | int"


class EntryStream(Protocol):
    """Producer's end of an append stream. `hold` and `release` are called with the producer's lock held."""

    def has_room(self, size: int) -> bool:
        """Return whether an entry can be kept now. If not, it can be kept after a release."""

    def hold(self, buffers: Sequence[Buffer], size: int) -> SentEntry:
        """Keep an entry until it is acknowledged."""

    def release(self, held: SentEntry) -> None:
        """Release the oldest kept entry, which is settled."""

    def send(self, entries: Sequence[tuple[SentEntry, int]]) -> None:
        """Send entries, each with its size. Blocks while the broker has no room."""

    def finish(self) -> None:
        """End the sending side."""

    def read(self) -> bytes | None:
        """Return the next reply; None after the broker has ended the stream."""

    def close(self) -> None:
        """Close a stream that the broker has ended too. No entry may be sent after it."""

    def drop(self) -> None:
        """Drop a broken stream."""

    def free(self) -> None:
        """Release the memory of entries: a producer may be referenced long after its end."""


def open_stream(
    client: BrokerConnection, welcome: Welcome, command: AppendCommand, max_in_flight_bytes: int
) -> EntryStream:
    """Open a stream by shared memory if the broker is on this host and of this user, else by Flight.

    A kernel that forbids such sockets or anonymous files is logged once for a process.
    """
    try:
        local = _same_user_socket(welcome.append_socket)
        if local is not None:
            return RingStream(local, command, min(2 * max_in_flight_bytes, _RING_BYTES_MAX))
    except OSError as error:
        if error.errno not in _FORBIDDEN:
            raise
        _warn_once(f"a producer's entries go over Flight, because this host forbids shared memory: {error}")
    return FlightStream(client, command)


@cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


class RingStream:
    """Stream by shared memory."""

    def __init__(self, local: socket.socket, command: AppendCommand, ring_bytes: int) -> None:
        self._socket = local
        try:
            self._ring = RingWriter(ring_bytes)
            try:
                socket.send_fds(local, [request_body(command)], [self._ring.fd])
            finally:
                self._ring.close()
        except BaseException:
            local.close()
            raise

    def has_room(self, size: int) -> bool:
        """Return whether the ring has room. A larger entry needs none of it."""
        return size > self._ring.size or self._ring.has_room(size)

    def hold(self, buffers: Sequence[Buffer], size: int) -> SentEntry:
        """Copy an entry into the ring, unless it is larger than the ring."""
        offset = self._ring.write(buffers, size)
        return offset if offset >= 0 else _joined(buffers)

    def release(self, held: SentEntry) -> None:
        """Free the entry's place in the ring."""
        if isinstance(held, int):
            self._ring.release()

    def send(self, entries: Sequence[tuple[SentEntry, int]]) -> None:
        """Send offsets; an entry outside of the ring is sent as a file."""
        places: list[tuple[int, int]] = []
        for held, size in entries:
            if isinstance(held, int):
                places.append((held, size))
                continue
            self._send_places(places)
            places = []
            fd = sealed_file(size, [held])
            try:
                socket.send_fds(self._socket, [pack_places([(0, size)])], [fd])
            finally:
                os.close(fd)
        self._send_places(places)

    def finish(self) -> None:
        """Shut down the writing side."""
        self._socket.shutdown(socket.SHUT_WR)

    def read(self) -> bytes | None:
        """Return one packet. If a broker closes with unread packets, the reset comes first and its answer after it."""
        try:
            return self._socket.recv(_REPLY_BYTES_MAX) or None
        except ConnectionResetError:
            return self._socket.recv(_REPLY_BYTES_MAX) or None

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def drop(self) -> None:
        """Close the socket."""
        self._socket.close()

    def free(self) -> None:
        """Free the ring."""
        self._ring.free()

    def _send_places(self, places: list[tuple[int, int]]) -> None:
        if places:
            self._socket.send(pack_places(places))


class FlightStream:
    """Stream by `DoPut`."""

    def __init__(self, client: BrokerConnection, command: AppendCommand) -> None:
        descriptor = flight.FlightDescriptor.for_command(request_body(command))
        self._writer, self._reader = client.connection().do_put(descriptor, ENTRY_SCHEMA, client.options())

    def has_room(self, size: int) -> bool:  # noqa: ARG002 — the ring needs it
        """Return True: only the producer limits the kept entries."""
        return True

    def hold(self, buffers: Sequence[Buffer], size: int) -> SentEntry:  # noqa: ARG002 — the ring needs it
        """Return the entry's buffers, joined."""
        return _joined(buffers)

    def release(self, held: SentEntry) -> None:
        """Do nothing."""

    def send(self, entries: Sequence[tuple[SentEntry, int]]) -> None:
        """Send the entries as one batch."""
        self._writer.write_batch(entry_batch([held for held, _ in entries if not isinstance(held, int)]))

    def finish(self) -> None:
        """Half-close the call."""
        self._writer.done_writing()

    def read(self) -> bytes | None:
        """Return one metadata message."""
        try:
            reply = self._reader.read()
        except StopIteration:
            return None
        return None if reply is None else reply.to_pybytes()

    def close(self) -> None:
        """End the call. Raises the broker's error."""
        self._writer.close()

    def free(self) -> None:
        """Do nothing."""

    def drop(self) -> None:
        """Do nothing: gRPC has ended the call, and must not end it twice."""


def _same_user_socket(name: str) -> socket.socket | None:
    if not name:
        return None
    try:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except PermissionError:
        return None  # this host forbids such sockets
    try:
        local.connect(f"\0{name}")
        if is_same_user(local):
            return local
    except OSError:
        pass  # the broker is on another host: this host has no such name
    local.close()
    return None


def _joined(entry: Sequence[Buffer]) -> Buffer:
    return entry[0] if len(entry) == 1 else b"".join(memoryview(buffer) for buffer in entry)
