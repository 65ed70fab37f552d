"""Goal: what a variable would name, an option names, and each refusal says which. Method: every hint is carried out.

A process without variables LEDGER_* and AWS_*, with a home, a cache and a run directory of its own, as Spark's
processes on a platform. The store is in a bucket of a real S3 server, and its broker is another process's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_ledger.connector.default_source import DefaultSource
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import serve_store, stop_broker
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.location import bucket_directory
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from streaming_examples.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from tests.connector.read.bucket.test_scan import ENCRYPTED_KNOWN, ROOT
from tests.rigs.bucket_clients import be_client, create_store

PROVIDER = "streaming_examples.s3_server:credentials"
Options = dict[str, str]


class Bare:
    """A process without variables. `access` are options for the bucket, `named` those for the broker's address."""

    def __init__(self, bucket: str, keys: Path, server: S3Server, named: Options) -> None:
        self.bucket, self.named = bucket, named
        self.endpoint = {"store": bucket, "offloadEndpoint": server.endpoint}
        self.access = {**self.endpoint, "credentialProvider": f"file:{keys}"}


@pytest.fixture
def bare(bucket: str, s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bare]:
    with pytest.MonkeyPatch.context() as broker:
        be_client(s3_server, tmp_path / "cache", broker)
        create_store(bucket)
        directory = bucket_directory(bucket)
        serve_store(directory, ["--address", "grpc+tls://localhost:0"])
        connect(bucket).ledger("orders").append([{"id": number} for number in range(7)])
    record = BrokerRecord.read(directory)
    assert record is not None
    ca, token = (str(next((directory / "tls").glob(f"*-{name}"))) for name in ("ca.pem", "token"))
    named = {"store": record.remote, "tlsTrustCertsFilePath": ca, "authParams": f"file:{token}"}
    keys = tmp_path / "keys"
    keys.write_text(f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n")
    for name in [name for name in os.environ if name.startswith(("LEDGER_", "AWS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # otherwise boto3 waits for a machine that is none
    for name, folder in (("HOME", "home"), ("XDG_RUNTIME_DIR", "run")):
        (tmp_path / folder).mkdir(mode=0o700)
        monkeypatch.setenv(name, str(tmp_path / folder))
    yield Bare(bucket, keys, s3_server, named)
    stop_broker(directory)


def rows(options: Options) -> int:
    source = DefaultSource({"path": "orders", **options})
    reader = source.reader(source.schema())
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def refused(read: Callable[[], Any], *parts: str) -> str:
    """Return the error, which has all `parts`."""
    with pytest.raises(LedgerError) as raised:
        read()
    text = str(raised.value)
    assert all(part in text for part in parts), text
    return text


def test_a_token_is_named_by_a_file_instead_of_a_variable(bare: Bare) -> None:
    options = {**bare.named, "authParams": "env:LEDGER_TOKEN"}
    text = refused(lambda: rows(options), "variable 'LEDGER_TOKEN'", "Spark: authParams=file:/path")
    name = re.search(r"Spark: (\w+)=file:/path", text).group(1)
    assert rows({**options, name: bare.named["authParams"]}) == 7


def test_a_private_key_is_named_by_a_file_instead_of_a_variable() -> None:
    topic = {"offload": str(ROOT / ENCRYPTED_KNOWN / "objects"), "path": f"public/fx/{ENCRYPTED_KNOWN}"}
    options = {**topic, "cryptoKeys": json.dumps({"fxkey": "env:FX_KEY", "eckey": "env:EC_KEY"})}
    refused(lambda: rows(options), "'cryptoKeys' names variable", "Name a file instead, cryptoKeys=file:/path")
    files = {name: f"file:{ROOT / ENCRYPTED_KNOWN / name}.pem" for name in ("fxkey", "eckey")}
    assert rows({**topic, "cryptoKeys": json.dumps(files)}) > 3


def test_the_access_to_a_bucket_is_named_by_options_instead_of_variables(bare: Bare) -> None:
    parts = ("offloadEndpoint", "credentialProvider=file:/path", "environment")
    refused(lambda: rows(bare.endpoint), *parts)
    for mode in ({}, {"broker": "none"}, {"directReads": "off"}):
        assert rows({**bare.access, **mode}) == 7, mode
    without_broker = {**bare.endpoint, "broker": "none"}
    refused(lambda: rows(without_broker), bare.bucket, "Set option credentialProvider=file:/path", "environment")


def test_a_profile_of_a_file_in_the_home_names_endpoint_and_keys(bare: Bare) -> None:
    folder = Path(os.environ["HOME"]) / ".aws"
    folder.mkdir()
    shutil.copy(bare.access["credentialProvider"].removeprefix("file:"), folder / "credentials")
    (folder / "config").write_text(f"[default]\nendpoint_url = {bare.access['offloadEndpoint']}\n")
    assert rows({"store": bare.bucket}) == 7


def test_a_broker_starts_with_the_access_that_options_name(bare: Bare, tmp_path: Path) -> None:
    """The store's broker has ended. The process without variables starts the next, in a cache of its own."""
    stop_broker(tmp_path / "cache" / bucket_directory(bare.bucket).name)
    try:
        function = {**bare.endpoint, "credentialProvider": PROVIDER}
        refused(lambda: rows(function), "does not get a credential provider", "option credentialProvider to file:/path")
        assert rows(bare.access) == 7
    finally:
        stop_broker(bucket_directory(bare.bucket))
