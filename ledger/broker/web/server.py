"""HTTP server of a broker: one thread for each request. GET and HEAD, and PUT for the admin requests.

    /metrics     metrics of the broker for Prometheus: OpenMetrics if the client accepts it, else Prometheus' text
    /health      200 while the broker owns its store, else 503; JSON
    /ready       200 while the broker takes calls, else 503; JSON with the ledgers that take no appends
    /            the status page, see `ledger.broker.web.page`
    /admin/v2/   Pulsar's admin requests for offloads, if switched on (`ledger.broker.web.admin`)

Rules
- A request does not count as a call of the broker. So a broker exits when it is idle, even if a monitor reads metrics.
- A connection is *waiting* until its client has sent a whole request. A client has `_SECONDS` for this, from the first
  byte to the last, and the same time to take the answer.
- There are at most `_CONNECTIONS`. A further connection replaces the one that has waited longest. So slow clients keep
  nobody out.
- At most `_REQUESTS` are served at once; further requests get status 503. Exception: `/health` and `/ready` are always
  served.
- A response contains neither rows nor credentials.
- A malformed request gets status 400, and is logged at level DEBUG only. A client must not fill the broker's log.
- If a handler fails, the broker logs the error and responds with status 500, without the error's text.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6, SHUT_RDWR, socket
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pyspark_ledger.ledger.broker.web.address import WebAddress
from pyspark_ledger.ledger.clock import Clock, monotonic_ms
from pyspark_ledger.ledger.errors import Refused

_SECONDS = 10
_REQUESTS = 64
_ALWAYS = frozenset({"/health", "/ready"})
_CONNECTIONS = 256
_FIELDS = 16
ADMIN = "/admin/v2/"
"""Prefix of the paths of one route, which also gets PUT requests."""
_BODY_BYTES = 4096
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Request for one path. `headers` have lower-case names. `query` has the first value of each name."""

    path: str
    headers: Mapping[str, str]
    query: Mapping[str, str] = dataclass_field(default_factory=dict)
    method: str = "GET"
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """Response to a request.

    `body` is the whole body, or a function that sends an endless body. The function gets `send`, which sends bytes.
    """

    body: bytes | Callable[[Callable[[bytes], None]], None]
    content_type: str = "application/json"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = dataclass_field(default_factory=dict)


Route = Callable[[HttpRequest], Answer]


class WaitingConnections:
    """The open connections, and the time since which each waits for a request; None while a request is served."""

    def __init__(self, most: int, monotonic_ms: Clock) -> None:
        self._most = most
        self._clock = monotonic_ms
        self._lock = threading.Lock()
        self._since: dict[socket, int | None] = {}

    def add(self, connection: socket) -> bool:
        """Add a waiting connection. If there are too many, close the one that waits longest.

        Return False if no connection waits. Then the new connection is not added.
        """
        with self._lock:
            if len(self._since) >= self._most:
                longest = min(self._waiting(), key=lambda found: found[1], default=None)
                if longest is None:
                    return False
                self._close(longest[0])
            self._since[connection] = self._clock()
            return True

    def begin(self, connection: socket) -> None:
        """Record that a connection waits for its next request."""
        self._set(connection, self._clock())

    def served(self, connection: socket) -> None:
        """Record that the request of a connection has arrived."""
        self._set(connection, None)

    def remove(self, connection: socket) -> None:
        with self._lock:
            self._since.pop(connection, None)

    def close_older(self, milliseconds: int) -> None:
        """Close the connections that have waited for longer than `milliseconds`."""
        with self._lock:
            until = self._clock() - milliseconds
            for connection, since in self._waiting():
                if since < until:
                    self._close(connection)

    def _set(self, connection: socket, since: int | None) -> None:
        with self._lock:
            if connection in self._since:  # otherwise closed meanwhile
                self._since[connection] = since

    def _waiting(self) -> list[tuple[socket, int]]:
        return [(connection, since) for connection, since in self._since.items() if since is not None]

    def _close(self, connection: socket) -> None:
        """End a connection. Its thread then ends by itself. Called with the lock held."""
        del self._since[connection]
        with suppress(OSError):  # the client has closed the connection already
            # Not `connection.shutdown`: for TLS it would also change the state that the thread of the connection uses.
            socket.shutdown(connection, SHUT_RDWR)


