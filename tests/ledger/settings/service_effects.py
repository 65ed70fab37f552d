"""Effects of the broker's own settings: who is refused, how long the broker stays, and who may call."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from pyspark_ledger.ledger.broker import main, process
from pyspark_ledger.ledger.broker.web.routes import routes_of
from pyspark_ledger.ledger.broker.web.server import HttpRequest
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.errors import LedgerError, Refused
from pyspark_ledger.ledger.logs.json_lines import JsonLines, log_broker_as
from pyspark_ledger.ledger.logs.steps import STEPS
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import ListLedgers
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.offload.broker import make_offloader
from tests.rigs.certificates import certificates, tls
from tests.rigs.driven_broker import Drive, DrivenBroker, Drives
from tests.rigs.entry import entry


def named(call: Callable[[], object]) -> str:
    """The setting that a refusal names; of others, the kind of error."""
    try:
        call()
    except LedgerError as refused:
        name = refused.message.partition("setting '")[2].partition("'")[0]
        return name or type(refused).__name__
    return ""


def waits_for_room(broker: DrivenBroker) -> object:
    """Whether 800,000 bytes wait while as many are on their way, of all producers."""
    asked = list[bool]()
    for _ in range(2):
        broker.admission.in_flight.take(800_000, lambda: asked.append(True) or True)
    broker.admission.in_flight.give(1_600_000)
    return bool(asked)


def large_append(broker: DrivenBroker) -> object:
    producer = broker.client.producer(broker.log().name)
    try:
        return named(lambda: producer.append(entry(b"x" * (6 << 20))).result(60))
    finally:
        named(producer.close)


def second_call(broker: DrivenBroker) -> object:
    with broker.admission.requests.counted():
        return named(lambda: broker.client.ask(ListLedgers()))


def second_reader(broker: DrivenBroker) -> object:
    log = broker.log()
    log.append([entry(b"x")]).result(60)
    request = ReadRequest(log.name, PositionRange(EARLIEST, LATEST))
    with broker.admission.requests.counted():
        return named(lambda: list(broker.client.read_blocks(request, mapping=False)))


def seconds_before_it_leaves(broker: DrivenBroker) -> object:
    """Each look at the idle time is ten seconds after the one before."""
    looks = list[int]()

    def idle_ms() -> int:
        looks.append(10)
        return sum(looks) * 1000

    _run(broker, idle_ms)
    return sum(looks)


def seconds_to_settle(broker: DrivenBroker) -> object:
    seen, join = list[float | None](), threading.Thread.join

    def noted(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "settle":
            seen.append(timeout)
            timeout = None  # a broker that exceeds the limit ends its process, which is this one
        join(thread, timeout)

    broker.patch.setattr(threading.Thread, "join", noted)
    _run(broker, lambda: 10**9)
    return seen


def _run(broker: DrivenBroker, idle_ms: Callable[[], int]) -> None:
    """Do what the broker's process does from start to end, over the existing wiring."""
    with broker.patch.context() as patch:
        patch.setattr(broker.process.context.activity, "idle_ms", idle_ms)
        patch.setattr(process, "_GRACE_MS", 60_000)  # after it the broker ends its process, which is this one
        patch.setattr(process, "_CHECK_SECONDS", 0.001)
        patch.setattr(process, "bound_log", lambda *_: None)
        patch.setattr(process.BrokerProcess, "open", lambda *_: broker.process)
        patch.setattr(process.signal, "signal", lambda *_: None)
        patch.setattr(main.os, "umask", lambda _: None)
        patch.setattr(main.sys, "setswitchinterval", lambda _: None)
        main.main(make_offloader, broker.arguments)


def answer(broker: DrivenBroker, **shown: str) -> str:
    """Return the result of a caller with these credentials: nothing, or the kind of error."""
    address = broker.record.remote or broker.record.address
    client = Client(address, credentials=Credentials(**shown), deadline_ms=0)
    try:
        return named(lambda: client.ask(ListLedgers()))
    finally:
        client.close()


