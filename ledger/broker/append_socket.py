"""Where producers of the same host and user come in: a local socket whose packets are places in shared memory.

See `ledger.client.append_transport` for what crosses it. A producer is a connection, served by a thread of its own.

Invariants: nobody of another user is listened to; the name is new with every broker, so that a producer can only reach
the one that welcomed it. While descriptors or threads are short producers wait, or are told; the door stays open.
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
from pyspark_ledger.ledger.protocol.actions import AppendCommand, Appended, WireError
from pyspark_ledger.ledger.transport.shared_ring import RingReader, entry_file, is_same_user

_PACKET_BYTES_MAX = 64 * 1024
_DESCRIPTORS_MAX = 4
_TRUNCATED = int(socket.MSG_TRUNC)  # as numbers: the names are members of an enumeration, which is slow to compute with
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_DONT_WAIT = int(socket.MSG_DONTWAIT)
_CUT = _TRUNCATED | int(socket.MSG_CTRUNC)
_SHORT_SECONDS = 0.5  # until a door that could let nobody in tries again
_log = logging.getLogger(__name__)


Serve = Callable[[AppendCommand, Replies, Iterator[list[memoryview]]], None]
_COMMAND = msgspec.json.Decoder(AppendCommand)


class AppendSocketListener:
    """Listens from the moment it is made. `serve` appends what a producer sends, and raises what the log says."""

    def __init__(self, serve: Serve) -> None:
        self.name = f"ledger-append-{new_id()}"
        self._serve = serve
        self._shut = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(f"\0{self.name}")
        self._socket.listen(socket.SOMAXCONN)
        threading.Thread(target=self._accept, name="append door", daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more; who is in stays."""
        self._shut.set()
        with suppress(OSError):  # shut already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while not self._shut.is_set():
            try:
                peer, _ = self._socket.accept()
            except Exception as error:  # noqa: BLE001 — the door stays open
                if not self._shut.is_set():
                    _log.error("a producer cannot come in yet: %r", error)
                    self._shut.wait(_SHORT_SECONDS)
                continue
            try:
                threading.Thread(target=self._converse, args=(peer,), name="append", daemon=True).start()
            except Exception as error:  # noqa: BLE001 — as above
                with peer:
                    _tell(peer, Unavailable(f"the broker has no thread for one more producer: {error}"))

    def _converse(self, peer: socket.socket) -> None:
        with peer:
            try:
                if is_same_user(peer):
                    command, ring = _opened(peer)
                    self._serve(command, _Packets(peer), _sent(peer, ring))
            except LedgerError as error:
                _tell(peer, error)
            except Exception as error:  # noqa: BLE001 — whatever it is, the producer must hear of it
                _log.exception("an append stream failed in a way that nobody foresaw")
                _tell(peer, LedgerError(f"the broker failed: {error!r}", hint="See broker.log in the store"))


class _Packets:
    """Answers as packets."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer

    def write(self, message: bytes) -> None:
        """Send one; raises Unavailable when the producer is gone: it may be killed at any time."""
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
            raise Unavailable(f"the producer is gone: {error}") from error


def _opened(peer: socket.socket) -> tuple[AppendCommand, RingReader]:
    """The first packet: what to append to, and the producer's memory."""
    body, files = _packet(peer)
    try:
        command = _COMMAND.decode(body)
        if len(files) != 1:
            raise Refused(f"an append stream begins with one descriptor, {len(files)} came")
        return command, RingReader(files[0])
    except JSON_FAULTS as wrong:
        raise Refused(f"an append stream begins with an AppendCommand: {json_fault(wrong)}") from wrong
    finally:
        for fd in files:
            os.close(fd)


def _sent(peer: socket.socket, ring: RingReader) -> Iterator[list[memoryview]]:
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
    """One packet and its descriptors; nothing at the end, also of a producer that was killed."""
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
        f"a packet of an append stream lost descriptors: over {_DESCRIPTORS_MAX} came, or the broker has none left",
        hint="Use fewer producers at once, or raise the broker's limit of open files (ulimit -n)",
    )


def _tell(peer: socket.socket, error: LedgerError) -> None:
    with suppress(OSError):  # the producer is gone
        peer.send(msgspec.msgpack.encode(Appended(EARLIEST, 0, WireError(error.code, error.message, error.hint))))
