"""Goal: a broker logs the steps of a batch under the id of the client's call, and no secret. Method: real brokers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.errors import LedgerError, NotFound
from pyspark_ledger.ledger.logs.batch import BatchId, in_batch
from pyspark_ledger.ledger.position import EARLIEST, LATEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import ChangeSetting, CreateLedger, DescribeLedger
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from tests.rigs.certificates import certificates

Rig = Any
TOKEN = "a-token-of-sixteen-characters"
BATCH = BatchId('r"1\n', "q:1")


def steps(rig: Rig) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in rig.log().splitlines() if line.startswith("{")]
    return [line for line in found if "step" in line]


def test_calls_of_a_batch_are_logged_with_its_id(rig: Rig, make_entry: Callable[..., bytes]) -> None:
    rig.start("--create")
    client = rig.client()
    client.ask(CreateLedger("orders"))
    with in_batch(BATCH):
        client.ask(DescribeLedger("orders"))
    assert steps(rig) == [], "text is the default"
    client.ask(ChangeSetting("logFormat", "json"))
    client.ask(DescribeLedger("orders"))
    assert steps(rig) == [], "a call without a header belongs to no batch"
    with client.producer("orders") as producer:
        producer.append(make_entry(b"row")).result(30)
    with in_batch(BATCH):
        client.ask(DescribeLedger("orders"))
        with pytest.raises(NotFound):
            client.ask(DescribeLedger("none"))
        request = ReadRequest("public/default/persistent/orders", PositionRange(EARLIEST, LATEST))
        assert list(client.read_blocks(request, mapping=False))
    described, failed, *read = steps(rig)
    assert (described["step"], described["ledger"], described["batch"]) == ("describe", "orders", BATCH.batch)
    assert (failed["error"], failed["trigger"]) == ("NotFound", "q:1")
    assert "send" in {line["step"] for line in read}
    assert {line["batch"] for line in read} == {BATCH.batch}
    client.ask(ChangeSetting("logFormat", None))
    before = len(steps(rig))
    with in_batch(BATCH):
        client.ask(DescribeLedger("orders"))
    assert len(steps(rig)) == before


def test_no_secret_is_in_a_line(rig: Rig, tmp_path: Path) -> None:
    files = certificates()
    settings = {
        "logFormat": "json",
        "bindAddress": "grpc+tls://localhost:0",
        "webServiceAddress": "https://localhost:0",
        "tlsCertificateFilePath": files["one"],
        "tlsKeyFilePath": files["one_key"],
        "tlsTrustCertsFilePath": files["ca"],
        "authenticationTokens": files["token"],
    }
    config = tmp_path / "broker.toml"
    config.write_text("".join(f'{name} = "{value}"\n' for name, value in settings.items()))
    rig.start("--create", "--config", str(config))
    loopback = Path(rig.client().hello().token_path).read_text()
    (tmp_path / "wrong").write_text("another-token-of-sixteen\n")
    (tmp_path / "wrong").chmod(0o600)
    keys = {"ca": files["ca"], "certificate": files["client"], "key": files["client_key"]}
    with in_batch(BATCH):
        right = Client(rig.record().remote, credentials=Credentials(**keys, token=files["token"]))
        right.ask(CreateLedger("orders"))
        right.ask(DescribeLedger("orders"))
        wrong = Client(rig.record().remote, credentials=Credentials(**keys, token=f"file:{tmp_path / 'wrong'}"))
        with pytest.raises(LedgerError):
            wrong.ask(DescribeLedger("orders"))
        request = ReadRequest("public/default/persistent/orders", PositionRange(EARLIEST, LATEST))
        rig.client().locate(request)
        task = right.credentials.for_task("read", ["public/default/persistent/orders"], lambda: 0)
        assert task.task_token
    text = rig.log()
    assert {"create", "describe"} <= {line["step"] for line in steps(rig)}
    key = Path(files["one_key"]).read_text().splitlines()[1]
    for secret in (TOKEN, "another-token-of-sixteen", loopback, key, task.task_token):
        assert secret not in text
