"""How a producer's entries reach the broker: through memory that both share on one host, or by Flight from anywhere.

    to the broker     AppendCommand + descriptor of the ring, then packets of places; a packet that comes with a
                      descriptor is one entry, in a file of its own
    from the broker   Appended …

On the broker's host an entry is copied once, and what crosses the socket is its place. The socket has an abstract name
that the broker made up and tells in its welcome; both ends see to it that the other is the same user.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from pyarrow import flight

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.client.broker_connection import BrokerConnection
from pyspark_ledger.ledger.protocol.actions import ENTRY_SCHEMA, AppendCommand, Welcome
from pyspark_ledger.ledger.protocol.names import request_body
from pyspark_ledger.ledger.transport.shared_ring import RingWriter, entry_batch, is_same_user, pack_places, sealed_file

_REPLY_BYTES_MAX = 64 * 1024
# A ring that is larger than what the disk takes in a few syncs gains nothing, and every page of it is first made.
_RING_BYTES_MAX = 32 * 1024 * 1024

# Where an entry is until it is acknowledged: its bytes, or its offset in the ring.
BlockReference: TypeAlias = "Buffer | int"


class EntryStream(Protocol):
    """The producer's end of one append stream. `hold` and `release` are called under the producer's lock."""

    def has_room(self, size: int) -> bool:
        """Whether an entry can be kept now; when not, it can be after some have been released."""

    def hold(self, buffers: Sequence[Buffer], size: int) -> BlockReference:
        """Keep an entry until it is acknowledged."""

    def release(self, held: BlockReference) -> None:
        """The oldest entry that was kept is settled."""

    def send(self, entries: Sequence[tuple[BlockReference, int]]) -> None:
        """Send entries, each with its size; blocks while the broker has no room."""

    def finish(self) -> None:
        """Nothing more will be sent."""

    def read(self) -> bytes | None:
        """The next reply; None when the broker has ended the stream."""

    def close(self) -> None:
        """End a stream that the broker has ended too; nobody sends any more."""

    def drop(self) -> None:
        """Let go of a stream that is broken."""

    def free(self) -> None:
        """Let go of what entries were kept in, once none will be: a producer may be remembered long after its end."""


def open_stream(
    client: BrokerConnection, welcome: Welcome, command: AppendCommand, max_in_flight_bytes: int
) -> EntryStream:
    """By shared memory where the broker is on this host and of this user, else by Flight."""
    local = _same_user_socket(welcome.append_socket)
    if local is not None:
        return RingStream(local, command, min(2 * max_in_flight_bytes, _RING_BYTES_MAX))
    return FlightStream(client, command)


class RingStream:
    """A stream by shared memory."""

    def __init__(self, local: socket.socket, command: AppendCommand, ring_bytes: int) -> None:
        self._socket = local
        self._ring = RingWriter(ring_bytes)
        try:
            socket.send_fds(local, [request_body(command)], [self._ring.fd])
        except BaseException:
            local.close()
            raise
        finally:
            self._ring.close()

    def has_room(self, size: int) -> bool:
        """In the ring; what is larger needs none of it."""
        return size > self._ring.size or self._ring.has_room(size)

    def hold(self, buffers: Sequence[Buffer], size: int) -> BlockReference:
        """In the ring; an entry larger than the ring stays where it is."""
        offset = self._ring.write(buffers, size)
        return offset if offset >= 0 else _joined(buffers)

    def release(self, held: BlockReference) -> None:
        """Free its place."""
        if isinstance(held, int):
            self._ring.release()

    def send(self, entries: Sequence[tuple[BlockReference, int]]) -> None:
        """As places; an entry that is not in the ring goes as a file."""
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
        """The broker reads the end."""
        self._socket.shutdown(socket.SHUT_WR)

    def read(self) -> bytes | None:
        """One packet. When a broker hangs up with packets unread the reset comes first, what it said behind it."""
        try:
            return self._socket.recv(_REPLY_BYTES_MAX) or None
        except ConnectionResetError:
            return self._socket.recv(_REPLY_BYTES_MAX) or None

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def drop(self) -> None:
        """Hang up."""
        self._socket.close()

    def free(self) -> None:
        """Of the ring."""
        self._ring.free()

    def _send_places(self, places: list[tuple[int, int]]) -> None:
        if places:
            self._socket.send(pack_places(places))


class FlightStream:
    """A stream by `DoPut`."""

    def __init__(self, client: BrokerConnection, command: AppendCommand) -> None:
        descriptor = flight.FlightDescriptor.for_command(request_body(command))
        self._writer, self._reader = client.connection().do_put(descriptor, ENTRY_SCHEMA, client.options())

    def has_room(self, size: int) -> bool:  # noqa: ARG002 — the ring needs it
        """Nothing limits what is kept but the producer itself."""
        return True

    def hold(self, buffers: Sequence[Buffer], size: int) -> BlockReference:  # noqa: ARG002 — the ring needs it
        """As it is, joined."""
        return _joined(buffers)

    def release(self, held: BlockReference) -> None:
        """Nothing is kept elsewhere."""

    def send(self, entries: Sequence[tuple[BlockReference, int]]) -> None:
        """As one batch."""
        self._writer.write_batch(entry_batch([held for held, _ in entries if not isinstance(held, int)]))

    def finish(self) -> None:
        """Half-close."""
        self._writer.done_writing()

    def read(self) -> bytes | None:
        """One metadata message."""
        try:
            reply = self._reader.read()
        except StopIteration:
            return None
        return None if reply is None else reply.to_pybytes()

    def close(self) -> None:
        """End the call; raises what the broker ended it with."""
        self._writer.close()

    def free(self) -> None:
        """Nothing is kept elsewhere."""

    def drop(self) -> None:
        """Nothing: gRPC has ended the call, and must not be asked to do it again."""


def _same_user_socket(name: str) -> socket.socket | None:
    if not name:
        return None
    local = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        local.connect(f"\0{name}")
        if is_same_user(local):
            return local
    except OSError:
        pass  # the broker is on another host: nobody has this name here
    local.close()
    return None


def _joined(entry: Sequence[Buffer]) -> Buffer:
    return entry[0] if len(entry) == 1 else b"".join(memoryview(buffer) for buffer in entry)
