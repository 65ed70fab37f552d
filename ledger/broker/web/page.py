"""Status page of a broker: its files, and the stream of the data that it shows.

    /               the page: HTML, with /page.css and /page.js
    /events         a stream of messages (server-sent events): one `status` at once, one every `SECONDS`;
                    the URL has filter, sort and page

Rules
- The page loads files of this broker only, and needs no build step. Its files are in the folder `assets`.
- One event has all data of the page: the broker's metrics, the rates of ten minutes, and one page of ledgers.
- At most `_STREAMS` pages get events at once. A further page tries again every ten seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib.resources import files

import msgspec

from pyspark_ledger.ledger.broker.web.history import SECONDS, History, Point
from pyspark_ledger.ledger.broker.web.ledger_rows import SORTS, LedgerPage, ledger_page
from pyspark_ledger.ledger.broker.web.server import Answer, HttpRequest, Route
from pyspark_ledger.ledger.protocol.metrics import BrokerMetrics
from pyspark_ledger.ledger.store.store import Store

_STREAMS = 16
_ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


class Status(msgspec.Struct, frozen=True):
    """Event for the page. `broker` lists no ledgers, because `ledgers` has the ledgers that the page shows."""

    broker: BrokerMetrics
    write_p50: float
    write_p99: float
    points: list[Point]
    ledgers: LedgerPage


def page_routes(store: Store, history: History) -> dict[str, Route]:
    """Return the routes of the page by path."""
    streams = threading.BoundedSemaphore(_STREAMS)

    def events(request: HttpRequest) -> Answer:
        def stream(write: Callable[[bytes], None]) -> None:
            if not streams.acquire(blocking=False):
                write(b"retry: 10000\n\n: too many pages are open\n\n")
                return
            try:
                write(b"retry: 3000\n\n")
                while True:
                    status = status_of(store, history, request)
                    write(b"event: status\ndata: " + msgspec.json.encode(status) + b"\n\n")
                    if not history.wait(4 * SECONDS):
                        write(b": no news\n\n")
            except OSError:
                return  # the page was closed
            finally:
                streams.release()

        return Answer(stream, "text/event-stream")

    assets = {path: _asset(name, kind) for path, (name, kind) in _ASSETS.items()}
    return {**assets, "/events": events}


def status_of(store: Store, history: History, request: HttpRequest) -> Status:
    """Return the event for a request with its filter, order and page number. Defaults replace wrong values."""
    sample, query = history.newest(), request.query
    sort, number = query.get("sort", "name"), query.get("page", "0")
    ledgers = ledger_page(
        store,
        sample,
        history.rates(),
        query.get("filter", "")[:200],
        sort if sort in SORTS else "name",
        int(number) if number.isdecimal() and len(number) < 8 else 0,
    )
    latency = sample.metrics.append_latency
    broker = msgspec.structs.replace(sample.metrics, ledgers=[])
    return Status(broker, _finite(latency.quantile(0.5)), _finite(latency.quantile(0.99)), history.points(), ledgers)


def _finite(seconds: float) -> float:
    """Return the seconds, or -1 for infinity: a time above the histogram's last bound. JSON has no infinity."""
    return -1.0 if seconds == float("inf") else seconds


def _asset(name: str, kind: str) -> Route:
    body = files("pyspark_ledger.ledger.broker.web").joinpath("assets", name).read_bytes()
    return lambda _: Answer(body, kind)
