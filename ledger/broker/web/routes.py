"""Routes of a broker's HTTP service."""

from __future__ import annotations

import threading
from http import HTTPStatus

import msgspec

from pyspark_ledger.ledger.broker.live_settings import LiveSettings
from pyspark_ledger.ledger.broker.metrics import MetricsCollector
from pyspark_ledger.ledger.broker.telemetry.openmetrics import exposition
from pyspark_ledger.ledger.broker.web.admin import OffloadAdmin
from pyspark_ledger.ledger.broker.web.history import History
from pyspark_ledger.ledger.broker.web.page import page_routes
from pyspark_ledger.ledger.broker.web.server import ADMIN, Answer, HttpRequest, Route
from pyspark_ledger.ledger.clock import monotonic_ms
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.protocol.metrics import AskMetrics, BrokerMetrics
from pyspark_ledger.ledger.store.store import Store

_OPENMETRICS = "application/openmetrics-text"


def routes_of(
    store: Store, collector: MetricsCollector, settings: LiveSettings, stopping: threading.Event
) -> dict[str, Route]:
    """Return the routes by path."""

    def collect() -> BrokerMetrics:
        return collector.collect(AskMetrics(settings.now.metricsLedgersMax))

    def metrics(request: HttpRequest) -> Answer:
        openmetrics = _OPENMETRICS in request.headers.get("accept", "")
        found = collect()
        kind = f"{_OPENMETRICS}; version=1.0.0" if openmetrics else "text/plain; version=0.0.4"
        return Answer(exposition(found, openmetrics=openmetrics), f"{kind}; charset=utf-8")

    def health(_: HttpRequest) -> Answer:
        try:
            store.require_ours()
        except (LedgerError, OSError) as error:
            return _json({"healthy": False, "reason": str(error)}, HTTPStatus.SERVICE_UNAVAILABLE)
        return _json({"healthy": True, "store_id": store.store_id, "epoch": store.epoch})

    def ready(_: HttpRequest) -> Answer:
        refusing = {name: str(error) for name, error in store.given_up().items()}
        if stopping.is_set():
            return _json({"ready": False, "reason": "the broker is shutting down"}, HTTPStatus.SERVICE_UNAVAILABLE)
        return _json({"ready": True, "given_up": refusing})

    history = History(collect, monotonic_ms)
    routes: dict[str, Route] = {"/metrics": metrics, "/health": health, "/ready": ready, **page_routes(store, history)}
    return {**routes, ADMIN: OffloadAdmin(store).answer} if settings.now.webAdmin else routes


def _json(value: object, status: HTTPStatus = HTTPStatus.OK) -> Answer:
    return Answer(msgspec.json.encode(value) + b"\n", status=status)
