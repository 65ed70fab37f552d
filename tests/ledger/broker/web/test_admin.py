"""Goal: Pulsar's admin requests start and report an offload, with a token only. Method: HTTP, a real store."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.broker.web.address import WebAddress
from pyspark_ledger.ledger.broker.web.admin import OffloadAdmin
from pyspark_ledger.ledger.broker.web.server import ADMIN, Answer, WebServer
from pyspark_ledger.ledger.errors import Archived, Corrupt, Fenced, LedgerError, Refused, Unavailable
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy
from pyspark_ledger.ledger.settings.broker import Settings
from tests.rigs.offload import OffloadRig

TOKEN = "a-token-of-sixteen-characters"
PATH = "/admin/v2/persistent/public/default/log/offload"
SIZE = "managedLedgerOffloadThresholdInBytes"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[OffloadRig]:
    rig = OffloadRig(tmp_path / "store", str(tmp_path / "objects"))
    yield rig
    rig.close()


@pytest.fixture
def web(rig: OffloadRig) -> Iterator[WebServer]:
    routes = {ADMIN: OffloadAdmin(rig.store).answer, "/": lambda _: Answer(b"page")}
    server = WebServer(WebAddress("127.0.0.1", 0, tokens=(TOKEN.encode(),)), routes)
    yield server
    server.stop()


def ask(web: WebServer, method: str, path: str = PATH, body: Any = None, token: str = TOKEN) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(*web.server_address[:2], timeout=30)
    try:
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        connection.request(method, path, data, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text.startswith(b"{") else text
    finally:
        connection.close()


def test_put_offloads_the_segments_before_a_message_id(rig: OffloadRig, web: WebServer) -> None:
    payloads = rig.fill(3)
    first, second, third, _ = rig.ids()
    before = ask(web, "GET")
    assert before == (200, {
        "status": "NOT_RUN", "lastError": "",
        "firstUnoffloadedMessage": {"ledgerId": first, "entryId": 0, "partitionIndex": -1},
    })  # fmt: skip
    message = {"ledgerId": third, "entryId": 0, "partitionIndex": -1}
    assert ask(web, "PUT", body=message) == (204, b"")
    assert ask(web, "GET")[1]["status"] == "RUNNING"
    assert ask(web, "PUT", body=message)[0] == 409
    rig.store.offloads.round()
    assert ask(web, "GET")[1] == {"status": "SUCCESS", "lastError": "", "firstUnoffloadedMessage": message}
    assert rig.complete() == [first, second]
    assert rig.contents() == payloads


def test_internal_stats_give_the_message_id_as_pulsars_client_computes_it(rig: OffloadRig, web: WebServer) -> None:
    rig.fill(3)
    path = PATH.replace("/offload", "/internalStats")
    status, found = ask(web, "GET", f"{path}?metadata=false")
    assert (status, found["numberOfEntries"]) == (200, sum(one["entries"] for one in found["ledgers"]))
    ledgers = found["ledgers"]
    assert [one["ledgerId"] for one in ledgers] == rig.ids()
    ledgers[-1]["size"] = found["currentLedgerSize"]
    kept, message, suffix = ledgers[-2]["size"], ledgers[-1]["ledgerId"], 0
    for one in reversed(ledgers):
        suffix += one["size"]
        if suffix > kept:
            break
        message = one["ledgerId"]
    assert ask(web, "PUT", body={"ledgerId": message, "entryId": 0})[0] == 204
    rig.store.offloads.round()
    assert rig.complete() == [one["ledgerId"] for one in ledgers if one["ledgerId"] < message] != []
    assert [one["offloaded"] for one in ask(web, "GET", path)[1]["ledgers"]].count(True) == len(rig.complete())
    assert ask(web, "PUT", path, {})[0] == 405
    assert ask(web, "GET", path, token="another")[0] == 401


def test_wrong_requests_are_refused_and_change_nothing(rig: OffloadRig, web: WebServer) -> None:
    rig.fill(1)
    message = {"ledgerId": 9, "entryId": 0}
    assert ask(web, "PUT", body=message, token="another")[0] == 401
    assert ask(web, "PUT", body=b"no json")[0] == 400
    assert ask(web, "PUT", body={"ledgerId": "9"})[0] == 400
    assert ask(web, "PUT", body=bytes(5_000))[0] == 400
    assert ask(web, "PUT", "/")[0] == 405
    assert ask(web, "PUT", "/admin/v2/persistent/public/default/log/unload", message)[0] == 404
    status, answer = ask(web, "PUT", "/admin/v2/persistent/public/default/lug/offload", message)
    assert (status, "Did you mean 'log'?" in answer["reason"]) == (404, True)
    assert ask(web, "GET")[1]["status"] == "NOT_RUN"
    assert rig.attempts() == {}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Refused("no"), 412),
        (Unavailable("busy"), 503),
        (Archived("cold"), 503),
        (Fenced("lost"), 503),
        (Corrupt("x"), 500),
    ],
)
def test_errors_have_the_status_of_pulsar(
    rig: OffloadRig, web: WebServer, monkeypatch: pytest.MonkeyPatch, error: LedgerError, status: int
) -> None:
    def status_of(_name: str) -> object:
        raise error

    monkeypatch.setattr(rig.store.offloads, "status", status_of)
    assert ask(web, "GET") == (status, {"reason": str(error)})


def test_admin_requests_need_a_token_at_the_address() -> None:
    with pytest.raises(Refused, match="'webAdmin' requires setting 'authenticationTokens', it is empty"):
        WebAddress.of("http://127.0.0.1:0", Settings(webAdmin=1))
    with pytest.raises(Refused, match="where other hosts reach it"):
        WebAddress.of("http://0.0.0.0:0", Settings(webAdmin=1))


def test_policy_of_a_namespace_offloads_its_ledgers_only(rig: OffloadRig) -> None:
    rig.fill(2, name="team/hot/log")
    rig.fill(2, name="team/cold/log")
    rig.store.policies.change(ChangePolicy("team/cold", namespace=True, values={SIZE: 0}))
    rig.upkeep()
    assert rig.complete("team/hot/log") == []
    assert len(rig.complete("team/cold/log")) == 2
