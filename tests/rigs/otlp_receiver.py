"""Collector of OpenTelemetry: an HTTP server on loopback that decodes the requests of exporters."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from tests.rigs.deadline import wait_until


class Push(NamedTuple):
    """Request of an exporter: its path, its headers in lower case, and its metrics."""

    path: str
    headers: dict[str, str]
    request: ExportMetricsServiceRequest

    def metrics(self) -> dict[str, Any]:
        """Return the metrics by name."""
        (resource,) = self.request.resource_metrics
        (scope,) = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    def resource(self) -> dict[str, str]:
        return _attributes(self.request.resource_metrics[0].resource.attributes)

    def points(self, name: str) -> dict[tuple[tuple[str, str], ...], Any]:
        """Return the data points of a metric by their sorted labels, or none if the request lacks the metric."""
        metric = self.metrics().get(name)
        data = [] if metric is None else getattr(metric, metric.WhichOneof("data")).data_points
        return {tuple(sorted(_attributes(point.attributes).items())): point for point in data}


class OtlpReceiver:
    """Receiver of one test. It runs within a `with` block."""

    def __init__(self) -> None:
        self.pushes = pushes = list[Push]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                headers = {name.lower(): value for name, value in self.headers.items()}
                pushes.append(Push(self.path, headers, ExportMetricsServiceRequest.FromString(body)))
                data = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait(self, wanted: Callable[[Push], bool], what: str) -> Push:
        """Wait for a push that fulfils the condition, and return it."""
        wait_until(lambda: any(map(wanted, self.pushes)), what)
        return next(filter(wanted, self.pushes))


def _attributes(pairs: Any) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in pairs}
