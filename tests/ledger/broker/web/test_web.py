"""Goal: a broker tells monitors what it does, and nobody else. Method: real brokers, asked over HTTP and HTTPS."""

from __future__ import annotations

import base64
import http.client
import json
import re
import signal
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from pyspark_ledger.ledger.broker.telemetry.reference import metrics_reference
from pyspark_ledger.ledger.broker.web.server import WaitingConnections
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.cursors import OpenCursor
from pyspark_ledger.ledger.settings.broker import Settings
from tests.rigs.certificates import certificates
from tests.rigs.processes import is_running

Rig = Any
ORDERS = "public/default/persistent/orders"
TOKEN = "a-token-of-sixteen-characters"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def started(rig: Rig, *arguments: str, web: str = "http://127.0.0.1:0") -> str:
    """Start a broker. Return the URL that its log names."""
    rig.start("--create", "--web", web, *arguments)
    return str(re.findall(r"served at (https?://\S+)", rig.log())[-1])


def ask(
    url: str, path: str = "/", *, method: str = "GET", ca: str = "", **headers: str
) -> tuple[int, dict[str, str], str]:
    """Return the status, the headers in lower case and the body of an answer."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    if parts.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=30, context=ssl.create_default_context(cafile=ca)
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()


def samples(
    text: str, parse: Callable[[str], Any] = openmetrics
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_a_scrape_has_the_numbers_of_the_log(rig: Rig, make_entry: Callable[..., bytes]) -> None:
    url = started(rig)
    client = rig.client()
    client.ask(CreateLedger("orders"))
    client.ask(OpenCursor("orders", 'bil"ling', EARLIEST))
    with client.producer("orders") as producer:
        for number in range(7):
            producer.append(make_entry(b"row", sequence_id=number)).result(30)
    status, headers, text = ask(url, "/metrics", Accept=OPENMETRICS)
    assert (status, headers["content-type"].split(";")[0]) == (200, "application/openmetrics-text")
    assert text.endswith("# EOF\n")
    found = samples(text)
    ledger, cursor = ("ledger", ORDERS), ("subscription", 'bil"ling')
    assert found["ledger_in_messages_total", (ledger,)] == 7
    assert found["ledger_subscription_back_log", (ledger, cursor)] == 7
    assert found["ledger_storage_sync_latency_seconds_count", (ledger,)] >= 1
    assert found["ledger_storage_write_latency_seconds_bucket", (("le", "+Inf"), ledger)] >= 1
    assert found["ledger_request_latency_seconds_count", (("action", "create"),)] == 1
    assert found["ledger_ledgers", ()] == 1
    _, headers, text = ask(url, "/metrics")
    assert headers["content-type"].startswith("text/plain")
    assert samples(text, plain_text)["ledger_in_messages_total", (ledger,)] == 7


def test_every_family_is_there_without_a_ledger(rig: Rig) -> None:
    from pyspark_ledger.ledger.broker.telemetry import families as module

    _, _, text = ask(started(rig), "/metrics", Accept=OPENMETRICS)
    named = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    declared = [kind.name for name, kinds in vars(module).items() if name.endswith("_FAMILIES") for kind in kinds]
    assert {*declared, "ledger_broker"} == named


def test_a_broker_is_healthy_until_its_store_is_taken_over(rig: Rig) -> None:
    url = started(rig)
    status, _, text = ask(url, "/health")
    assert (status, json.loads(text)["healthy"]) == (200, True)
    status, _, text = ask(url, "/ready")
    assert (status, json.loads(text)) == (200, {"ready": True, "given_up": {}})


def test_only_known_paths_and_reading_methods_are_answered(rig: Rig) -> None:
    url = started(rig)
    status, _, text = ask(url, "/metrics/../../etc/passwd")
    assert (status, "/metrics" in text) == (404, True)
    assert ask(url, "/metrics", method="POST")[0] == 501
    status, headers, text = ask(url, "/health", method="HEAD")
    assert (status, text, headers["x-content-type-options"]) == (200, "", "nosniff")
    assert ask(url, "/health?x=1")[0] == 200


def test_a_page_of_another_site_cannot_read_through_a_browser(rig: Rig) -> None:
    url = started(rig)
    assert ask(url, "/health", Host="attacker.example")[0] == 421
    assert ask(url, "/health", Host="localhost:1")[0] == 200


@pytest.mark.thorough
def test_an_address_that_others_reach_requires_tls_and_a_token(rig: Rig, tmp_path: Path) -> None:
    for web, named in (
        ("http://0.0.0.0:0", "where other hosts reach it"),
        ("https://127.0.0.1:0", "tlsCertificateFilePath"),
        ("ftp://127.0.0.1:0", "not an address for the status page"),
        ("http://127.0.0.1", "not an address for the status page"),
        ("http://me:S3CRET@127.0.0.1:0", "contains a user or a password"),
    ):
        broker = rig.spawn("--create", "--web", web)
        assert broker.wait(60) == 2
        assert named in rig.log()
    assert "S3CRET" not in rig.log()
    files = certificates()
    config = tmp_path / "broker.toml"
    settings = {
        "tlsCertificateFilePath": files["one"],
        "tlsKeyFilePath": files["one_key"],
        "authenticationTokens": files["token"],
    }
    config.write_text("".join(f'{name} = "{value}"\n' for name, value in settings.items()))
    url = started(rig, "--config", str(config), web="https://localhost:0")
    basic = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
    answers = {
        "": 401,
        "Bearer no": 401,
        "Basic !!": 401,
        f"Bearer {TOKEN}": 200,
        f"Basic {basic}": 200,
        f"Digest {TOKEN}": 401,
    }
    assert {given: ask(url, "/metrics", ca=files["ca"], Authorization=given)[0] for given in answers} == answers
    assert ask(url, "/metrics", ca=files["ca"])[1]["www-authenticate"].startswith("Basic")
    assert TOKEN not in rig.log()


def test_a_port_in_use_is_refused_by_name(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = rig.spawn("--create", "--web", f"http://127.0.0.1:{port}")
        assert broker.wait(60) == 2
    assert f"http://127.0.0.1:{port}/: Address already in use" in rig.log()


@pytest.mark.thorough
def test_a_wrong_address_costs_no_epoch(rig: Rig) -> None:
    first = rig.start("--create")
    first.terminate()
    first.wait(60)
    for web, problem in (("ftp://127.0.0.1:1", "is not an address"), ("http://example.org:1", "where other hosts")):
        assert rig.spawn("--web", web).wait(60) == 2
        assert problem in rig.log()
    rig.start()
    assert rig.record().epoch == 2


def test_connections_that_say_nothing_keep_nobody_out(rig: Rig) -> None:
    url = started(rig)
    parts = urlsplit(url)
    silent = [socket.create_connection((parts.hostname, parts.port), 30) for _ in range(200)]
    try:
        assert ask(url, "/health")[0] == 200
    finally:
        for connection in silent:
            connection.close()


def test_asking_for_the_head_of_the_events_takes_no_room(rig: Rig) -> None:
    url = started(rig)
    for _ in range(40):  # more than there may be pages
        assert ask(url, "/events", method="HEAD")[0] == 200
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    connection.request("GET", "/events?sort=none&page=-1&filter=%FF")
    answer = connection.getresponse()
    lines = [answer.readline() for _ in range(4)]
    connection.close()
    assert lines[2] == b"event: status\n"
    assert json.loads(lines[3].removeprefix(b"data: "))["ledgers"] == {"rows": [], "matching": 0, "page": 0}


@pytest.mark.thorough
def test_health_is_answered_while_three_hundred_clients_are_slow(rig: Rig) -> None:
    url = started(rig)
    parts = urlsplit(url)
    slow = [socket.create_connection((parts.hostname, parts.port), 30) for _ in range(300)]
    try:
        for connection in slow:
            with suppress(OSError):  # closed already, to make room
                connection.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        assert ask(url, "/health")[0] == 200
        assert slow[0].recv(1) == b"", "the connection that waited longest made room"
    finally:
        for connection in slow:
            connection.close()
    rig.wait_until(lambda: _answers(url), "there is room again")


def test_a_waiting_connection_has_a_deadline_and_a_served_one_has_none() -> None:
    now = [0]
    waiting, sockets = WaitingConnections(2, lambda: now[0]), [socket.socketpair() for _ in range(4)]
    (first, _), (second, _), (third, _), (fourth, _) = sockets
    assert waiting.add(first)
    waiting.served(first)
    now[0] = 5
    assert waiting.add(second)
    waiting.close_older(5)
    assert not _ended(sockets[1][1])
    assert waiting.add(third), "it replaces the one that waits"
    assert _ended(sockets[1][1])
    now[0] = 11
    waiting.close_older(5)
    assert [_ended(sockets[number][1]) for number in (0, 2)] == [False, True]
    assert waiting.add(fourth)
    waiting.served(fourth)
    assert not waiting.add(second), "both are being served"
    for pair in sockets:
        for one in pair:
            one.close()


def _ended(peer: socket.socket) -> bool:
    """Whether the other end was shut down."""
    peer.setblocking(False)
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False


def _answers(url: str) -> bool:
    try:
        return ask(url, "/health")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.thorough
def test_a_scraped_broker_leaves_when_nobody_calls(rig: Rig) -> None:
    url = started(rig, "--idle", "3")
    (pid,) = rig.pids
    until = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < until, "the broker stays although only monitors ask"
        try:
            ask(url, "/metrics")
        except (OSError, http.client.HTTPException):
            time.sleep(0.1)


def test_the_service_ends_with_its_broker(rig: Rig) -> None:
    url = started(rig)
    (pid,) = rig.pids
    import os

    os.kill(pid, signal.SIGTERM)
    rig.wait_until(lambda: not is_running(pid), "the broker left")
    with pytest.raises(OSError):
        ask(url, "/health")


def test_the_service_is_off_by_default() -> None:
    assert Settings().webServiceAddress == ""


def test_the_reference_is_up_to_date() -> None:
    page = Path(__file__).resolve().parents[4] / "docs" / "metrics.md"
    assert page.read_text() == metrics_reference()
