"""Goal: a broker that a user's process starts finds credentials where boto3 does, and shows none.

Method: a real S3 that verifies signatures and session tokens, and its own STS. Each test has one source of credentials
in its environment. It works in a directory of its own, as a user's process does. The broker's directory is another.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import app
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.errors import LedgerError, Unauthenticated
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.transport.discovery import BrokerRecord
from streaming_examples.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from tests.rigs.credentials import ROLE, Container, Issuer, answering
from tests.rigs.processes import parent_of, process_file

Environment = dict[str, str]
pytestmark = pytest.mark.thorough  # the tests start brokers and an S3 server
WRONG = "never-the-right-secret"
PROFILE = f"[writer]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = "


class World:
    """The servers of this file."""

    def __init__(self, server: S3Server, issuer: Issuer) -> None:
        self.server, self.issuer = server, issuer

    def temporary(self) -> tuple[str, str, str]:
        """Return access key, secret key and token of a session."""
        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": "us-east-1"}
        sts = boto3.client("sts", endpoint_url=self.server.endpoint, **keys)
        found = sts.assume_role(RoleArn=ROLE, RoleSessionName="session")["Credentials"]
        return found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    issuer, directory = Issuer(), tmp_path_factory.mktemp("s3")
    with answering(issuer.answer) as issuer.address:
        argument = issuer.configuration(directory / "iam.json")
        with S3Server.start(directory / "objects", argument) as server:
            server.make_bucket("tests")
            yield World(server, issuer)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: World) -> Path:
    """A home and working directory without AWS files. The environment has the endpoint only."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", world.server.endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def bucket() -> str:
    return f"s3://tests/{uuid.uuid4()}"


@pytest.fixture
def started(home: Path, store_path: Path, bucket: str) -> Iterator[Callable[[], LedgerStore]]:
    """Starter of a broker with the current environment, for a store with one ledger and a bucket."""

    def start() -> LedgerStore:
        store = connect(store_path)
        store.offload_to(bucket, check=False)  # a broker without credentials is a case
        return store

    yield start
    stop_broker(store_path)


def offloaded(store: LedgerStore, rows: int = 100) -> None:
    """Append rows, offload them, and read them back from the bucket alone."""
    orders = store.ledger("orders")
    orders.append([{"id": number} for number in range(rows)])
    assert orders.offload(seal=True).state == "done"
    orders.set_policy(managedLedgerOffloadDeletionLagInMillis=0)
    orders.trim()
    assert orders.read().num_rows >= rows


def shown(store: Path) -> bytes:
    """Return all readable traces of a broker and its supervisor: files of the store, and command lines."""
    record = BrokerRecord.read(store)
    assert record is not None
    lines = [process_file(pid, "cmdline") for pid in (record.pid, parent_of(record.pid))]
    return b"\n".join([*lines, *(path.read_bytes() for path in store.rglob("*") if path.is_file())])


def keys(_: World, __: Path) -> tuple[Environment, list[str]]:
    return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}, [SECRET_KEY]


def session_token(world: World, _: Path) -> tuple[Environment, list[str]]:
    access_key, secret_key, token = world.temporary()
    said = {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key, "AWS_SESSION_TOKEN": token}
    return said, [secret_key, token]


def profile(_: World, home: Path) -> tuple[Environment, list[str]]:
    """Files with relative paths, in the working directory of the user's process."""
    (home / "keys").write_text(PROFILE + SECRET_KEY)
    (home / "settings").write_text("[profile writer]\nregion = eu-west-3\n")
    files = {"AWS_SHARED_CREDENTIALS_FILE": "./keys", "AWS_CONFIG_FILE": "settings"}
    return {**files, "AWS_PROFILE": "writer"}, [SECRET_KEY]


def home_directory(_: World, home: Path) -> tuple[Environment, list[str]]:
    (home / ".aws").mkdir()
    (home / ".aws" / "credentials").write_text(PROFILE.replace("writer", "default") + SECRET_KEY)
    return {}, [SECRET_KEY]


