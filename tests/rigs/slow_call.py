"""Client of HTTP/2 that sends the body of a gRPC call piece by piece, as far as the server takes it."""

from __future__ import annotations

import socket
import ssl
import struct
import time

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_HEADERS = 0x1
_PIECE = 16_384
_SERVICE = "/arrow.flight.protocol.FlightService"


class SlowCall:
    """Call of Flight over a connection of its own. Takes little memory itself, however large the body is."""

    def __init__(self, port: int, method: str, *headers: tuple[str, str], tls: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_connection(("localhost", port), 30)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="localhost")
        self._received = b""
        self._windows = {0: 65_535, 1: 65_535}
        self.answered = False
        """Whether the server has answered the call or refused it."""
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0))
        fields = (
            (":method", "POST"), (":scheme", "http"), (":path", f"{_SERVICE}/{method}"), (":authority", "localhost"),
            ("te", "trailers"), ("content-type", "application/grpc"), *headers,
        )  # fmt: skip
        self._socket.sendall(_frame(_HEADERS, 0x4, 1, b"".join(_literal(*field) for field in fields)))

    def send(self, size: int, stated: int, seconds: float = 60) -> int:
        """Send `size` bytes of a message that states `stated` bytes. Return the number of sent bytes.

        Ends early if the server answers. Raises ConnectionError if the server closes the connection.
        """
        head, sent, until = b"\0" + struct.pack(">I", stated), 0, time.monotonic() + seconds
        while sent < size and not self.answered and time.monotonic() < until:
            room = min(size - sent, *self._windows.values(), _PIECE)
            self._receive(0.2 if room <= 0 else 0.0001)
            if room <= 0:
                continue
            piece = head.ljust(room, b"\0")[:room] if not sent else bytes(room)
            self._socket.settimeout(seconds)
            self._socket.sendall(_frame(_DATA, 0, 1, piece))
            sent += room
            self._windows = {stream: window - room for stream, window in self._windows.items()}
        return sent

    def wait(self, seconds: float = 60) -> None:
        """Wait until the server answers the call. Raises ConnectionError if it closes the connection instead."""
        until = time.monotonic() + seconds
        while not self.answered:
            assert time.monotonic() < until, f"no answer within {seconds} s"
            self._receive(0.2)

    def close(self) -> None:
        self._socket.close()

    def _receive(self, seconds: float) -> None:
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(65_536)
        except (TimeoutError, ssl.SSLWantReadError):
            return
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        self._received += data
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + size:
                return
            kind, flags, stream = struct.unpack(">BBI", self._received[3:9])
            body, self._received = self._received[9 : 9 + size], self._received[9 + size :]
            self._handle(kind, flags, stream & 0x7FFF_FFFF, body)

    def _handle(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == _WINDOW:
            self._windows[stream] += int.from_bytes(body, "big")
        elif kind == _SETTINGS and not flags & _ACK:
            for number, value in struct.iter_unpack(">HI", body):
                self._windows[1] += value - 65_535 if number == 4 else 0
            self._socket.sendall(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, _ACK, 0, body))
        elif kind in (_HEADERS, _RESET, _GO_AWAY):
            self.answered = True


def _frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def _literal(name: str, value: str) -> bytes:
    """Return a header field without compression."""
    return b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in (name, value))
