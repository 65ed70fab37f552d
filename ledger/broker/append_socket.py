"""Local socket for producers on the broker's host.

A producer writes its entries into shared memory. Then it sends packets over the socket, which have the offsets of the
entries in this memory. `ledger.client.append_transport` defines the packets. Each producer has one connection, and the
broker has one thread for each connection.

Invariants
- The broker refuses connections of other users.
- Each broker process has a new socket name. A client gets the name with the broker's first reply. So the
  name never leads to another broker.
- If the broker has too few file descriptors or threads, a producer waits or gets an error. The listener stays open.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec

from pyspark_ledger.ledger.broker.append_stream import Replies
from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.errors import LedgerError, Refused, Unavailable
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.actions import AppendCommand, Appended
from pyspark_ledger.ledger.protocol.ends import WireError
from pyspark_ledger.ledger.transport.shared_ring import RingReader, entry_file, is_same_user

_PACKET_BYTES_MAX = 64 * 1024
_DESCRIPTORS_MAX = 4
_TRUNCATED = int(socket.MSG_TRUNC)  # an integer, because bit operations on enumeration members are slow
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_DONT_WAIT = int(socket.MSG_DONTWAIT)
_CUT = _TRUNCATED | int(socket.MSG_CTRUNC)
_RETRY_SECONDS = 0.5  # until `accept` is tried again after an error
_log = logging.getLogger(__name__)


Serve = Callable[[AppendCommand, Replies, Iterator[list[memoryview]]], None]
_COMMAND = msgspec.json.Decoder(AppendCommand)


class AppendSocketListener:
    """Listener that accepts producers from its creation on.

    It calls `serve` for each producer. `serve` appends the producer's entries, and raises the log's errors.
    """

    def __init__(self, serve: Serve) -> None:
        self.name = f"ledger-append-{new_id()}"
        self._serve = serve
        self._closed = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(f"\0{self.name}")
        self._socket.listen(socket.SOMAXCONN)
        threading.Thread(target=self._accept, name="append listener", daemon=True).start()

    def close(self) -> None:
        """Accept no more producers. Open connections stay open."""
        self._closed.set()
        with suppress(OSError):  # closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                peer, _ = self._socket.accept()
            except Exception as error:  # noqa: BLE001 — the listener stays open
                if not self._closed.is_set():
                    _log.error("cannot accept a producer, will try again: %r", error)
                    self._closed.wait(_RETRY_SECONDS)
                continue
            try:
                threading.Thread(target=self._converse, args=(peer,), name="append", daemon=True).start()
            except Exception as error:  # noqa: BLE001 — as above
                with peer:
                    _send_error(peer, Unavailable(f"the broker cannot start a thread for another producer: {error}"))

    def _converse(self, peer: socket.socket) -> None:
        with peer:
            try:
                if is_same_user(peer):
                    command, ring = _read_command(peer)
                    self._serve(command, _Packets(peer), _received_entries(peer, ring))
            except LedgerError as error:
                _send_error(peer, error)
            except Exception as error:  # noqa: BLE001 — the producer must get every error
                _log.exception("an append stream failed with an unexpected error")
                _send_error(peer, LedgerError(f"the broker failed: {error!r}", hint="See broker.log in the store"))


class _Packets:
    """Reply channel that sends each reply as one packet."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer

    def write(self, message: bytes) -> None:
        """Send one reply. Raises Unavailable if the producer has closed the connection or was killed."""
        self._send(message, 0)

    def write_at_once(self, message: bytes) -> bool:
        try:
            self._send(message, _DONT_WAIT)
        except BlockingIOError:
            return False
        return True

    def _send(self, message: bytes, flags: int) -> None:
        try:
            self._peer.send(message, flags)
        except ConnectionError as error:
            raise Unavailable(f"the producer has closed the connection: {error}") from error


def _read_command(peer: socket.socket) -> tuple[AppendCommand, RingReader]:
    """Return the command of the first packet, and the producer's shared memory.

    The packet carries the file descriptor of this memory.
    """
    body, files = _packet(peer)
    try:
        command = _COMMAND.decode(body)
        if len(files) != 1:
            raise Refused(f"the first packet of an append stream has {len(files)} descriptors, expected 1")
        return command, RingReader(files[0])
    except JSON_FAULTS as wrong:
        raise Refused(f"the first packet of an append stream is no AppendCommand: {json_fault(wrong)}") from wrong
    finally:
        for fd in files:
            os.close(fd)


def _received_entries(peer: socket.socket, ring: RingReader) -> Iterator[list[memoryview]]:
    while True:
        places, files = _packet(peer)
        try:
            if not places:
                return
            yield [entry_file(fd) for fd in files] if files else ring.entries(places)
        finally:
            for fd in files:
                os.close(fd)


def _packet(peer: socket.socket) -> tuple[bytes, list[int]]:
    """Return one packet and its descriptors. Both are empty at the end of the stream, or if the producer was killed."""
    try:
        body, files, flags, _ = socket.recv_fds(peer, _PACKET_BYTES_MAX, _DESCRIPTORS_MAX, _CLOSE_ON_EXEC)
    except ConnectionError:
        return b"", []
    if not flags & _CUT:
        return body, files
    for fd in files:
        os.close(fd)
    if flags & _TRUNCATED:
        raise Refused(f"a packet of an append stream exceeds {_PACKET_BYTES_MAX} bytes")
    raise Unavailable(
        f"the broker did not get all descriptors of a packet: the packet has more than {_DESCRIPTORS_MAX}, or the "
        "broker has reached its limit of open files",
        hint="Use fewer producers at once, or raise the broker's limit of open files (ulimit -n)",
    )


def _send_error(peer: socket.socket, error: LedgerError) -> None:
    with suppress(OSError):  # the producer has closed the connection
        peer.send(msgspec.msgpack.encode(Appended(EARLIEST, 0, WireError.of(error))))
