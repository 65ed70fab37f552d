"""Goal: no client fills the broker's log. Method: an HTTP server here, malformed requests, lost clients."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterator

import pytest

from pyspark_ledger.ledger.broker.web.address import WebAddress
from pyspark_ledger.ledger.broker.web.server import Answer, WebServer
from tests.rigs.deadline import wait_until

HOST = b"Host: 127.0.0.1\r\n\r\n"
CLOSES = struct.pack("ii", 1, 0)  # the socket's close sends a reset


@pytest.fixture(scope="module")
def web() -> Iterator[WebServer]:
    def endless(send: object) -> None:
        while True:
            send(b"news\n")  # type: ignore[operator]

    server = WebServer(
        WebAddress("127.0.0.1", 0), {"/": lambda _: Answer(b"page"), "/events": lambda _: Answer(endless)}
    )
    yield server
    server.stop()


def ask(web: WebServer, request: bytes) -> bytes:
    with socket.create_connection(web.server_address[:2], timeout=30) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(4096), b""))


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /?" + b"&".join(b"a%d=1" % number for number in range(40)) + b" HTTP/1.1\r\n" + HOST,
        b"GET / HTTP/1.1\r\nHost: [::\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: [1.2.3.4]\r\n\r\n",
        b"GET http://[::1/ HTTP/1.1\r\n" + HOST,
        b"\x00\xff\x16\x03\r\n\r\n",
        b"GET / HTTP/9.x\r\n" + HOST,
    ],
)
def test_a_malformed_request_gets_400_and_no_line_in_the_log(
    web: WebServer, request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    answer = ask(web, request_)
    assert b"400" in answer
    assert b"Traceback" not in answer
    assert caplog.records == []
    assert ask(web, b"GET / HTTP/1.1\r\n" + HOST).endswith(b"page")


def test_clients_that_leave_put_no_line_into_the_log(web: WebServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for request in (b"GET /events HTTP/1.1\r\n" + HOST, b"GET / HT", b""):
        with socket.create_connection(web.server_address[:2], timeout=30) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CLOSES)
            connection.sendall(request)
            if b"events" in request:
                assert connection.recv(100)
    wait_until(lambda: sum("ended" in record.getMessage() for record in caplog.records) >= 1)
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []
