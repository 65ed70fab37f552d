"""Proxy in front of the S3 server that simulates faults: requests fail, get lost, are cut off or delayed.

    proxy.on("PUT", "partNumber", "lost", times=1)      the request arrives, the answer is lost

Faults
- `error`: 503, the request does not arrive. `forbidden`: 403. `internal`: 500. `throttle`: 503 with S3's code SlowDown.
- a status and a code, such as `409 OperationAborted`: the request does not arrive, and this is the answer. A third word
  is the storage class in the answer.
- `refused`: the request arrives, and the answer is 412.
- `twice`: the request arrives twice, and the answer is that of the first.
- `stop`: this request and all later ones wait until the test sets `released`. `reached` is set.
- `lost`: the request arrives, and the connection breaks instead of an answer.
- `cut`: the client gets half of the answer's body.
- `slow`: the answer comes a tenth of a second later. `late`: a second later.
- `hang`: no answer comes until the client gives up.
- `before`, `after`: hold a request just before it arrives or just after, and set `reached`. The connection breaks when
  the test sets `released`.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self
from urllib.parse import urlsplit

_HANG_SECONDS = 1.5
_REFUSALS = {"error": "503", "forbidden": "403", "internal": "500", "throttle": "503 SlowDown"}
_PRECONDITION = b"<Error><Code>PreconditionFailed</Code></Error>"
_HELD_SECONDS = 60.0
_wait = threading.Event().wait  # tests remove the pauses between retries


class Handled(NamedTuple):
    """Request that the proxy has received as a whole, and the length of its body."""

    method: str
    path: str
    size: int


@dataclass
class Fault:
    """Fault of requests with the given method and the given text in their path."""

    method: str
    text: str
    kind: str
    left: int


class FaultProxy:
    """Proxy that listens at `endpoint`. It ends with the context."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self.target = (parts.hostname or "", parts.port or 0)
        self.faults: list[Fault] = []
        self.met = self.requests = self.got_bytes = 0
        """`got_bytes` are the bytes of objects that the server has sent: the bodies of its answers to GET."""
        self.handled: list[Handled] = []
        """The requests that have no answer yet."""
        self.reached, self.released = threading.Event(), threading.Event()
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        class Server(ThreadingHTTPServer):
            request_queue_size = 128  # racers connect at once, and a full queue costs a second

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def on(self, method: str, text: str, kind: str, times: int = 1) -> None:
        self.faults.append(Fault(method, text, kind, times))

    def heal(self) -> None:
        self.faults.clear()
        self.stopped.clear()
        self.released.set()

    def fault_of(self, method: str, path: str) -> str:
        with self._lock:
            self.requests += 1
            for fault in self.faults:
                if fault.left and fault.method in ("*", method) and fault.text in path:
                    fault.left -= 1
                    self.met += 1
                    return fault.kind
        return ""

    def sent(self, method: str, size: int) -> None:
        with self._lock:
            self.got_bytes += size if method == "GET" else 0

    @contextmanager
    def handling(self, request: Handled) -> Iterator[None]:
        """Count a request as unanswered."""
        with self._lock:
            self.handled.append(request)
        try:
            yield
        finally:
            with self._lock:
                self.handled.remove(request)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _stated(fault: str) -> tuple[int, list[tuple[str, str]], bytes]:
    status, code, tier = [*fault.split(), "", ""][:3]
    tier = f"<StorageClass>{tier}</StorageClass>" if tier else ""
    body = f"<Error><Code>{code}</Code><Message>Text of S3.</Message>{tier}</Error>".encode() if code else b""
    return int(status), [("Content-Type", "application/xml")], body


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: FaultProxy

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def handle_any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:  # the client was killed
            self.close_connection = True
            return
        with self.owner.handling(Handled(self.command, self.path, length)), suppress(ConnectionError):
            self.respond(body)

    def respond(self, body: bytes) -> None:
        fault = self.owner.fault_of(self.command, self.path)
        fault = _REFUSALS.get(fault, fault)
        if fault[:1].isdigit():
            self.answer(*_stated(fault))
            return
        if fault == "stop":
            self.owner.stopped.set()
        if self.owner.stopped.is_set():
            self.held()
        if fault in ("hang", "before"):
            _wait(_HANG_SECONDS) if fault == "hang" else self.held()
            self.close_connection = True
            return
        answer, data = self.forward(body)
        if fault == "twice":
            self.forward(body)
        if fault == "refused":
            self.answer(412, [], _PRECONDITION)
            return
        if fault in ("lost", "after"):
            if fault == "after":
                self.held()
            self.close_connection = True
            return
        if fault in ("slow", "late"):
            _wait(0.1 if fault == "slow" else 1.0)
        self.answer(answer.status, answer.getheaders(), data, cut=fault == "cut")

    def forward(self, body: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        """Send the request to the server. Return its answer, and the body of the answer."""
        connection = http.client.HTTPConnection(*self.owner.target, timeout=30)
        connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        self.owner.sent(self.command, len(data))
        return answer, data

    def held(self) -> None:
        self.owner.reached.set()
        self.owner.released.wait(_HELD_SECONDS)

    def answer(self, status: int, headers: list[tuple[str, str]], data: bytes, *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        stated = {name.lower(): value for name, value in headers}.get("content-length")
        length = int(stated) if self.command == "HEAD" and stated else len(data)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        with suppress(ConnectionError):  # the client closed the connection
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.wfile.flush()
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815 — names of the base class
