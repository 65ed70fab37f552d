"""Effects of the broker's own settings: who is refused, how long the broker stays, and who may call."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from pyspark_ledger.ledger.broker import main
from pyspark_ledger.ledger.broker.append_stream import AppendStream
from pyspark_ledger.ledger.broker.web.routes import routes_of
from pyspark_ledger.ledger.broker.web.server import Request
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.errors import LedgerError, Refused
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.logs.json_lines import JsonLines, log_broker_as
from pyspark_ledger.ledger.logs.steps import STEPS
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import PROTOCOL_VERSION, AppendCommand, AskEnd, CreateLedger, Empty, Hello
from pyspark_ledger.ledger.protocol.cursors import OpenCursor
from pyspark_ledger.ledger.protocol.reads import ReadRequest
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


def in_flight_max(broker: DrivenBroker) -> object:
    seen = list[int]()
    with broker.patch.context() as patch:
        patch.setattr(AppendStream, "serve", lambda stream, _: seen.append(stream._max))
        broker.servers[-1].append(AppendCommand(broker.log().name, "p"), None, iter([]))  # type: ignore[arg-type]
    return seen


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


def large_request(broker: DrivenBroker) -> object:
    request = CreateLedger(broker.log().name, exist_ok=True, properties={"a": "x" * 100_000})
    return named(lambda: broker.client.call("create", request))


def waited(broker: DrivenBroker) -> object:
    seen, log = list[int](), broker.log()
    with broker.patch.context() as patch:
        patch.setattr(ManagedLedger, "wait_past", lambda _self, _since, wait_ms: seen.append(wait_ms))
        broker.client.call("end", AskEnd(log.name, EARLIEST, 90_000))
    return seen


def second_call(broker: DrivenBroker) -> object:
    with broker.admission.requests.counted():
        return named(lambda: broker.client.call("list", Empty()))


def second_reader(broker: DrivenBroker) -> object:
    log = broker.log()
    log.append([entry(b"x")]).result(60)
    request = ReadRequest(log.name, PositionRange(EARLIEST, LATEST))
    with broker.admission.readers.counted():
        return named(lambda: list(broker.client.read_blocks(request, mapping=False)))


def second_stream(broker: DrivenBroker) -> object:
    with broker.admission.streams.counted("10.0.0.1"):
        return named(lambda: broker.admission.streams.counted("10.0.0.1").__enter__())


def twelfth_connection(broker: DrivenBroker) -> object:
    with ExitStack() as opened:
        for _ in range(6):
            for end in socket.socketpair():
                opened.enter_context(end)
        return named(lambda: broker.client.call("hello", Hello(PROTOCOL_VERSION)))


def seconds_before_it_leaves(broker: DrivenBroker) -> object:
    """Each look at the idle time is ten seconds after the one before."""
    looks = list[int]()

    def idle_ms(_self: object) -> int:
        looks.append(10)
        return sum(looks) * 1000

    _run(broker, idle_ms)
    return sum(looks)


def seconds_to_settle(broker: DrivenBroker) -> object:
    seen, join = list[float | None](), threading.Thread.join

    def noted(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "settle":
            seen.append(timeout)
        join(thread, timeout)

    broker.patch.setattr(threading.Thread, "join", noted)
    _run(broker, lambda _: 10**9)
    return seen


def _run(broker: DrivenBroker, idle_ms: Callable[[object], int]) -> None:
    """Do what the broker's process does from start to end, over the existing wiring."""
    with broker.patch.context() as patch:
        patch.setattr(main.Activity, "idle_ms", idle_ms)
        patch.setattr(main, "_CHECK_SECONDS", 0.001)
        patch.setattr(main, "bound_log", lambda *_: None)
        patch.setattr(main, "_opened", lambda _: broker.opened)
        patch.setattr(main, "_bound", lambda *_: (broker.servers, broker.record))
        patch.setattr(main, "_raise_descriptors", lambda: None)
        patch.setattr(main.signal, "signal", lambda *_: None)
        patch.setattr(main.os, "umask", lambda _: None)
        patch.setattr(main.sys, "setswitchinterval", lambda _: None)
        main.main(broker.arguments)


def answer(broker: DrivenBroker, **shown: str) -> str:
    """Return the result of a caller with these credentials: nothing, or the kind of error."""
    address = broker.record.remote or broker.record.address
    client = Client(address, credentials=Credentials(**shown), deadline_ms=0)
    try:
        return named(lambda: client.call("list", Empty()))
    finally:
        client.close()


