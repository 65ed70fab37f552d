"""Transport of a producer's entries to the broker: through shared memory if both are on one host, else over Flight.

On the broker's host the producer copies an entry into a *ring buffer*: shared memory whose space is used again in turn.
The producer sends only the entry's offset, over a Unix socket (a connection within a host):

    to the broker     first packet: AppendCommand, and the file descriptor of the ring buffer
                      next packets: offsets and lengths of entries in the ring buffer; or one file descriptor, of a file
                      with one entry
    from the broker   Appended, one packet for each packet with entries

`Welcome`, the broker's reply to a new client, has the name of this socket. The name is not a path: there is no file.
Client and broker each check that the other process belongs to the same user.
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
# Errors of a system call that a container's policy forbids.
_FORBIDDEN = (errno.EPERM, errno.EACCES, errno.ENOSYS)
_REPLY_BYTES_MAX = 64 * 1024
# The ring buffer needs room for the entries of a few syncs. A larger buffer would not be faster.
_RING_BYTES_MAX = 32 * 1024 * 1024

# An entry until it is acknowledged: its bytes, or its offset in the ring.
SentEntry: TypeAlias = "Buffer | int"


class EntryStream(Protocol):
    """Producer's end of an append stream. The caller of `hold` and `release` has the producer's lock."""

    def has_room(self, size: int) -> bool:
        """Return whether `hold` has room for an entry now. If not, it has room after calls of `release`."""

    def hold(self, buffers: Sequence[Buffer], size: int) -> SentEntry:
        """Store an entry until `release`."""

    def release(self, held: SentEntry) -> None:
        """Release the oldest stored entry, which was acknowledged or has failed."""

    def send(self, entries: Sequence[tuple[SentEntry, int]]) -> None:
        """Send stored entries, each with its size. Blocks while the broker does not read."""

    def finish(self) -> None:
        """Tell the broker that no more entries follow."""

    def read(self) -> bytes | None:
        """Return the next reply. Return None after the broker has ended the stream."""

    def close(self) -> None:
        """Close the stream after the broker has ended it too. The caller must send no entry afterwards."""

    def drop(self) -> None:
        """Close a broken stream."""

    def free(self) -> None:
        """Release the memory of all entries. Reason: a caller can keep a closed producer for a long time."""


def open_stream(
    client: BrokerConnection, welcome: Welcome, command: AppendCommand, max_in_flight_bytes: int
) -> EntryStream:
    """Open a stream through shared memory if the broker is on this host and of the same user. Otherwise use Flight.

    If the kernel forbids the socket or a file without a name, also use Flight, and log this once in each process.
    """
    try:
        local = _same_user_socket(welcome.append_socket)
        if local is not None:
            return RingStream(local, command, min(2 * max_in_flight_bytes, _RING_BYTES_MAX))
    except OSError as error:
        if error.errno not in _FORBIDDEN:
            raise
        _warn_once(f"producers send entries over Flight, because this host forbids shared memory: {error}")
    return FlightStream(client, command)


@cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


class RingStream:
    """Stream through shared memory."""

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
        """Return whether the ring has room. An entry larger than the ring is sent as a file and needs no room."""
        return size > self._ring.size or self._ring.has_room(size)

    def hold(self, buffers: Sequence[Buffer], size: int) -> SentEntry:
        """Copy an entry into the ring and return its offset. Return the bytes if the ring has no room."""
        offset = self._ring.write(buffers, size)
        return offset if offset >= 0 else _joined(buffers)

    def release(self, held: SentEntry) -> None:
        """Release the entry's space in the ring."""
        if isinstance(held, int):
            self._ring.release()

    def send(self, entries: Sequence[tuple[SentEntry, int]]) -> None:
        """Send the offsets of entries in the ring. Send any other entry as a file."""
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
        """Return one packet.

        If the broker closes the socket before it has read all packets, `recv` first raises ConnectionResetError. The
        next call returns the broker's last reply.
        """
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
    """Stream over Flight's `DoPut`."""

    def __init__(self, client: BrokerConnection, command: AppendCommand) -> None:
        descriptor = flight.FlightDescriptor.for_command(request_body(command))
        self._writer, self._reader = client.connection().do_put(descriptor, ENTRY_SCHEMA, client.options())

    def has_room(self, size: int) -> bool:  # noqa: ARG002 — another stream uses `size`
        """Return True, because only the producer's own limit applies."""
        return True

    def hold(self, buffers: Sequence[Buffer], size: int) -> SentEntry:  # noqa: ARG002 — another stream uses `size`
        """Return the bytes of the entry in one buffer."""
        return _joined(buffers)

    def release(self, held: SentEntry) -> None:
        """Do nothing."""

    def send(self, entries: Sequence[tuple[SentEntry, int]]) -> None:
        """Send the entries as one batch."""
        self._writer.write_batch(entry_batch([held for held, _ in entries if not isinstance(held, int)]))

    def finish(self) -> None:
        """End the client's side of the call."""
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
        """Do nothing. gRPC has ended the call already, and a second end would crash."""


def _same_user_socket(name: str) -> socket.socket | None:
    if not name:
        return None
    try:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except PermissionError:
        return None  # the host forbids Unix sockets of this kind
    try:
        local.connect(f"\0{name}")
        if is_same_user(local):
            return local
    except OSError:
        pass  # the broker is on another host, so this host has no socket of this name
    local.close()
    return None


def _joined(entry: Sequence[Buffer]) -> Buffer:
    return entry[0] if len(entry) == 1 else b"".join(memoryview(buffer) for buffer in entry)
