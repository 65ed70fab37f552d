"""Goal: requests have the configured encryption, owner and credentials, and no other output has secrets.

Method: a server that records requests and answers like S3 and STS.
"""

from __future__ import annotations

import datetime as dt
import pickle
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pyspark_ledger.ledger.errors import Refused, Unauthenticated
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.version import __version__

ASSUMED = b"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ROLEKEY</AccessKeyId><SecretAccessKey>role-secret</SecretAccessKey><SessionToken>role-token</SessionToken>
<Expiration>2999-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""


class Recorder(ThreadingHTTPServer):
    """Requests as (method, path, headers in lower case)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[bytes] = []
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    server: Recorder

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.bodies.append(body)
        self.server.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        data = ASSUMED if b"AssumeRole" in body else b""
        self.send_response(200)
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Tue, 24 Nov 2026 12:00:00 GMT")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815 — names of the base class


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    server = Recorder()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


asked: list[str] = []


def provider(address: str) -> dict[str, str]:
    asked.append(address)
    return {"access_key": "PROVIDED", "secret_key": "very-secret", "token": "provided-token"}


def expiring(address: str) -> dict[str, str]:
    asked.append(address)
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=30)
    return {"access_key": f"KEY{len(asked)}", "secret_key": "very-secret", "expiry_time": soon.isoformat()}


def session(_: str) -> Any:
    import boto3

    return boto3.Session("OFSESSION", "very-secret", region_name="eu-west-3")


def broken(_: str) -> dict[str, str]:
    raise ValueError("the secret is hunter2")


def nonsense(_: str) -> int:
    return 4711


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The providers of this file as a module, without the machine's own configuration."""
    module = ModuleType("providers_of_test")
    for function in (provider, expiring, session, broken, nonsense):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, "providers_of_test", module)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    asked.clear()


def options(recorder: Recorder, function: str = "provider", **rest: Any) -> S3Options:
    return S3Options(endpoint=recorder.endpoint, credential_provider=f"providers_of_test:{function}", **rest)


def put(recorder: Recorder, given: S3Options) -> dict[str, str]:
    """Put one object and return the headers of the request."""
    store = open_object_store("s3://bucket/prefix", given)
    store.put("key", b"data", {"role": "data"})
    store.close()
    method, path, headers = recorder.seen[-1]
    assert (method, path) == ("PUT", "/bucket/prefix/key")
    return headers


def test_options_that_are_set_take_precedence() -> None:
    stated = {"endpoint": "http://stated", "region": "stated", "path_style": False, "bucket_owner": ""}
    given = S3Options(endpoint="http://given", path_style=True, bucket_owner="123456789012")
    assert given.completed(stated) == S3Options("http://given", "stated", path_style=True, bucket_owner="123456789012")
    assert not S3Options().completed({"path_style": False}).path_style


@pytest.mark.thorough
def test_encryption_is_asked_for(recorder: Recorder) -> None:
    assert put(recorder, options(recorder, encryption="AES256"))["x-amz-server-side-encryption"] == "AES256"
    headers = put(recorder, options(recorder, encryption="aws:kms", kms_key="arn:aws:kms:key/1"))
    assert headers["x-amz-server-side-encryption"] == "aws:kms"
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "arn:aws:kms:key/1"
    assert "x-amz-server-side-encryption" not in put(recorder, options(recorder))


def test_only_a_put_with_a_condition_is_sent_without_permission(recorder: Recorder) -> None:
    store, body = open_object_store("s3://bucket", options(recorder)), [bytes(100_000), b"tail"]
    store.put("at-once", body, only_new=True)
    store.put("asked", body)
    expected = [headers.get("expect") for _, _, headers in recorder.seen]
    assert expected == [None, "100-continue"]
    assert recorder.bodies == [b"".join(body)] * 2
    agents = {headers["user-agent"] for _, _, headers in recorder.seen}
    assert [agent.split()[0] for agent in agents] == [f"pyspark-ledger/{__version__}"]