class WebServer(ThreadingHTTPServer):
    """HTTP server at one address, from its construction until `stop`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: WebAddress, routes: Mapping[str, Route]) -> None:
        self.address = address
        self.routes = dict(routes)
        self.room = threading.BoundedSemaphore(_REQUESTS)
        self.waiting = WaitingConnections(_CONNECTIONS, monotonic_ms)
        if ":" in address.host:
            self.address_family = AF_INET6
        try:
            super().__init__((address.host, address.port), _Handler)
        except OSError as error:
            url = address.url(address.port)
            raise Refused(
                f"the status page cannot be served at {url}: {error.strerror}", hint="Choose another port"
            ) from None
        threading.Thread(target=self.serve_forever, name="web", daemon=True).start()

    @property
    def url(self) -> str:
        """The URL of the service."""
        return self.address.url(int(self.server_address[1]))

    def stop(self) -> None:
        """Close the socket. Requests in flight end with the process."""
        self.shutdown()
        self.server_close()

    def get_request(self) -> tuple[socket, Any]:
        """Accept a connection. The thread of the connection does the TLS handshake later."""
        connection, peer = super().get_request()
        connection.settimeout(_SECONDS)
        if self.address.tls is not None:
            connection = self.address.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, peer

    def service_actions(self) -> None:
        """Close the connections that have waited too long. The thread `web` calls this every half second."""
        self.waiting.close_older(_SECONDS * 1000)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a new thread. Close it if all connections have sent a request and are being served."""
        if self.waiting.add(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.waiting.remove(request)

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """Log a connection that ended early. It is no error of the broker if a client disconnects or uses no TLS."""
        level = logging.DEBUG if isinstance(sys.exception(), OSError) else logging.ERROR
        _log.log(level, "a request from %s ended", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Handler of one connection."""

    protocol_version = "HTTP/1.1"
    server_version = "ledger"
    sys_version = ""
    server: WebServer

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_PUT(self) -> None:
        self.close_connection = True  # a refused request may leave its body unread
        self._answer(with_body=True)

    def handle_one_request(self) -> None:
        """Read a request and answer it."""
        self.server.waiting.begin(self.connection)
        super().handle_one_request()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Log a request at level DEBUG, because a monitor sends a request every few seconds."""
        _log.debug(format, *arguments)

    def _answer(self, *, with_body: bool) -> None:
        self.server.waiting.served(self.connection)
        if self.path.partition("?")[0] in _ALWAYS:
            self._send(self._answered(), with_body=with_body)
            return
        if not self.server.room.acquire(blocking=False):
            self._send(_text(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests at once"), with_body=with_body)
            return
        try:
            self._send(self._answered(), with_body=with_body)
        finally:
            self.server.room.release()

    def _answered(self) -> Answer:
        try:
            return self._served()
        except ValueError as wrong:  # a host, a URL or a query that cannot be parsed
            _log.debug("a request from %s is malformed: %s", self.client_address, wrong)
            return _text(HTTPStatus.BAD_REQUEST, f"the request is malformed: {wrong}")

    def _served(self) -> Answer:
        """Return the answer of the route. Raises ValueError for a malformed request."""
        address = self.server.address
        if not address.allows_host(self.headers.get("Host", "")):
            return _text(HTTPStatus.MISDIRECTED_REQUEST, "this service is not known by that name")
        if not address.allows(self.headers.get("Authorization", "")):
            challenge = {"WWW-Authenticate": 'Basic realm="ledger: the password is the token"'}
            return _text(HTTPStatus.UNAUTHORIZED, "a token of the broker is required", challenge)
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query, max_num_fields=_FIELDS).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        is_admin = url.path.startswith(ADMIN)
        route = self.server.routes.get(ADMIN if is_admin else url.path)
        if self.command == "PUT" and not (is_admin and route is not None):
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "this path takes GET and HEAD", {"Allow": "GET, HEAD"})
        request = HttpRequest(url.path, headers, query, self.command, self._body())
        if route is None:
            return _text(HTTPStatus.NOT_FOUND, f"paths: {' '.join(sorted(self.server.routes))}")
        try:
            return route(request)
        except Exception:  # noqa: BLE001 — answered, and logged with its cause
            _log.exception("the request for %s failed", request.path)
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, "the request failed: see broker.log in the store")

    def _body(self) -> bytes:
        """Return the body of a PUT request. Raises ValueError for a body without a length, or a large one."""
        if self.command != "PUT":
            return b""
        size = int(self.headers.get("Content-Length", ""))
        if not 0 <= size <= _BODY_BYTES:
            raise ValueError(f"the body has {size} bytes, at most {_BODY_BYTES} are read")
        return self.rfile.read(size)

    def _send(self, answer: Answer, *, with_body: bool) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        for name, value in {**_SAFETY, **answer.headers}.items():
            self.send_header(name, value)
        if isinstance(answer.body, bytes):
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if with_body:
                self.wfile.write(answer.body)
            return
        self.close_connection = True
        self.send_header("Connection", "close")
        self.end_headers()
        if with_body:
            answer.body(self._write)

    def _write(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()


_SAFETY = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def _text(status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(f"{text}\n".encode(), "text/plain; charset=utf-8", status, headers or {})
