"""Push of a broker's metrics to an OTLP endpoint over HTTP, by the exporter of OpenTelemetry.

OpenTelemetry is a standard for metrics, and OTLP is its protocol. A *collector* is a server that receives metrics.

    BrokerMetrics ──families──▶ data points of OpenTelemetry ──exporter──▶ POST /v1/metrics

Rules
- Names, labels and values are those of the page `/metrics`, because the module `families` produces both. Exception: the
  name of a counter lacks the ending `_total`, which OpenTelemetry adds for Prometheus. A *family* is one metric with
  all its labels.
- Counters and histograms are cumulative since the broker's start.
- One thread of the broker collects, encodes and sends, every `OTEL_METRIC_EXPORT_INTERVAL` milliseconds. The exporter
  retries. A push that fails is dropped, and the next push has all counts.
- This module has its own thread, and does not use OpenTelemetry's `PeriodicExportingMetricReader`. Reason: that class
  starts its thread again in each forked child process, which would push the same metrics twice.
- The exporter reads headers, certificates, time-outs and compression from the `OTEL_…` environment variables.

Source: https://opentelemetry.io/docs/specs/otel/protocol/exporter/
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from pyspark_ledger.ledger.broker.telemetry.families import Family, Value, tables
from pyspark_ledger.ledger.protocol.metrics import BrokerMetrics, LatencyHistogram
from pyspark_ledger.ledger.version import __version__

_SERVICE = "pyspark-ledger"
_INTERVAL, _INTERVAL_MS = "OTEL_METRIC_EXPORT_INTERVAL", 60_000.0
_UNITS = {"seconds": "s", "bytes": "By"}
_CUMULATIVE = AggregationTemporality.CUMULATIVE
_log = logging.getLogger(__name__)


class MetricsPush:
    """Thread that pushes the metrics of a broker, from its construction until `stop`.

    `endpoint` is the full address. With None the exporter reads the address from the `OTEL_…` variables.
    """

    def __init__(self, endpoint: str | None, collect: Callable[[], BrokerMetrics]) -> None:
        self._collect = collect
        self._exporter = OTLPMetricExporter(endpoint=endpoint)
        self._seconds = _interval_ms(os.environ) / 1000
        self._stopping = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="metrics-push", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Push the last counts and end the thread, within about `timeout_s`."""
        self._stopping.set()
        self._thread.join(timeout_s)
        self._exporter.shutdown()  # ends the retries of a running push

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            self._push()
        self._push()

    def _push(self) -> None:
        try:
            data = metrics_data(self._collect())
        except Exception:  # noqa: BLE001 — the error is logged, and the next push tries again
            _log.exception("the metrics could not be collected")
            return
        done = self._exported(data)
        if done == self._failing:
            self._failing = not done
            level, what = (logging.INFO, "are pushed again") if done else (logging.WARNING, "cannot be pushed for now")
            _log.log(level, "metrics %s", what)

    def _exported(self, data: MetricsData) -> bool:
        """Send metrics. Return whether the collector took them. Older exporters raise the error of the connection."""
        try:
            return self._exporter.export(data) is MetricExportResult.SUCCESS
        except OSError as error:
            _log.debug("a push failed: %s", error)
            return False


def metrics_data(metrics: BrokerMetrics) -> MetricsData:
    """Return the metrics of a moment as OpenTelemetry's data. Families without a value are left out."""
    attributes = {SERVICE_NAME: _SERVICE, SERVICE_INSTANCE_ID: metrics.store_id, SERVICE_VERSION: metrics.version}
    resource = Resource.create({name: value for name, value in attributes.items() if not _is_named(name)})
    scope = ScopeMetrics(InstrumentationScope(_SERVICE, __version__), list(_metrics(metrics)), "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _is_named(attribute: str) -> bool:
    """Return whether a variable of OpenTelemetry sets the name of the service."""
    return attribute == SERVICE_NAME and bool(os.environ.get("OTEL_SERVICE_NAME"))


def _metrics(metrics: BrokerMetrics) -> Iterator[Metric]:
    span_ns = metrics.started_ms * 10**6, metrics.now_ms * 10**6
    for table in tables(metrics):
        for at, family in enumerate(table.families):
            points = [
                _point(dict(zip(family.labels, labels, strict=True)), value, span_ns)
                for labels, values in table.rows
                if (value := values[at]) is not None
            ]
            if points:
                yield _metric(family, points)


def _metric(family: Family[Any], points: list[Any]) -> Metric:
    name = f"{family.name}_info" if family.kind == "info" else family.name
    data: Any = Gauge(points)
    if family.kind == "counter":
        data = Sum(points, _CUMULATIVE, is_monotonic=True)
    elif family.kind == "histogram":
        data = Histogram(points, _CUMULATIVE)
    return Metric(name, family.meaning, _UNITS.get(name.rpartition("_")[2], ""), data)


def _point(labels: Mapping[str, str], value: Value, span_ns: tuple[int, int]) -> NumberDataPoint | HistogramDataPoint:
    """Return a data point. `span_ns` are the time of the broker's start and the time of the value."""
    if not isinstance(value, LatencyHistogram):
        return NumberDataPoint(labels, *span_ns, value or 0)
    return HistogramDataPoint(
        labels,
        *span_ns,
        value.count,
        value.total,
        value.counts,
        value.bounds,
        min=None,  # type: ignore[arg-type]  # optional in the protocol
        max=None,  # type: ignore[arg-type]
    )


def _interval_ms(environ: Mapping[str, str]) -> float:
    """Return the interval of OpenTelemetry's variable; its default if the variable is no positive number."""
    text = environ.get(_INTERVAL, "").strip()
    try:
        found = float(text or _INTERVAL_MS)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        _log.warning("%s is %r, expected a positive number: %d is used", _INTERVAL, text, _INTERVAL_MS)
        return _INTERVAL_MS
    return found