def test_the_owner_of_the_bucket_is_in_every_request(recorder: Recorder) -> None:
    store = open_object_store("s3://bucket", options(recorder, bucket_owner="123456789012"))
    store.put("key", b"data")
    store.head("key")
    store.delete(["key"])
    store.close()
    assert len(recorder.seen) == 3
    assert {headers["x-amz-expected-bucket-owner"] for _, _, headers in recorder.seen} == {"123456789012"}


def test_a_provider_is_called_with_the_address_where_the_store_is_used(recorder: Recorder) -> None:
    store = open_object_store("s3://bucket/prefix", options(recorder))
    copy = pickle.loads(pickle.dumps(store))  # noqa: S301 — our own
    assert asked == []
    copy.put("key", b"data")
    assert asked == ["s3://bucket/prefix"]
    assert "PROVIDED/" in recorder.seen[-1][2]["authorization"]
    assert recorder.seen[-1][2]["x-amz-security-token"] == "provided-token"
    assert b"very-secret" not in pickle.dumps(copy)
    copy.close()


@pytest.mark.thorough
def test_credentials_that_expire_are_asked_for_again(recorder: Recorder) -> None:
    store = open_object_store("s3://bucket", options(recorder, "expiring"))
    store.put("key", b"data")
    store.put("key", b"data")
    store.close()
    first, second = (headers["authorization"] for _, _, headers in recorder.seen)
    assert first != second
    assert len(asked) >= 2


def test_a_provider_may_answer_a_session(recorder: Recorder) -> None:
    headers = put(recorder, options(recorder, "session"))
    assert "OFSESSION/" in headers["authorization"]
    assert "/eu-west-3/s3/" in headers["authorization"]


def test_a_file_provides_the_keys_of_a_section_before_variables(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "VARIABLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-environment")
    sections = ("default", "FIRST"), ("sink", "SECOND")
    texts = [f"[{name}]\naws_access_key_id = {key}\naws_secret_access_key = very-secret\n" for name, key in sections]
    (tmp_path / "keys").write_text("".join(texts))
    given = S3Options(endpoint=recorder.endpoint, credential_provider=f"file:{tmp_path / 'keys'}")
    assert "Credential=FIRST/" in put(recorder, given)["authorization"]
    assert "Credential=SECOND/" in put(recorder, replace(given, profile="sink"))["authorization"]
    (tmp_path / "keys").unlink()
    with pytest.raises(Refused, match=r"keys' for s3://bucket/prefix: there is no such file.*every executor's"):
        put(recorder, given)


def test_a_service_credential_is_one_of_databricks(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in of Databricks' module, because nothing else has service credentials."""
    given = S3Options(endpoint=recorder.endpoint, credential_provider="unity-catalog:ledger-bucket")
    with pytest.raises(Refused, match=r"cannot be imported.*Elsewhere name a file: credentialProvider=file:/path"):
        put(recorder, given)

    def provider_of(name: str) -> Any:
        from botocore.session import Session

        asked.append(name)
        found = Session()
        found.set_credentials("SERVICE", "very-secret")
        return found

    workers, notebook = ModuleType("databricks.service_credentials"), ModuleType("databricks.sdk.runtime")
    workers.getServiceCredentialsProvider = provider_of  # type: ignore[attr-defined]
    notebook.dbutils = SimpleNamespace(  # type: ignore[attr-defined]
        credentials=SimpleNamespace(getServiceCredentialsProvider=provider_of)
    )
    for module in (workers, notebook):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module.__name__, module)
            assert "Credential=SERVICE/" in put(recorder, given)["authorization"]
    assert set(asked) == {"ledger-bucket"}


def test_a_message_names_declared_providers_only() -> None:
    whole = S3Options("http://x", "eu", False, "p", "r", "x1", "unity-catalog:c", bucket_owner="123456789012")
    assert S3Options.of_references(whole.references()) == whole
    assert "credential_provider" not in S3Options(credential_provider="os:system").references()
    with pytest.raises(Refused, match="names the credential provider 'os:system', which this package does not declare"):
        S3Options.of_references({"credential_provider": "os:system"})
    with pytest.raises(TypeError, match="password"):
        S3Options.of_references({"password": "x"})