def served_certificate(broker: DrivenBroker) -> object:
    """The name in the certificate of the broker."""
    address = urlsplit(broker.record.remote)
    shown = ssl.get_server_certificate((str(address.hostname), int(address.port or 0)))
    return next(name for name in ("one", "two") if shown.strip() in Path(certificates()[name]).read_text())


def web_scheme(broker: DrivenBroker) -> str:
    """The scheme at which metrics are served."""
    live = broker.opened[2]
    try:
        address = main._web_address(live.now.webServiceAddress, live.now)
    except Refused:
        return "refused"
    if address is None:
        return ""
    web = main._web_server(address, broker.store, broker.servers[0], live)
    web.stop()
    return web.url.partition(":")[0]


def listed_ledgers(broker: DrivenBroker) -> int:
    """The number of ledgers that have metrics of their own, of two."""
    logs = broker.log(), broker.log()
    server = broker.servers[0]
    routes = routes_of(broker.store, server.metrics, broker.opened[2], server.stopping)
    text = routes["/metrics"](Request("/metrics", {})).body
    assert isinstance(text, bytes)
    return sum(f'ledger_segments{{ledger="{log.name}"}}' in text.decode() for log in logs)


def listed_cursors(broker: DrivenBroker) -> int:
    """The number of cursors that have metrics of their own, of two."""
    log = broker.log()
    for name in ("a", "b"):
        broker.client.open_cursor(OpenCursor(log.name, name, EARLIEST))
    server = broker.servers[0]
    text = routes_of(broker.store, server.metrics, broker.opened[2], server.stopping)["/metrics"](
        Request("/metrics", {})
    ).body
    assert isinstance(text, bytes)
    series = 'ledger_subscription_back_log{ledger="%s",subscription="%s"}'
    return sum(series % (log.name, name) in text.decode() for name in ("a", "b"))


def pushed_to(broker: DrivenBroker) -> str:
    """The address to which metrics are pushed."""
    live = broker.opened[2]
    try:
        push = main.start_push(
            live.now.openTelemetryEndpoint, {}, lambda: broker.servers[0].metrics.collect_by(live.now)
        )
    except Refused:
        return "refused"
    if push is None:
        return ""
    push.stop(0)
    return str(push._exporter._endpoint)


def logged(broker: DrivenBroker) -> str:
    """The format of a line that the broker logs."""
    root = logging.getLogger()
    with broker.patch.context() as patch:
        patch.setattr(root, "handlers", [logging.NullHandler()])
        patch.setattr(STEPS, "level", STEPS.level)
        log_broker_as(broker.opened[2].now.logFormat)
        return "json" if isinstance(root.handlers[0].formatter, JsonLines) else "text"


DRIVES: Drives = {
    "maxInFlightAppendBytes": [Drive(in_flight_max, [64 << 20], {2 << 20: [2 << 20]})],
    "maxMessagePublishBufferSizeInMB": [Drive(waits_for_room, False, {1: True})],
    "maxMessageSize": [Drive(large_append, "", {5 << 20: "maxMessageSize"})],
    "maxRequestBodyBytes": [Drive(large_request, "", {65536: "maxRequestBodyBytes"})],
    "maxWaitMillis": [Drive(waited, [60_000], {7: [7]})],
    "maxConcurrentRequests": [Drive(second_call, "", {1: "maxConcurrentRequests"})],
    "maxConcurrentReaders": [Drive(second_reader, "", {1: "maxConcurrentReaders"})],
    "maxStreamsPerClient": [Drive(second_stream, "", {1: "maxStreamsPerClient"})],
    "brokerMaxConnections": [Drive(twelfth_connection, "", {9: "brokerMaxConnections"})],
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
    "webServiceAddress": [Drive(web_scheme, "", {"http://127.0.0.1:0": "http", "http://0.0.0.0:0": "refused"})],
    "logFormat": [Drive(logged, "text", {"json": "json"})],
    "openTelemetryEndpoint": [
        Drive(pushed_to, "", {"http://127.0.0.1:9": "http://127.0.0.1:9/v1/metrics", "127.0.0.1:9": "refused"})
    ],
    "metricsLedgersMax": [Drive(listed_ledgers, 2, {1: 1})],
    "metricsCursorsMax": [Drive(listed_cursors, 2, {1: 1, 0: 0})],
    "authenticationTokens": [
        Drive(answer, "", {"{token}": "Unauthenticated"}, {"bindAddress": "grpc://127.0.0.1:0"}),
    ],
}
