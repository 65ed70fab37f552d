"""Goal: tasks and the command line connect to a broker with TLS and token authentication. Method: a real broker.

Pickled tasks run in a separate process that has only the credential files.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType
from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import app
from pyspark_ledger.connector.options.options import read_options
from pyspark_ledger.connector.read.ledger.scan import LedgerRead, LedgerScan
from pyspark_ledger.connector.write.commit import commit_parts, stage_rows
from pyspark_ledger.connector.write.target import prepare_target
from pyspark_ledger.ledger.client.client import client_for
from pyspark_ledger.ledger.errors import NotFound, Refused, Unauthenticated
from pyspark_ledger.ledger.protocol.actions import DeleteLedger, DescribeLedger
from pyspark_ledger.ledger.protocol.commits import OpenStaging
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from pyspark_ledger.ledger.transport.tokens import TaskClaims, task_token
from tests.rigs.certificates import Authority

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "3f0c9b2e71d84a65" * 2
COLUMNS = StructType([StructField("id", LongType())])
TASK = """
import pickle, sys
parts = pickle.loads(sys.stdin.buffer.read())
print(sum(batch.num_rows for part in parts for batch in part.read()))
"""


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the options that a user passes to Spark for a broker started by the command line."""
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority(directory, "ca")
    authority.sign("broker")
    authority.sign("client")
    (directory / "token").write_text(TOKEN)
    (directory / "token").chmod(0o600)
    (directory / "broker.toml").write_text(
        f'bindAddress = "grpc+tls://0.0.0.0:0"\ntlsCertificateFilePath = "{directory}/broker.crt"\n'
        f'tlsKeyFilePath = "{directory}/broker.key"\ntlsTrustCertsFilePath = "{directory}/ca.pem"\n'
        f'authenticationTokens = "file:{directory}/token"\n'
    )
    store = directory / "store"
    run_directory = tempfile.mkdtemp(prefix="ledger-run-")
    served = [sys.executable, "-c", "from pyspark_ledger.connector.cli.app import app; app()", "serve", "--create"]
    broker = subprocess.Popen(
        [*served, "--store", str(store), "--config", str(directory / "broker.toml")],
        cwd=ROOT,
        env={**os.environ, "XDG_RUNTIME_DIR": run_directory},
    )
    try:
        until = time.monotonic() + 60
        while (record := BrokerRecord.read(store) if store.exists() else None) is None:
            assert broker.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        yield {
            "store": f"grpc+tls://localhost:{record.remote.rpartition(':')[2]}",
            "tlsTrustCertsFilePath": str(directory / "ca.pem"),
            "tlsCertificateFilePath": str(directory / "client.crt"),
            "tlsKeyFilePath": str(directory / "client.key"),
            "authParams": f"file:{directory / 'token'}",
        }
    finally:
        broker.terminate()
        assert broker.wait(30) == 0


@pytest.mark.thorough
def test_tasks_read_and_write_with_what_the_options_name(options: dict[str, str]) -> None:
    sink = prepare_target(read_options({**options, "ledger": "orders"}), COLUMNS)
    pickled = pickle.dumps(sink)
    assert TOKEN.encode() not in pickled
    part = stage_rows(pickle.loads(pickled), "1", "q", 0, [pa.record_batch({"id": [1, 2, 3]})])  # noqa: S301
    assert commit_parts(sink, "1", [part], 0) is not None
    parts = LedgerScan(read_options({**options, "ledger": "orders", "mapping": "off"})).tasks()
    task = subprocess.run(
        [sys.executable, "-c", TASK], cwd=ROOT, input=pickle.dumps(parts), capture_output=True, check=False, timeout=120
    )
    assert task.stdout.strip() == b"3", task.stderr.decode()
    assert TOKEN not in repr(parts) + repr(sink)


def test_a_task_has_a_token_of_its_own_and_needs_no_other(options: dict[str, str]) -> None:
    given = {**options, "ledger": "parcels"}
    sink = prepare_target(read_options(given), COLUMNS)
    token_file = Path(options["authParams"].removeprefix("file:"))
    read = LedgerRead(read_options({**given, "mapping": "off"}))
    part = stage_rows(sink, "1", "q", 0, [pa.record_batch({"id": [1, 2, 3]})])
    assert commit_parts(sink, "1", [part], 0) is not None
    parts = LedgerScan(read_options({**given, "mapping": "off"})).tasks()
    parcels, wanted = parts[0].ranges[0].ledger, parts[0].ranges[0].range
    token_file.rename(token_file.with_suffix(".away"))  # as on another host
    try:
        assert sum(batch.num_rows for part in parts for batch in part.read()) == 3
        stage_rows(sink, "1", "q", 1, [pa.record_batch({"id": [4]})])
        with pytest.raises(NotFound, match="token file"):
            read.schema()
        (reading,) = {part.source for part in parts}
        for credentials, request in (
            (reading.credentials, ReadRequest("orders", wanted)),
            (reading.credentials, OpenStaging("q", 2, "")),
            (sink.task_credentials, DeleteLedger(parcels)),
            (sink.task_credentials, ReadRequest(parcels, wanted)),
            (sink.task_credentials, DescribeLedger("public/default/persistent/orders")),
        ):
            with pytest.raises(Unauthenticated, match=r"a task token allows to (read|write) .*parcels, the call was"):
                client_for(reading.address, reading.store_id, credentials).ask(request)
        late = replace(reading.credentials, task_token=task_token(TOKEN, TaskClaims("read", [parcels], 1)))
        with pytest.raises(Unauthenticated, match="expired"):
            list(replace(parts[0], source=replace(reading, credentials=late)).read())
        forged = replace(late, task_token=task_token("f" * 32, TaskClaims("read", [parcels], 2**62)))
        with pytest.raises(Unauthenticated, match="a token that this broker does not accept"):
            list(replace(parts[0], source=replace(reading, credentials=forged)).read())
    finally:
        token_file.with_suffix(".away").rename(token_file)
    assert "ledger-task" not in repr(parts) + repr(sink)


def test_the_command_line_takes_them_as_options_and_from_the_environment(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {
        "--tls-trust-certs-file-path": options["tlsTrustCertsFilePath"],
        "--tls-certificate-file-path": options["tlsCertificateFilePath"],
        "--tls-key-file-path": options["tlsKeyFilePath"],
        "--auth-params": options["authParams"],
    }
    command = ["list", "--store", options["store"], "--output", "json"]
    given = [word for pair in words.items() for word in pair]
    listed = CliRunner().invoke(app, [*given, *command])
    assert listed.exit_code == 0, listed.output
    for name, value in words.items():
        monkeypatch.setenv("LEDGER_" + name.removeprefix("--").replace("-", "_").upper(), value)
    assert CliRunner().invoke(app, command).output == listed.output
    assert isinstance(json.loads(listed.output), list)
    monkeypatch.delenv("LEDGER_AUTH_PARAMS")
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 1
    assert "had no token" in refused.output


def test_a_query_without_them_is_refused_before_it_begins(options: dict[str, str]) -> None:
    without = {name: value for name, value in options.items() if name != "authParams"}
    with pytest.raises(Unauthenticated, match="had no token"):
        LedgerRead(read_options({**without, "ledger": "orders"})).schema()


@pytest.mark.thorough
def test_a_token_in_place_of_its_reference_is_not_repeated() -> None:
    with pytest.raises(Refused, match=r"authParams.*expected file:/path/of/token or env:NAME") as refused:
        read_options({"ledger": "orders", "authParams": TOKEN})
    assert TOKEN not in str(refused.value)