def test_a_role_is_assumed_with_what_was_found(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", recorder.endpoint)
    headers = put(recorder, options(recorder, role="arn:aws:iam::1:role/reader", role_external_id="outside"))
    assert "ROLEKEY/" in headers["authorization"]
    assert headers["x-amz-security-token"] == "role-token"
    (sent,) = (body.decode() for body in recorder.bodies if b"AssumeRole" in body)
    assert "RoleSessionName=ledger-offload" in sent
    assert "ExternalId=outside" in sent


def test_what_a_provider_says_when_it_fails_is_not_repeated(recorder: Recorder) -> None:
    with pytest.raises(Unauthenticated, match="providers_of_test:broken' failed for s3://bucket/prefix: Val") as raised:
        put(recorder, options(recorder, "broken"))
    assert "hunter2" not in str(raised.value)
    with pytest.raises(Refused, match="answered int, expected a session or a mapping"):
        put(recorder, options(recorder, "nonsense"))
    with pytest.raises(Refused, match="cannot be imported"):
        put(recorder, options(recorder, "missing"))


def test_a_profile_that_is_not_there_is_named() -> None:
    store = open_object_store("s3://bucket", S3Options(endpoint="http://127.0.0.1:1", profile="never-made"))
    with pytest.raises(Unauthenticated, match="never-made"):
        store.head("key")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kms_key": "k"}, "a KMS key was given"),
        ({"encryption": "rot13"}, "expected AES256 or aws:kms"),
        ({"bucket_owner": "me"}, "twelve digits"),
        ({"endpoint": "localhost:9000"}, "expected http://"),
        ({"endpoint": "http://key:hunter2@host"}, "therefore not shown"),
        ({"credential_provider": "module"}, "expected file:/path, unity-catalog:NAME or module:function"),
        ({"credential_provider": "file:keys"}, "expected an absolute path"),
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message) as raised:
        S3Options(**wrong)
    assert "hunter2" not in str(raised.value)


def test_the_bucket_stands_in_the_path_where_an_endpoint_is_named() -> None:
    assert S3Options(endpoint="http://x").uses_path_style
    assert not S3Options().uses_path_style
    assert not S3Options(endpoint="http://x", path_style=False).uses_path_style


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_of_the_environment_is_used_by_path(
    name: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, recorder.endpoint.replace("127.0.0.1", "localhost"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-3")
    given = S3Options(credential_provider="providers_of_test:provider")
    assert "/eu-west-3/s3/" in put(recorder, given)["authorization"]
    told = given.object_store_options("s3://bucket")
    assert told["AWS_ENDPOINT_URL"] == recorder.endpoint.replace("127.0.0.1", "localhost")
    assert (told["AWS_ALLOW_HTTP"], told["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"]) == ("true", "false")


def test_amazons_own_endpoint_is_not_told_to_others() -> None:
    told = S3Options(credential_provider="providers_of_test:provider", region="eu-west-3").object_store_options(
        "s3://b"
    )
    assert "AWS_ENDPOINT_URL" not in told
    assert told["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] == "true"


def test_credentials_that_are_not_there_are_missed_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "alone")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    for ask in (S3Options().object_store_options, lambda address: open_object_store(address).put("key", b"data")):
        with pytest.raises(Unauthenticated, match=r"s3://bucket.*Partial credentials.*missing: AWS_SECRET_ACCESS_KEY"):
            ask("s3://bucket")


def test_sessions_share_the_description_of_s3_and_no_credentials(recorder: Recorder) -> None:
    found = [options(recorder, "expiring").session("s3://bucket") for _ in range(2)]
    loaders = {id(session._session.get_component("data_loader")) for session in found}
    assert len(loaders) == 1
    assert len({session.get_credentials().access_key for session in found}) == 2