def web_identity(world: World, home: Path) -> tuple[Environment, list[str]]:
    token = world.issuer.token()
    (home / "token").write_text(token)
    said = {"AWS_WEB_IDENTITY_TOKEN_FILE": "token", "AWS_ROLE_ARN": ROLE}
    return {**said, "AWS_ENDPOINT_URL_STS": world.server.endpoint}, [token]


@pytest.mark.parametrize("way", [keys, session_token, profile, home_directory, web_identity])
def test_a_broker_has_the_credentials_of_who_started_it_and_shows_none(
    way: Callable[..., Any],
    world: World,
    home: Path,
    started: Callable[[], LedgerStore],
    store_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment, secrets = way(world, home)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    store = started()
    offloaded(store)
    left = shown(store_path)
    for secret in secrets:
        assert secret.encode() not in left


@pytest.mark.parametrize("token", ["AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"])
def test_a_containers_credentials_are_renewed_while_the_broker_lives(
    token: str, home: Path, started: Callable[[], LedgerStore], store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = Container(ACCESS_KEY, SECRET_KEY)
    (home / "token").write_text(container.token)
    with answering(container.answer) as address:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{address}/credentials")
        monkeypatch.setenv(token, "token" if token.endswith("_FILE") else container.token)
        store = started()
        offloaded(store)
        asked, container.keys = container.asked, (ACCESS_KEY, WRONG)
        with pytest.raises(LedgerError, match="credentials found by 'container-role'"):
            offloaded(store)
        assert container.asked > asked, "the fetched credentials are not used any more"
        container.keys = (ACCESS_KEY, SECRET_KEY)
        offloaded(store)
    left = shown(store_path)
    for secret in (SECRET_KEY, WRONG, container.token):
        assert secret.encode() not in left


def test_wrong_keys_name_the_bucket_where_they_were_found_and_what_to_do(
    started: Callable[[], LedgerStore], store_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", WRONG)
    with pytest.raises(LedgerError) as raised:
        offloaded(started())
    said = str(raised.value)
    for part in (bucket, "credentials found by 'env'", "the policy of the bucket", "`ledger stop`"):
        assert part in said
    assert WRONG not in said
    assert WRONG.encode() not in shown(store_path)


def test_broker_without_credentials_says_how_it_gets_them(
    started: Callable[[], LedgerStore], store_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = started()  # another user's process
    for name, value in keys(None, None)[0].items():  # type: ignore[arg-type]
        monkeypatch.setenv(name, value)
    with pytest.raises(LedgerError) as raised:
        offloaded(store)
    said = str(raised.value)
    for part in (bucket, "Unable to locate credentials", "environment of the process that started it", "`ledger stop`"):
        assert part in said
    result = CliRunner().invoke(app, ["stop", "--store", str(store_path)])
    assert (result.exit_code, result.output) == (0, f"the broker of {store_path} has stopped\n")
    offloaded(connect(store_path))
    assert "no broker runs" not in CliRunner().invoke(app, ["stop", "--store", str(store_path)]).output
    assert "no broker runs" in CliRunner().invoke(app, ["stop", "--store", str(store_path)]).output


def test_a_file_that_is_corrected_is_read_again(
    world: World, home: Path, started: Callable[[], LedgerStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in profile(world, home)[0].items():
        monkeypatch.setenv(name, value)
    (home / "keys").write_text("[writer]\n")
    store = started()
    with pytest.raises(LedgerError, match="Unable to locate credentials"):
        offloaded(store)
    (home / "keys").write_text(PROFILE + WRONG)
    with pytest.raises(LedgerError, match="credentials found by 'shared-credentials-file'"):
        offloaded(store)
    (home / "keys").write_text(PROFILE + SECRET_KEY)
    offloaded(store)


def test_a_role_that_is_refused_is_told_apart_from_the_bucket(
    world: World, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in web_identity(world, home)[0].items():
        monkeypatch.setenv(name, value)
    (home / "token").write_text(world.issuer.token()[:-8] + "tampered")
    objects = open_object_store("s3://tests/role")
    with pytest.raises(Unauthenticated, match=r"put s3://tests/role/one: AssumeRoleWithWebIdentity answers 4\d\d"):
        objects.put("one", b"data")
    (home / "token").write_text(world.issuer.token())
    objects.put("one", b"data")
    assert objects.head("one").size == 4