def served_certificate(broker: DrivenBroker) -> object:
    """The name in the certificate of the broker."""
    address = urlsplit(broker.record.remote)
    shown = ssl.get_server_certificate((str(address.hostname), int(address.port or 0)))
    return next(name for name in ("one", "two") if shown.strip() in Path(certificates()[name]).read_text())


def web_scheme(broker: DrivenBroker) -> str:
    """The scheme at which metrics are served."""
    web = broker.process.web
    return "" if web is None else web.url.partition(":")[0]


def admin_requests(broker: DrivenBroker) -> str:
    """Return `tokens` if a web address without tokens is refused."""
    try:
        process._web_address("http://127.0.0.1:0", broker.live.now)
    except Refused:
        return "tokens"
    return ""


def listed_ledgers(broker: DrivenBroker) -> int:
    """The number of ledgers that have metrics of their own, of two."""
    logs = broker.log(), broker.log()
    context = broker.process.context
    routes = routes_of(context.store, context.metrics, context.settings, context.stopping)
    text = routes["/metrics"](HttpRequest("/metrics", {})).body
    assert isinstance(text, bytes)
    return sum(f'ledger_segments{{ledger="{log.name}"}}' in text.decode() for log in logs)


def logged(broker: DrivenBroker) -> str:
    """The format of a line that the broker logs."""
    root = logging.getLogger()
    with broker.patch.context() as patch:
        patch.setattr(root, "handlers", [logging.NullHandler()])
        patch.setattr(STEPS, "level", STEPS.level)
        log_broker_as(broker.live.now.logFormat)
        return "json" if isinstance(root.handlers[0].formatter, JsonLines) else "text"


DRIVES: Drives = {
    "maxMessagePublishBufferSizeInMB": [Drive(waits_for_room, False, {1: True})],
    "maxMessageSize": [Drive(large_append, "", {5 << 20: "maxMessageSize"})],
    "maxConcurrentRequests": [Drive(call, "", {1: "maxConcurrentRequests"}) for call in (second_call, second_reader)],
    "brokerIdleTimeoutSeconds": [Drive(seconds_before_it_leaves, 310, {20: 30})],
    "brokerShutdownTimeoutMs": [Drive(seconds_to_settle, [60.0], {7: [0.007]})],
    "bindAddress": [
        Drive(lambda b: b.record.remote.partition(":")[0], "", {"grpc://127.0.0.1:0": "grpc"}),
    ],
    "tlsCertificateFilePath": [Drive(served_certificate, "refused", {"{one}": "one"}, tls("tlsKeyFilePath"))],
    "tlsKeyFilePath": [Drive(served_certificate, "refused", {"{one_key}": "one"}, tls("tlsCertificateFilePath"))],
    "tlsTrustCertsFilePath": [
        Drive(
            lambda b: answer(b, ca=certificates()["ca"]),
            "",
            {"{ca}": "Unauthenticated"},
            tls("tlsCertificateFilePath", "tlsKeyFilePath"),
        ),
        # What is no authority is refused at the start, with the certificate it is to be used with.
        Drive(served_certificate, "one", {"{one_key}": "refused"}, tls("tlsCertificateFilePath", "tlsKeyFilePath")),
    ],
    "webAdmin": [Drive(admin_requests, "", {1: "tokens"})],
    "webServiceAddress": [Drive(web_scheme, "", {"http://127.0.0.1:0": "http", "http://0.0.0.0:0": "refused"})],
    "logFormat": [Drive(logged, "text", {"json": "json"})],
    "metricsLedgersMax": [Drive(listed_ledgers, 2, {1: 1})],
    "authenticationTokens": [
        Drive(answer, "", {"{token}": "Unauthenticated"}, {"bindAddress": "grpc://127.0.0.1:0"}),
    ],
}
